"""Names that nothing has are refused with the nearest ones."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure import Document, Perdure, Permanent, Pipeline
from perdure.cli.main import app as command
from perdure.errors import InputInvalid
from perdure.operate.nearest import nearest
from perdure.testing import drain, trial


def letters() -> Pipeline:
    made = Pipeline("letters", attempts=1, concurrency_key=lambda doc: "slow.example", concurrency_per_key=5)

    @made.stage(needs=("scales",))
    def weigh(doc: Document) -> int:
        if "bad" in doc.text:
            raise Permanent("too_heavy", "it is")
        return len(doc.text)

    return made


def test_a_dead_name_that_nothing_has(store_url: str) -> None:
    with trial(letters(), store=store_url) as app:
        app.add(text="bad", pipeline="letters")
        drain(app)
        for name in (
            "weigh.failed",
            "letters.failed",
            "documents.failed",
            "chunking.failed",
            "on_dead.failed",
        ):
            app.dead(failed=name)
        with pytest.raises(InputInvalid, match="nothing is called 'wiegh'; did you mean: weigh") as refused:
            app.dead(failed="wiegh.failed")
        assert refused.value.code == "name_unknown"
        for act in (app.groups, app.requeue_dead):
            with pytest.raises(InputInvalid, match="did you mean: letters"):
                act(failed="leters.failed")


def test_a_stage_that_jobs_of_another_app_stand_at_is_known(store_url: str) -> None:
    other = Pipeline("other")

    @other.stage
    def press(doc: Document) -> int:
        return 1

    with trial(other, store=store_url) as app:
        app.add(text="x", pipeline="other")
    with trial(letters(), store=store_url) as app:
        assert app.dead(failed="press.failed").documents == []


def test_very_many_and_very_long_names_hold_nobody_up() -> None:
    """Callers choose the names of collections, and this runs where all others are served."""
    known = [f"{'ab' * 450}{n}" for n in range(2_000)] + [f"name-{n:05}" for n in range(20_000)]
    began_s = time.process_time()
    assert nearest("ab" * 450, [*known, "abacus"]).startswith("there are: ab")
    assert nearest("name-0001", known).startswith("did you mean: name-00")
    assert time.process_time() - began_s < 2
    assert nearest("wiegh", ["weigh", *known[:100]]) == "did you mean: weigh?"


def test_hold_and_limit(store_url: str) -> None:
    with trial(letters(), store=store_url) as app:
        app.add(text="good", pipeline="letters")
        with pytest.raises(InputInvalid, match="did you mean: scales") as refused:
            app.hold("scalse")
        assert refused.value.code == "dependency_unknown"
        with pytest.raises(InputInvalid, match=r"did you mean: slow\.example.*with `new` ") as refused:
            app.limit("slow.exampel", concurrency=1)
        assert refused.value.code == "limit_key_unknown"
        with pytest.raises(InputInvalid, match="there are: org:default"):
            app.limit("org:zz", concurrency=1)
        assert app.acts() == []
        assert [one.key for one in app.limits()] == ["slow.example"], "the pipeline's own"
        assert {one.name: one.state for one in app.dependencies()} == {"scales": "up"}
        app.hold("scales")
        app.limit("slow.example", concurrency=1)
        app.limit("other.example", concurrency=1, new=True)
        app.limit("other.example", concurrency=2)


def test_the_commands(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with trial(letters(), store=url) as app:
        app.add(text="good", pipeline="letters")
    run = CliRunner()
    for words in (["hold", "scalse"], ["limit", "slow.exampel", "--concurrency", "1"]):
        refused = run.invoke(command, [*words, "--store", url])
        assert refused.exit_code != 0
        assert "did you mean" in str(refused.exception) + refused.output
        assert run.invoke(command, [*words, "--new", "--store", url]).exit_code == 0


def test_an_empty_store_has_no_queue_to_name(store_url: str) -> None:
    with Perdure(store_url) as app, pytest.raises(InputInvalid) as refused:
        app.pause("documents")
    assert str(refused.value) == "there is no queue 'documents' (there are none yet)"
    assert refused.value.code == "queue_unknown"
