"""One run of a stage that does not end as it should: it exits, cancels itself, or hangs."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from perdure import Context, Document, Permanent, Pipeline
from perdure.testing import drain, failing, tick, trial


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("where", [0, 1], ids=["in a thread", "in the loop"])
def test_stage_code_that_exits_or_cancels_fails_its_attempt_and_nothing_else(
    where: int, error: BaseException
) -> None:
    pipeline = Pipeline("notes")

    @pipeline.stage
    def first(doc: Document) -> str:
        return doc.text

    @pipeline.stage
    async def second(doc: Document) -> str:
        return doc.text

    with trial(pipeline) as app, failing(pipeline.stages[where], *[error] * 3) as runs:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).dead == 1
        assert runs.count == 3
        assert app.attempts(id_)[-1].error_type == type(error).__name__
        other = app.add(text="b", pipeline=pipeline).id
        assert drain(app).done == 1
        assert app.status(other).state == "done"


def test_a_stage_whose_own_task_exits_fails_its_attempt_and_the_app_goes_on() -> None:
    pipeline = Pipeline("notes", attempts=1)

    async def leave() -> None:
        sys.exit("enough")

    @pipeline.stage
    async def work(doc: Document) -> None:
        if doc.text == "bad":
            await asyncio.create_task(leave())

    with trial(pipeline) as app:
        bad = app.add(text="bad", pipeline=pipeline).id
        assert drain(app).dead == 1
        assert app.attempts(bad)[-1].error_type == "SystemExit"
        app.add(text="good", pipeline=pipeline)
        assert drain(app).done == 1


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Http(Exception):
    def __init__(self, status_code: object) -> None:
        super().__init__("from a service")
        self.status_code = status_code


ODD: dict[str, tuple[BaseException, tuple[str, str, int | None]]] = {
    "no message": (ValueError(), ("ValueError", "ValueError", None)),
    "no words": (Mute(), ("Mute", "Mute", None)),
    "many words": (ValueError("x" * 1_000_000), ("ValueError", "x" * 4_000, None)),
    "a status": (Http(503), ("Http", "from a service", 503)),
    "a status that is none": (Http("503"), ("Http", "from a service", None)),
    "a status beyond all bounds": (Http(10**12), ("Http", "from a service", None)),
    "a group": (ExceptionGroup("two", [KeyError("a"), Permanent("b")]), ("Permanent", "b", None)),
    "a stop": (StopIteration(), ("RuntimeError", "stage code raised StopIteration: ", None)),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_exceptions_are_recorded_alike_on_both_stores(store_url: str, case: str) -> None:
    pipeline = Pipeline("notes", attempts=1)

    @pipeline.stage
    def work(doc: Document) -> None: ...

    error, expected = ODD[case]
    with trial(pipeline, store=store_url) as app, failing(work, error):
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).dead == 1
        (attempt,) = app.attempts(id_)
        assert (attempt.error_type, attempt.message, attempt.status_code) == expected
        assert app.status(id_).error_message == expected[1]


def test_a_stage_whose_own_task_was_cancelled_fails_its_attempt(store_url: str) -> None:
    pipeline = Pipeline("notes", attempts=1)

    @pipeline.stage
    async def work(doc: Document) -> None:
        task = asyncio.create_task(asyncio.sleep(20))
        asyncio.get_running_loop().call_soon(task.cancel)
        await task

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).dead == 1
        assert app.attempts(id_)[-1].error_type == "CancelledError"


def test_a_stage_that_hangs_is_given_up_after_its_timeout(store_url: str) -> None:
    pipeline = Pipeline("notes")
    go = threading.Event()

    @pipeline.stage(timeout=0.2, attempts=2)
    def slow(doc: Document, ctx: Context) -> str:
        return "late" if ctx.attempt == 1 and go.wait(90) else "in time"

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert tick(app) == 1
        slow.timeout = 60
        drain(app)
        go.set()
        assert [(a.outcome, a.error_code) for a in app.attempts(id_)] == [
            ("retry", "stage_timeout"),
            ("done", None),
        ]
        assert app.output(id_, "slow") == "in time"


def test_a_hanging_stage_with_fewer_attempts_than_others_has_those(store_url: str) -> None:
    pipeline = Pipeline("notes", attempts=1)

    @pipeline.stage(timeout=0.1)
    async def slow(doc: Document) -> None:
        await asyncio.sleep(20)

    @pipeline.stage(attempts=5)
    def patient(doc: Document) -> None: ...

    with trial(pipeline, store=store_url) as app:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).dead == 1
        assert [a.outcome for a in app.attempts(id_)] == ["dead"]
