"""What becomes of a job whose stage ended or raised: done, retried, or set aside with its cause."""

from __future__ import annotations

import json
import math
import re
import urllib.error
from dataclasses import replace
from email.message import Message
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.core.model import Job, Policy
from perdure.core.outcome import (
    MESSAGE_MAX,
    Dead,
    Done,
    Failure,
    Finished,
    Hold,
    Later,
    Outcome,
    Overdue,
    Result,
    Retry,
    describe,
    outcome,
)
from perdure.errors import DependencyDown, Permanent, RetryLater, SettingInvalid, Transient, Unstorable
from tests.core.jobs import FIRST, LAST, after, claimed, dead, decide, later, raised, retry

BIGINT_MAX = 2**63 - 1


@pytest.mark.parametrize("job", [FIRST, LAST, replace(LAST, suspect=True, crashes=1)])
def test_finished_is_done(job: Job) -> None:
    assert decide(job, Finished()) == Done()


@pytest.mark.parametrize("job", [FIRST, LAST])
def test_an_invalid_setting_of_the_worker_is_not_charged_to_the_document(job: Job) -> None:
    error = SettingInvalid("OPENAI_RETRY_MAX is 'x'")
    assert decide(job, raised(error)) == Hold(str(error), describe("extract", error), aside=True)


# --- charged ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("attempts", "delay_ms"), [(1, 2_000), (2, 4_000)])
@pytest.mark.parametrize(
    "error", [ValueError("x"), Transient("x"), KeyError("x"), ExceptionGroup("x", [OSError("x")])]
)
def test_what_may_work_next_time_is_retried_after_backoff(
    error: Exception, attempts: int, delay_ms: int
) -> None:
    decided = retry(replace(FIRST, attempts=attempts), raised(error))
    assert decided.delay_ms == delay_ms
    assert decided.why == f"backoff after attempt {attempts} of 3"
    assert decided.failure.code in {"unexpected", "transient"}
    assert not decided.suspect


def test_the_last_attempt_buries_with_its_cause() -> None:
    decided = dead(LAST, raised(ValueError("bad page")))
    assert decided.why == "attempt 3 of 3 failed"
    assert decided.charged
    assert decided.failure == Failure("extract", "ValueError", "unexpected", "bad page")


def test_an_invalid_domain_is_dead_after_three_attempts_and_six_seconds() -> None:
    waited, job = 0, FIRST
    while isinstance(decided := decide(job, raised(OSError("name not known"))), Retry):
        waited += decided.delay_ms
        job = claimed(after(job, decided))
    assert isinstance(decided, Dead)
    assert (job.attempts, job.claims, waited) == (3, 3, 6_000)


@pytest.mark.parametrize(
    ("asked_s", "delay_ms", "asked"), [(0.5, 2_000, False), (2, 2_000, False), (90, 90_000, True)]
)
def test_a_wait_that_was_asked_for_is_never_cut_short(asked_s: float, delay_ms: int, asked: bool) -> None:
    decided = retry(FIRST, raised(Transient("x", retry_after_s=asked_s)))
    assert decided.delay_ms == delay_ms
    assert decided.why.endswith("asked to wait") is asked


@given(st.floats(0, 10_000))
def test_waits_round_up_to_the_millisecond(asked_s: float) -> None:
    assert retry(FIRST, raised(Transient("x", retry_after_s=asked_s))).delay_ms >= asked_s * 1000
    assert later(FIRST, raised(RetryLater("x", delay_s=asked_s))).delay_ms >= asked_s * 1000


@pytest.mark.parametrize("code", ["stage_timeout", "no_progress"])
def test_an_overdue_stage_counts_an_attempt_under_its_own_code(code: str) -> None:
    result = Overdue("extract", code, "600 s passed")
    assert retry(FIRST, result).failure == Failure("extract", "Overdue", code, "600 s passed")
    assert dead(LAST, result).failure.code == code


@pytest.mark.parametrize("kind", ["raised", "overdue"])
def test_a_stage_has_its_own_schedule_and_may_lower_the_attempts(kind: str) -> None:
    own = Policy(attempts=2, base_ms=300_000, cap_ms=3_600_000)
    result: Result = raised(OSError("x"), policy=own)
    if kind == "overdue":
        result = Overdue("extract", "stage_timeout", "x", own)
    assert retry(FIRST, result).delay_ms == 300_000
    assert dead(replace(FIRST, attempts=2), result).why == "attempt 2 of 2 failed"


def test_no_stage_raises_the_budget_of_its_job() -> None:
    assert isinstance(decide(LAST, raised(OSError("x"), policy=Policy(attempts=9))), Dead)


def test_jitter_uses_the_dice_it_was_given() -> None:
    job = replace(FIRST, policy=Policy(jitter=True, base_ms=1_000))
    decided = outcome(job, raised(OSError("x")), lambda: 0.25)
    assert isinstance(decided, Retry)
    assert decided.delay_ms == 250


# --- permanent -------------------------------------------------------------------------------


def test_permanent_is_dead_at_the_first_attempt_under_its_code() -> None:
    decided = dead(FIRST, raised(Permanent("empty_document", "no text in it")))
    assert decided.failure == Failure("extract", "Permanent", "empty_document", "no text in it")
    assert decided.why == "permanent: empty_document"
    assert decided.charged


def test_what_cannot_be_stored_is_permanent() -> None:
    assert dead(FIRST, raised(Unstorable("too large"))).failure.code == "unstorable"


@pytest.mark.parametrize(
    "text", ["HTTP 429 Too Many Requests", "503", "Retry-After: 9999", "permanent", "SIGSEGV"]
)
def test_the_words_of_a_message_decide_nothing(text: str) -> None:
    plain, worded = retry(FIRST, raised(ValueError("x"))), retry(FIRST, raised(ValueError(text)))
    assert worded == replace(plain, failure=replace(plain.failure, message=text))
    assert isinstance(decide(FIRST, raised(Permanent("bad", text))), Dead)


# --- errors raised together ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([OSError("x"), DependencyDown("openai"), Permanent("empty")], Dead),
        ([RetryLater("x"), DependencyDown("openai")], Hold),
        ([OSError("x"), ExceptionGroup("inner", [RetryLater("x", delay_s=120)])], Later),
        ([OSError("x"), ValueError("y")], Retry),
    ],
)
def test_of_errors_raised_together_the_most_telling_decides(
    errors: list[Exception], expected: type[Outcome]
) -> None:
    assert isinstance(decide(FIRST, raised(ExceptionGroup("tasks", errors), lane_down=True)), expected)


def test_of_several_waits_raised_together_the_longest_counts() -> None:
    waits = ExceptionGroup("tasks", [RetryLater("x", delay_s=s) for s in (5, 120, 60)])
    assert later(FIRST, raised(waits)).delay_ms == 120_000


# --- how a failure is described --------------------------------------------------------------


class Answer:
    status_code = 503


class HttpError(Exception):
    def __init__(self, status_code: object = None, response: object = None) -> None:
        super().__init__("http")
        self.status_code = status_code
        self.response = response


class Spiteful(Exception):
    """Third-party errors may break while they are read."""

    def __str__(self) -> NoReturn:
        raise RuntimeError("no words")

    @property
    def status_code(self) -> NoReturn:
        raise RuntimeError("no status")


class HalfSpiteful(Exception):
    @property
    def status_code(self) -> NoReturn:
        raise RuntimeError("no status")


class Nameless(Exception):
    @property
    def type_name(self) -> NoReturn:
        raise RuntimeError("no name")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (HttpError(429), 429),
        (HttpError(response=Answer()), 503),
        (HttpError(404, Answer()), 404),
        (HttpError("404"), None),
        (urllib.error.HTTPError("http://x", 503, "no", Message(), None), 503),
        (SystemExit(3), None),
        (ValueError("404"), None),
    ],
)
def test_the_status_comes_from_the_error_not_from_its_words(error: Exception, status: int | None) -> None:
    assert describe("fetch", error).status_code == status


def test_the_place_is_in_the_code_of_the_stage_not_in_the_library_that_it_called() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        json.loads("{")
    place = describe("parse", caught.value).place or ""
    assert re.fullmatch(r"tests/core/test_outcome.py:\d+ in test_the_place_\w+", place)


def test_an_error_without_words_is_described_by_its_class() -> None:
    assert describe("fetch", TimeoutError()) == Failure("fetch", "TimeoutError", "unexpected", "TimeoutError")


def test_a_long_message_is_cut() -> None:
    assert len(describe("fetch", ValueError("x" * 10**6)).message) == MESSAGE_MAX


def test_an_error_that_cannot_be_read_is_still_a_failure() -> None:
    decided = retry(FIRST, raised(Spiteful()))
    assert decided.failure.error_type == "Spiteful"


def test_what_can_be_read_of_such_an_error_is_kept() -> None:
    assert describe("fetch", HalfSpiteful("disk full")).message == "disk full"


def test_no_name_an_error_gives_itself_breaks_the_decision() -> None:
    assert retry(FIRST, raised(Nameless("x"))).failure.error_type == "Nameless"


def test_truth_is_no_status() -> None:
    assert describe("fetch", HttpError(True)).status_code is None


STRANGE = [math.inf, math.nan, 1e300, -math.inf, -1.0]


@pytest.mark.parametrize("seconds", STRANGE)
def test_no_wait_that_was_asked_for_breaks_the_decision(seconds: float) -> None:
    for error in (Transient("x", retry_after_s=seconds), RetryLater("x", delay_s=seconds)):
        decided = decide(FIRST, raised(error))
        assert isinstance(decided, Retry | Later | Dead)
        if not isinstance(decided, Dead):
            assert 0 <= decided.delay_ms + 2**42 <= BIGINT_MAX


def test_an_unexpected_error_says_where_it_was_raised() -> None:
    def deep() -> None:
        raise KeyError("missing")

    with pytest.raises(KeyError) as raised:
        deep()
    failure = describe("fetch", raised.value)
    assert failure.place is not None
    assert failure.place.endswith(" in deep")
    assert "test_outcome.py:" in failure.place
    assert describe("fetch", Permanent("mine")).place is None
    assert describe("fetch", KeyError("never raised")).place is None
