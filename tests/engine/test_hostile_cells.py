"""A cell under the control of its file: whatever it sends, nothing runs in the worker and only its document pays."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import ModuleType

import pytest

from perdure.calls.dependency import DEPENDENCIES
from perdure.engine import call, cell_messages, execution, rooms, wire
from perdure.store.descriptors import close_unshared
from perdure.testing import Trial, drain, tick, trial
from tests.engine.hostile import ATTACKS, deep, files, held

SENT = ("size", "services")
PICKLES = ("pickle answer", "pickle ask", "pickle error")


def test_a_forged_message_ends_its_cell_and_nothing_else(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    with trial(files, cells=True, concurrency=4) as app:
        attacks = {name: app.add(text=name, pipeline=files).id for name in (*ATTACKS, *SENT)}
        attacks |= {name: app.add(text=f"{name} on {marker}", pipeline=files).id for name in PICKLES}
        fine = [app.add(text=f"fine on {n}", pipeline=files).id for n in range(5)]
        summary = drain(app)
        assert (summary.done, summary.dead) == (len(fine), len(attacks))
        wanted = {name: code for name, (_, _, code) in ATTACKS.items()}
        wanted |= dict.fromkeys((*PICKLES, *SENT), "crashed:malformed") | {"size": "result_too_large"}
        assert {name: app.status(id_).error_code for name, id_ in attacks.items()} == wanted
        crashed = [id_ for name, id_ in attacks.items() if wanted[name] == "crashed:malformed"]
        for id_ in crashed:  # as for any crash: charged, and the second one is proof
            assert [(a.outcome, a.charged) for a in app.attempts(id_)] == [("retry", True), ("dead", True)]
        assert all(app.output(id_, "read") == "fine" for id_ in fine)
    assert not marker.exists()


@pytest.mark.parametrize(
    ("module", "bound", "most"),
    [(cell_messages, "JSON_VALUES_MAX", 100), (wire, "VALUES_MAX", 5), (call, "BODY_MAX", 100)],
)
def test_an_honest_stage_that_gives_too_much_hears_so(
    module: ModuleType, bound: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds hold in the worker; here they are met by little."""
    monkeypatch.setattr(module, bound, most)
    with trial(files, cells=True) as app:
        id_ = app.add(text="much", pipeline=files).id
        assert drain(app).dead == 1
        assert app.status(id_).error_code == "result_too_large"
        assert "ctx.items" in str(app.status(id_).error_message)
        (attempt,) = app.attempts(id_)
        assert attempt.charged


def test_a_service_that_its_stage_does_not_need_is_not_held(tmp_path: Path) -> None:
    with trial([files, held], cells=True) as app:
        for pipeline in (files, held):
            id_ = app.add(text="down", pipeline=pipeline).id
            assert held_or_later(app, id_)
        assert not any(one.held_by for one in app.dependencies())


def held_or_later(app: Trial, id_: str) -> bool:
    """Whether the document waits for minutes, as one whose claim the fleet does not share."""
    tick(app)
    (attempt,) = app.attempts(id_)
    return (attempt.outcome, attempt.charged) == ("later", False)


def test_a_cell_in_a_sandbox_has_nothing_to_say_about_services() -> None:
    with trial(held, cells=True) as app:
        DEPENDENCIES.pop("openai", None)
        id_ = app.add(text="failures", pipeline=held).id
        assert drain(app).done == 1
        assert app.output(id_, "confined") == "reported"
        assert "openai" not in DEPENDENCIES
        assert [one.requests for one in app.attempts(id_)] == [{}]


def test_one_that_talks_without_end_is_answered_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def counted(delay: float, result: object = None) -> object:
        pauses.append(delay)
        return await sleep(delay, result)

    monkeypatch.setattr(asyncio, "sleep", counted)
    with trial(files, cells=True) as app:
        app.add(text="talk", pipeline=files)
        assert drain(app).done == 1
    assert pauses.count(execution.TOLD_PAUSE_S) == 150 - execution.TOLD_FREELY


def test_a_process_that_forged_a_message_serves_no_other_document() -> None:
    with trial(held, cells=True, concurrency=1) as app:
        first = app.add(text="fine", pipeline=held).id
        bad = app.add(text="wrong types", pipeline=held).id
        last = app.add(text="fine on more", pipeline=held).id
        assert (drain(app).done, app.status(bad).error_code) == (2, "crashed:malformed")
        assert app.output(first, "confined") == app.output(last, "confined") == "fine"
        # it had served another before: a new one told whose fault it was
        assert [a.charged for a in app.attempts(bad)] == [False, True, True]


# --- what it leaves behind -------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    return directory


def test_a_very_deep_tree_is_removed_before_the_next_document(temporary: Path) -> None:
    with trial(held, cells=True, concurrency=1) as app:
        ids = [app.add(text=f"tree {n}", pipeline=held).id for n in range(5)]
        assert drain(app).done == 5
        outputs = [str(app.output(id_, "confined")) for id_ in ids]
        assert all(output.endswith("[]") for output in outputs)
        # on a busy machine a process may be replaced, but at least one served several documents
        assert len({output.split()[0] for output in outputs}) < 5
    assert list(temporary.iterdir()) == []


def test_a_very_deep_tree_of_a_killed_process_is_cleared_out(temporary: Path) -> None:
    room = rooms.new_room()
    deep(room, 3_000)
    (room / "d" / "file").write_text("x")
    (room / "link").symlink_to(temporary)
    (room / "d" / "locked").mkdir(mode=0)
    (room / ".0").mkdir()
    close_unshared(rooms._locks.pop(room))
    assert rooms.clear_out() == 1
    assert list(temporary.iterdir()) == []


def test_a_directory_that_becomes_a_link_while_it_is_removed_leads_nowhere(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = temporary.parent / "outside"
    outside.mkdir(mode=0o500)
    room = rooms.new_room()
    (room / "d").mkdir()
    really = rooms._is_directory

    def swapped(name: str, within: int) -> bool:
        found = really(name, within)
        if name == "d" and found:  # what a process that lives on can do between two looks
            os.rename(room / "d", room / "e")
            (room / "d").symlink_to(outside)
        return found

    monkeypatch.setattr(rooms, "_is_directory", swapped)
    with pytest.raises(OSError, match="d"):
        rooms.empty(room)
    assert outside.stat().st_mode & 0o777 == 0o500
