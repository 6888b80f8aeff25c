"""What operators type: each verb does it, says so, and is in the trail; what is refused says why."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.cli.operator import moment
from perdure.errors import InputInvalid
from tests.doors.command import perdure, refused, succeeded
from tests.doors.test_status import letters

NOON = datetime(2027, 3, 1, 12, 0, tzinfo=UTC)


def test_verbs_and_their_trail(store_url: str) -> None:
    on = ("--store", store_url)
    with Perdure(store_url, pipelines=[letters]) as app:
        first, second = (app.add(text=text, pipeline=letters).id for text in ("sun", "moon"))
        said = succeeded("pause", "documents", "--reason", "disk full", "--who", "ann", *on)
        assert said == "documents is paused; `perdure resume documents` lets it go on\n"
        assert app.run_until_idle().done == 0
        assert succeeded("resume", "documents", *on, PERDURE_OPERATOR="bob") == "documents goes on\n"
        assert succeeded("priority", first, "5", *on) == "changed\n"
        assert succeeded("priority", second, "first", *on) == "raised\n"
        assert succeeded("cancel", first, "--reason", "not wanted", *on) == "cancelled\n"
        twice = perdure("cancel", first, *on)
        assert (twice.returncode, twice.stdout) == (1, "")
        assert twice.stderr == "perdure: refused: the document is cancelled [move_forbidden]\n"
        refused(1, "document_unknown", "cancel", "nope", *on)
    told = json.loads(succeeded("acts", "--json", "--limit", "4", *on))
    assert [act["verb"] for act in told["acts"]] == ["cancel", "raise", "priority", "resume"]
    assert told["acts"][3]["who"] == "bob"
    rest = succeeded("acts", "--after", str(told["after"]), *on)
    assert "ann  pause documents\n    disk full\n" in rest
    assert "more:" not in rest


def test_a_requeue_of_a_pipeline_that_is_not_ours_says_how(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/p.db"
    with Perdure(url, pipelines=[letters]) as app:
        id_ = app.add(text="empty", pipeline=letters).id
        app.run_until_idle()
    asked = ("requeue", id_, "--store", url)
    assert "--app MODULE:APP" in refused(2, "pipeline_unknown", *asked)
    refused(2, "input_invalid", *asked, "--at", "soon")
    mine = ("--app", "tests.doors.sorting:app")
    said = succeeded(*asked, *mine, "--at", "+2h", "--from", "stamp", "--who", "ann", cwd=Path.cwd())
    assert said.startswith("requeued, not before 20")
    with Perdure(url, pipelines=[letters]) as app:
        assert (app.status(id_).state, app.status(id_).generation) == ("waiting", 2)
        assert app.acts()[0].who == "ann"


def test_limits(tmp_path: Path) -> None:
    on = ("--store", f"sqlite:///{tmp_path}/p.db")
    succeeded("migrate", *on)
    assert "No key has a limit." in succeeded("limit", *on)
    refused(2, "limit_key_unknown", "limit", "slow.example", "--concurrency", "2", *on)
    refused(2, "limit_key_unknown", "limit", "slow.example", *on)
    shown = succeeded("limit", "slow.example", "--concurrency", "2", "--new", *on)
    assert "did you mean: slow.example?" in refused(2, "limit_key_unknown", "limit", "slow.exampel", *on)
    assert shown.splitlines()[1].split() == ["slow.example", "2", "any", "0", "0"]
    lifted = json.loads(succeeded("limit", "slow.example", "--none", "--json", *on))
    assert lifted["limits"][0]["concurrency"] is None
    refused(2, "input_invalid", "limit", "--concurrency", "2", *on)


@pytest.mark.parametrize(
    ("text", "forward", "expected"),
    [
        ("+2h", True, "2027-03-01T14:00"),
        ("-90m", False, "2027-03-01T10:30"),
        ("+1.5d", True, "2027-03-03T00:00"),
        ("06:30", True, "2027-03-02T06:30"),
        ("06:30", False, "2027-03-01T06:30"),
        ("13:00", True, "2027-03-01T13:00"),
        ("13:00", False, "2027-02-28T13:00"),
        ("2027-01-31T06:30", True, "2027-01-31T06:30"),
        ("2027-01-31T06:30+01:00", True, "2027-01-31T05:30"),
    ],
)
def test_times_as_people_type_them(text: str, forward: bool, expected: str) -> None:
    found = moment(text, NOON, forward)
    assert found == datetime.fromisoformat(expected).replace(tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "soon", "2h", "+h", "25:00", "+1e999d", "2027-13-01"])
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(InputInvalid, match="not a time"):
        moment(text, NOON)
