"""A permanent error of a call is permanent for its job: dead at once, with a code of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure import Document, Pipeline
from perdure.calls import FullJitter, Policy, Verdict
from perdure.core.outcome import telling
from perdure.core.refusal import refused
from perdure.engine.crossing import decode_error, encode_error
from perdure.errors import CallRefused, Permanent, Transient
from perdure.operate.advice import Action
from perdure.testing import drain, trial
from tests.calls import refused_cells
from tests.calls.making import HttpError, Script, World, at_work

QUICK: dict[str, Any] = {"backoff": FullJitter(0, 0)}


def code_of(error: Exception, policy: Policy | None = None) -> tuple[str, int, str | None]:
    """How a document ends whose stage makes a call that raises this: state, attempts, code."""
    guard, books = policy or Policy("refusing", **QUICK), Pipeline("books", attempts=3)

    @books.stage
    async def ask(doc: Document) -> str:
        return await guard.acall(Script(error).awaited)

    with trial(books) as app:
        id_ = app.add(text="a", pipeline=books).id
        drain(app)
        attempts = app.attempts(id_)
        return app.status(id_).state, len(attempts), attempts[-1].error_code


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HttpError(401), "call_unauthorized"),
        (HttpError(403), "call_unauthorized"),
        (HttpError(400), "call_refused"),
        (HttpError(404), "call_refused"),
        (HttpError(402), "call_quota"),
        (HttpError(429, code="insufficient_quota"), "call_quota"),
        (HttpError(409, {"x-should-retry": "false"}), "call_refused"),
        (ValueError("the request is invalid"), "call_invalid"),
    ],
)
def test_a_permanent_error_of_a_call_ends_the_job_at_once(error: Exception, code: str) -> None:
    assert code_of(error) == ("dead", 1, code)


@pytest.mark.parametrize("error", [RuntimeError("who knows"), KeyError("choices")])
def test_unknown_errors_and_bugs_count_one_attempt_each(error: Exception) -> None:
    """A bug of the stage may be mended meanwhile, and an answer without its field may be better next time."""
    assert code_of(error) == ("dead", 3, "unexpected")


def test_the_record_names_the_service_the_status_and_the_class() -> None:
    books = Pipeline("books")
    policy = Policy("ocr")

    @books.stage(needs=["ocr"])
    def ask(doc: Document) -> str:
        return str(policy.call(Script(HttpError(401))))

    with trial(books) as app:
        id_ = app.add(text="a", pipeline=books).id
        drain(app)
        (attempt,) = app.attempts(id_)
        assert (attempt.error_type, attempt.error_code) == ("HttpError", "call_unauthorized")
        assert (attempt.message or "") == "ocr failed for good (status_401): the service said 401"
        (group,) = app.groups()
        assert (group.action, group.advice) == (
            Action.FIX,
            "ocr refuses us: put its key or rights right, then requeue",
        )


# --- what stage code may do with it ---------------------------------------------------------------


def run_stage(stage: Callable[[Policy], Any], **more: Any) -> tuple[str, int, str | None]:
    policy, books = Policy("refusing", **QUICK, **more), Pipeline("books", attempts=2)

    @books.stage
    def ask(doc: Document) -> str:
        return str(stage(policy))

    with trial(books) as app:
        id_ = app.add(text="a", pipeline=books).id
        drain(app)
        attempts = app.attempts(id_)
        return app.status(id_).state, len(attempts), attempts[-1].error_code


def test_stage_code_catches_the_error_of_its_client() -> None:
    def stage(policy: Policy) -> str:
        try:
            return str(policy.call(Script(HttpError(404))))
        except HttpError:
            return "nothing there"

    assert run_stage(stage) == ("done", 1, None)


def test_stage_code_that_decides_otherwise_is_obeyed() -> None:
    def stage(policy: Policy) -> str:
        try:
            return str(policy.call(Script(HttpError(404))))
        except HttpError as error:
            raise Transient("not there yet", code="not_yet") from error

    assert run_stage(stage) == ("dead", 2, "not_yet")


def test_an_error_that_is_raised_from_it_means_the_same() -> None:
    def stage(policy: Policy) -> str:
        try:
            return str(policy.call(Script(HttpError(401))))
        except HttpError as error:
            raise RuntimeError("asking failed") from error

    assert run_stage(stage) == ("dead", 1, "call_unauthorized")


def test_a_bug_in_its_handling_is_a_bug() -> None:
    def stage(policy: Policy) -> str:
        try:
            return str(policy.call(Script(HttpError(401))))
        except HttpError:
            raise KeyError("status")  # noqa: B904  (a context, not a cause)

    assert run_stage(stage) == ("dead", 2, "unexpected")


def test_calls_side_by_side() -> None:
    async def both(policy: Policy) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(policy.acall(Script(HttpError(401)).awaited))
            group.create_task(policy.acall(Script("fine").awaited))

    assert run_stage(lambda policy: asyncio.run(both(policy))) == ("dead", 1, "call_unauthorized")


def test_best_effort_goes_on() -> None:
    assert run_stage(lambda policy: policy.call(Script(HttpError(401))), best_effort=True) == (
        "done",
        1,
        None,
    )


@pytest.mark.parametrize("word", ["raise", "reschedule", lambda error: "instead"])
def test_on_exhausted_is_about_other_errors(word: Any) -> None:
    found = run_stage(lambda policy: policy.call(Script(HttpError(400))), on_exhausted=word)
    assert found == ("dead", 1, "call_refused")


@pytest.mark.parametrize("outer_says", ["permanent", "unknown"])
def test_a_call_inside_another(outer_says: Any) -> None:
    """The inner policy knows its service; only an outer one that would ask again overrules it."""

    def stage(policy: Policy) -> Any:
        outer = Policy("around", classify=lambda error: Verdict(outer_says, "any"))
        return outer.call(policy.call, Script(HttpError(401)))

    state, attempts, code = run_stage(stage)
    assert (state, attempts) == ("dead", 1)
    assert code in ("call_unauthorized", "call_refused")


def test_outside_of_jobs_the_error_is_the_original() -> None:
    error = HttpError(401)
    with pytest.raises(HttpError) as raised:
        World().policy().call(Script(error))
    assert raised.value is error


# --- fallbacks and cells --------------------------------------------------------------------------


def test_a_stage_with_a_fallback_degrades_at_once() -> None:
    policy, books = Policy("refusing", **QUICK), Pipeline("books", attempts=3)
    service = Script(HttpError(401))

    @books.stage
    def ask(doc: Document) -> str:
        return str(policy.call(service))

    @ask.fallback
    def without(doc: Document) -> str:
        return "without"

    with trial(books) as app:
        id_ = app.add(text="a", pipeline=books).id
        drain(app)
        assert (app.status(id_).state, app.status(id_).degraded) == ("done", True)
        assert app.output(id_, "ask") == "without"
        assert service.calls == 2  # the document, and the job that tried to repair it


def test_what_a_stage_itself_calls_permanent_is_not_covered_up() -> None:
    books = Pipeline("books")

    @books.stage
    def ask(doc: Document) -> str:
        raise Permanent("mine")

    @ask.fallback
    def without(doc: Document) -> str:
        return "without"

    with trial(books) as app:
        id_ = app.add(text="a", pipeline=books).id
        drain(app)
        assert app.status(id_).state == "dead"


def test_a_refusal_in_a_cell_ends_the_job_at_once() -> None:
    with trial(refused_cells.letters, cells=True) as app:
        id_ = app.add(text="a", pipeline=refused_cells.letters).id
        drain(app)
        (attempt,) = app.attempts(id_)
        assert (attempt.error_code, attempt.error_type) == ("call_unauthorized", "Unpicklable")
        assert app.status(id_).state == "dead"


def test_it_crosses_the_border_of_a_process_whole() -> None:
    sent = CallRefused(
        "call_quota", "used up", dependency="openai", type_name="RateLimitError", status_code=429
    )
    came = decode_error(encode_error(sent))
    assert isinstance(came, CallRefused)
    assert (came.code, came.dependency, came.type_name, came.status_code, str(came)) == (
        "call_quota", "openai", "RateLimitError", 429, "used up",
    )  # fmt: skip


# --- the mark itself ------------------------------------------------------------------------------


class Frozen(Exception):
    status_code = 400

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)

    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_error_that_takes_no_attributes_and_has_no_words() -> None:
    error = Frozen()
    with at_work(), pytest.raises(Frozen):
        World().policy().call(Script(error))
    told = telling(error)
    assert isinstance(told, CallRefused)
    assert (told.code, told.type_name) == ("call_refused", "Frozen")


def test_causes_that_go_in_circles_end() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert refused(first) is None
