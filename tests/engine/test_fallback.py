"""A stage with a fallback degrades instead of holding, and is repaired when its service is back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure import (
    DependencyDown,
    Document,
    Gathered,
    Permanent,
    Pipeline,
    Result,
    RetryLater,
    Row,
    Transient,
)
from perdure.core.outcome import Failure
from perdure.engine.saving import earlier, usable
from perdure.errors import PipelineInvalid, Rescheduled
from perdure.store.records import SavedStage
from perdure.testing import Trial, drain, failing, tick, trial
from tests.core.jobs import FIRST

pictures, index = Pipeline("pictures"), Pipeline("index")
described: list[str] = []


@pictures.stage
def look(doc: Document) -> int:
    return len(doc.text)


@pictures.stage(needs=["vision"])
def describe(doc: Document, look: int) -> str:
    described.append(doc.text)
    return f"a picture of {doc.text}"


@describe.fallback
def unprocessed(look: int, failure: Failure) -> str:
    if look == 13:
        raise RuntimeError("not even that")
    return f"unprocessed: {failure.code}"


@pictures.stage
def store(doc: Document, describe: str) -> Result[str]:
    return Result(describe, rows=[Row("words", data=describe)], spawn=[index.job(doc, words=describe)])


@pictures.stage
def close(store: str, gathered: Gathered) -> int:
    return gathered.failed


@index.stage
def find(input: dict[str, str]) -> Result[str]:
    return Result(input["words"], rows=[Row("found", data=input["words"])])


DOWN = DependencyDown("vision", "no answer", confirmed=True)
APP = [pictures, index]


@pytest.fixture(autouse=True)
def nothing_described() -> None:
    described.clear()


def words(app: Trial, id_: str) -> list[str]:
    return [data for name in ("words", "found") for _, data in app.rows(id_, name)]


def tallied(app: Trial, name: str) -> int:
    return app._call(app.service.store.counted(name))


def test_a_document_goes_on_without_the_service_and_is_repaired_when_it_is_back(store_url: str) -> None:
    with trial(APP, store=store_url) as app:
        app.hold("vision", "away")
        id_ = app.add(text="cat", pipeline=pictures).id
        summary = drain(app)
        status = app.status(id_)
        assert (summary.done, summary.held, status.state, status.degraded) == (1, 1, "done", True)
        assert words(app, id_) == ["unprocessed: dependency_down"] * 2
        assert described == []
        assert app.status(id_).attempts_made == 1
        app.release("vision")
        drain(app)
        assert words(app, id_) == ["a picture of cat"] * 2
        assert described == ["cat"]
        assert not app.status(id_).degraded
        assert (tallied(app, "degraded"), tallied(app, "repaired")) == (1, 1)
        drain(app)
        assert described == ["cat"]


@pytest.mark.parametrize("error", [DOWN, Rescheduled("gave up", retry_after_s=300)])
def test_a_call_that_gives_up_degrades_at_once(store_url: str, error: Exception) -> None:
    with trial(APP, store=store_url) as app:
        id_ = app.add(text="dog", pipeline=pictures).id
        with failing(describe, error):
            for _ in range(4):
                tick(app)
        assert (app.status(id_).state, app.status(id_).degraded) == ("done", True)
        app.release("vision")
        drain(app)
        assert words(app, id_) == ["a picture of dog"] * 2
        assert not app.status(id_).degraded


def test_any_other_failure_is_tried_again_first(store_url: str) -> None:
    with trial(APP, store=store_url) as app:
        one, two = (app.add(text=text, pipeline=pictures).id for text in ("one", "two"))
        app.pause("documents")
        with failing(describe, *[Transient("no")] * 3):
            app.cancel(two)
            app.resume("documents")
            assert drain(app).done == 1
        assert [a.outcome for a in app.attempts(one) if "/" not in a.job_key] == [
            "retry",
            "retry",
            "gather",
            "done",
        ]
        assert not app.status(one).degraded  # repaired on the way
        assert (tallied(app, "degraded"), tallied(app, "repaired")) == (1, 1)


def test_what_is_the_documents_own_fault_is_not_covered_up(store_url: str) -> None:
    with trial(APP, store=store_url) as app:
        id_ = app.add(text="bad", pipeline=pictures).id
        with failing(describe, Permanent("image_corrupt")):
            assert drain(app).dead == 1
        assert app.status(id_).error_code == "image_corrupt"


def test_a_fallback_that_raises_is_a_failure_of_the_stage(store_url: str) -> None:
    with trial(APP, store=store_url) as app:
        app.hold("vision", "away")
        id_ = app.add(text="x" * 13, pipeline=pictures).id
        assert drain(app).dead == 1
        assert app.status(id_).error_message == "not even that"


def release(name: str, was: str | None = None) -> Pipeline:
    """A pipeline of one stage, which falls back; it has this name in this release."""
    scans = Pipeline("scans")

    def read(doc: Document) -> str:
        return f"{name} read {doc.text}"

    def blank() -> str:
        return "nothing"

    read.__name__ = name
    scans.stage(needs=["vision"], was=was)(read).fallback(blank)
    return scans


@pytest.mark.parametrize("renamed_first", [False, True])
def test_a_stage_that_was_renamed_meanwhile_is_repaired(store_url: str, renamed_first: bool) -> None:
    releases = [release("read"), release("recognise", was="read")]
    fell_back, repairing = reversed(releases) if renamed_first else releases
    with trial([fell_back], store=store_url) as app:
        app.hold("vision", "away")
        id_ = app.add(text="cat", pipeline=fell_back).id
        drain(app)
        assert app.status(id_).degraded
    with trial([repairing], store=store_url) as app:
        app.release("vision")
        drain(app)
        (stage,) = repairing.stages
        assert app.output(id_, stage.name) == f"{stage.name} read cat"
        assert not app.status(id_).degraded
        assert (tallied(app, "degraded"), tallied(app, "repaired")) == (1, 1)
    with trial([fell_back], store=store_url) as app:
        (stage,) = fell_back.stages
        app.requeue(id_)
        drain(app)
        assert app.output(id_, stage.name) != "nothing"


def test_a_follow_up_takes_up_what_its_own_generation_saved() -> None:
    scans = release("read")
    ours = SavedStage("read", 1, 1, "in", "out", b"1", None, None, 0, 0)
    job = replace(FIRST, key="doc-1/scans")
    assert usable([ours, replace(ours, generation=2)], job, scans) == {"read": ours}


def test_a_repair_takes_up_what_it_saved_before_the_stage_was_renamed() -> None:
    renamed, job = release("recognise", was="read"), replace(FIRST, key="doc-1/repair-scans")
    made = SavedStage("read", 1, 1, "in", "out", b"1", None, None, 0, 0)
    fell_back = replace(made, stage="recognise", degraded=True)
    assert usable([fell_back], job, renamed) == {}
    assert usable([fell_back, made], job, renamed) == {"recognise": made}


def test_a_repair_that_fails_leaves_it_degraded(store_url: str) -> None:
    with trial(APP, store=store_url) as app:
        app.hold("vision", "away")
        id_ = app.add(text="cat", pipeline=pictures).id
        drain(app)
        app.release("vision")
        with failing(describe, Permanent("never")):
            drain(app)
        status = app.status(id_)
        assert (status.state, status.degraded) == ("done", True)
        assert words(app, id_) == ["unprocessed: dependency_down"] * 2
        assert [a.outcome for a in app.attempts(id_) if "/repair-" in a.job_key] == ["dead"]
        app.requeue(id_)  # anew: a fallback is nothing to be taken up
        drain(app)
        assert words(app, id_) == ["a picture of cat"] * 2
        assert not app.status(id_).degraded


def test_a_repair_begins_when_all_else_has_ended(store_url: str) -> None:
    """Else a job that was spawned with what stood in could come after the one that was spawned with the real thing."""
    with trial(APP, store=store_url) as app:
        app.hold("vision", "away")
        id_ = app.add(text="cat", pipeline=pictures).id
        with failing(find, Transient("not now")):
            tick(app)
            app.release("vision")
            drain(app)
        assert words(app, id_) == ["a picture of cat"] * 2
        assert (described, app.status(id_).degraded) == (["cat"], False)


def test_what_follows_runs_anew_from_a_stage_that_fell_back(store_url: str) -> None:
    with trial(APP, store=store_url) as app:
        app.hold("vision", "away")
        id_ = app.add(text="cat", pipeline=pictures).id
        drain(app)
        with failing(store) as runs:
            app.requeue(id_, from_stage="describe")
            drain(app)
        assert runs.count == 1


def test_a_repair_in_a_later_generation_takes_up_what_an_earlier_one_saved(store_url: str) -> None:
    with trial(APP, store=store_url) as app, failing(look) as runs:
        id_ = app.add(text="cat", pipeline=pictures).id
        drain(app)
        app.hold("vision", "away")
        app.requeue(id_, from_stage="describe")
        drain(app)
        assert app.status(id_).degraded
        app.release("vision")
        drain(app)
        assert not app.status(id_).degraded
        assert (runs.count, described) == (1, ["cat", "cat"])


def test_what_an_earlier_generation_was_to_repair_is_no_business_any_more(store_url: str) -> None:
    """Neither is the service asked twice, nor does old content come after new."""
    with trial(APP, store=store_url) as app:
        app.hold("vision", "away")
        once = app.add(text="cat", pipeline=pictures, key="cat").id
        twice = app.add(text="owl", pipeline=pictures, key="owl").id
        drain(app)
        app.requeue(once)
        app.add(text="dog", pipeline=pictures, key="owl")
        drain(app)
        app.release("vision")
        drain(app)
        assert sorted(described) == ["cat", "dog"]
        assert [words(app, id_)[0] for id_ in (once, twice)] == ["a picture of cat", "a picture of dog"]
        assert not app.status(once).degraded
        assert (tallied(app, "degraded"), tallied(app, "repaired")) == (4, 2)


def test_a_repair_that_waits_for_the_rest_ends_with_its_generation(store_url: str) -> None:
    """The stage that fell back is repaired already, and the repair gathers what it spawned."""
    with trial(APP, store=store_url) as app:
        app.hold("vision", "away")
        id_ = app.add(text="cat", pipeline=pictures).id
        drain(app)
        app.release("vision")
        with failing(find, RetryLater("not yet", delay_s=600)), failing(store) as runs:
            while app.status(id_).degraded or not tick(app):
                tick(app)
            assert runs.count == 1
            app.requeue(id_)
            drain(app)
        assert (described, runs.count) == (["cat"], 1)
        assert app.status(id_).generation == 2
        repairs = {a.outcome for a in app.attempts(id_) if "/repair-" in a.job_key}
        assert repairs <= {"gather", "hold"}


def test_a_repair_that_runs_when_its_document_gets_other_content_writes_nothing(store_url: str) -> None:
    with trial(APP, store=store_url) as app:
        app.hold("vision", "away")
        id_ = app.add(text="cat", pipeline=pictures, key="cat").id
        drain(app)
        app.release("vision")
        real = describe.fn

        def overtaken(doc: Document, look: int) -> str:
            describe.fn = real
            app.add(text="dog", pipeline=pictures, key="cat")
            return f"an old picture of {doc.text}"

        describe.fn = overtaken
        try:
            drain(app)
        finally:
            describe.fn = real
        assert words(app, id_) == ["a picture of dog"] * 2
        assert [a.outcome for a in app.attempts(id_) if "/repair-" in a.job_key] == ["cancelled"]


def test_fallbacks_are_checked_when_they_are_defined() -> None:
    again = Pipeline("again")

    @again.stage
    def first() -> int:
        return 1

    @again.stage
    def second() -> int:
        return 2

    with pytest.raises(PipelineInvalid, match="reads first, which the stage does not"):

        @second.fallback
        def other(first: int) -> int:
            return first

    second.fallback(lambda: 3)
    with pytest.raises(PipelineInvalid, match="already"):
        second.fallback(lambda: 4)


def test_a_save_of_the_older_release_is_taken_up_if_it_is_newer() -> None:
    renamed, job = release("recognise", was="read"), replace(FIRST, generation=2, fresh_from="recognise")
    before = SavedStage("recognise", 1, 1, "in", "out", b"1", None, None, 0, 0)
    now = replace(before, stage="read", generation=2)
    assert usable([before, now], job, renamed) == {"recognise": now}
    assert earlier([before, now], replace(job, generation=3), renamed) == {"recognise": now}


def test_a_renamed_stage_that_falls_back_in_a_rerun_is_repaired(store_url: str) -> None:
    older, newer = release("read"), release("recognise", was="read")
    with trial([older], store=store_url) as app:
        id_ = app.add(text="cat", pipeline=older).id
        drain(app)
    with trial([newer], store=store_url) as app:
        app.hold("vision", "away")
        assert app.requeue(id_, from_stage="recognise") == "requeued"
        drain(app)
        assert app.status(id_).degraded
        app.release("vision")
        drain(app)
        assert app.output(id_, "recognise") == "recognise read cat"
        assert not app.status(id_).degraded
