"""What becomes of a job that had no chance: held, given back, or to blame for its own crash."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.core.model import POLICY_DEFAULT, Job, Policy
from perdure.core.outcome import (
    CRASHES_MAX,
    LATER_MS_MIN,
    RELEASES_MAX,
    YOUNG_STAGE_MS,
    Crashed,
    Dead,
    Failure,
    Hold,
    LaneDown,
    Later,
    Orphaned,
    Overdue,
    Raised,
    Result,
    Retry,
    Stopped,
    Unserved,
    describe,
    hold_delay_ms,
)
from perdure.errors import (
    DependencyDown,
    Flickering,
    Permanent,
    RateLimited,
    Rescheduled,
    RetryLater,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    Transient,
)
from tests.core.jobs import FIRST, HOUR_MS, LAST, UNSTARTED, dead, decide, later, live, raised, retry

# --- its dependency is away ------------------------------------------------------------------


def test_a_lane_that_is_down_holds_and_names_stage_and_lane() -> None:
    assert decide(LAST, LaneDown("embed", "openai")) == Hold("stage embed needs openai, which is down")


def test_a_dependency_that_is_down_holds_even_the_last_attempt() -> None:
    decided = decide(LAST, raised(DependencyDown("openai"), lane_down=True))
    assert isinstance(decided, Hold)
    assert decided.failure is not None
    assert decided.failure.code == "dependency_down"
    assert "openai" in decided.why


@pytest.mark.parametrize(("drawn", "delay_ms"), [(0.0, 150_000), (0.999_999, 299_999)])
def test_a_dependency_only_this_stage_calls_down_is_tried_again_in_minutes(
    drawn: float, delay_ms: int
) -> None:
    decided = decide(FIRST, raised(DependencyDown("openai")), drawn)
    assert isinstance(decided, Later)
    assert decided.delay_ms == delay_ms
    assert decided.failure is not None
    assert decided.failure.code == "dependency_down"


def test_a_doubtful_outage_uses_up_neither_the_last_attempt_nor_anything_else() -> None:
    decided = later(LAST, raised(DependencyDown("openai")))
    assert (decided.counted, decided.bounded) == (False, False)
    assert decided.delay_ms == 225_000


@pytest.mark.parametrize("job", [FIRST, LAST])
def test_a_confirmed_outage_holds_whether_or_not_the_store_knows_of_it_yet(job: Job) -> None:
    error = DependencyDown("openai", "its breaker is open", confirmed=True)
    assert decide(job, raised(error)) == Hold("its breaker is open", describe("extract", error))


def test_our_own_limiter_is_not_counted_and_never_cut_short() -> None:
    job = replace(FIRST, postpones=100)
    decided = later(job, raised(RateLimited(delay_s=90.5, ours=True)))
    assert (decided.delay_ms, decided.counted) == (90_500, False)
    assert later(job, raised(RateLimited(delay_s=0.01, ours=True))).delay_ms == 1_000
    assert isinstance(decide(job, raised(RateLimited(delay_s=90.5))), Dead)


def test_rescheduled_is_charged_and_called_by_its_name() -> None:
    decided = retry(FIRST, raised(Rescheduled("openai failed 4 times")))
    assert (decided.word, decided.delay_ms) == ("rescheduled", 300_000)
    assert decided.why == "rescheduled after attempt 1 of 3"
    assert dead(LAST, raised(Rescheduled("again"))).failure.code == "rescheduled"


def test_a_worker_that_does_not_know_the_pipeline_costs_the_document_nothing() -> None:
    decided = decide(replace(LAST, suspect=True), Unserved("extract", "pipeline books is not served here"))
    assert decided == Hold("pipeline books is not served here", suspect=True, aside=True)


@pytest.mark.parametrize(
    ("holds", "delay_ms"), [(0, 2_000), (1, 4_000), (7, 256_000), (8, 300_000), (10**6, 300_000)]
)
def test_a_hold_in_a_lane_that_is_up_cannot_spin(holds: int, delay_ms: int) -> None:
    assert hold_delay_ms(holds) == delay_ms


@pytest.mark.parametrize("error", [ValueError("x"), Transient("x")])
def test_other_errors_do_not_hold_because_the_lane_is_down(error: Exception) -> None:
    assert isinstance(decide(FIRST, raised(error, lane_down=True)), Retry)


# --- given back ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "delay_ms", "code"),
    [
        (RetryLater("x"), 60_000, "retry_later"),
        (RetryLater("x", delay_s=300), 300_000, "retry_later"),
        (RateLimited("x", delay_s=7.5), 7_500, "rate_limited"),
        (RetryLater("x", delay_s=0), LATER_MS_MIN, "retry_later"),
        (RetryLater("x", delay_s=-5), LATER_MS_MIN, "retry_later"),
    ],
)
@pytest.mark.parametrize("job", [FIRST, LAST])
def test_asked_to_come_later_costs_no_attempt(job: Job, error: RetryLater, delay_ms: int, code: str) -> None:
    decided = later(job, raised(error))
    assert decided.delay_ms == delay_ms
    assert not decided.released
    assert decided.failure is not None
    assert decided.failure.code == code


@pytest.mark.parametrize("job", [FIRST, LAST])
def test_an_orphan_is_claimed_again_at_once_uncharged_and_suspect(job: Job) -> None:
    decided = later(job, Orphaned("extract", "SIGKILL"))
    assert (decided.delay_ms, decided.suspect, decided.released) == (0, True, False)
    assert decided.failure is not None
    assert decided.failure.code == "worker_lost"
    assert "SIGKILL" in decided.why


def test_an_orphan_that_cannot_be_to_blame_is_no_suspect() -> None:
    assert not later(FIRST, Orphaned("extract", "SIGKILL", blame=False)).suspect


@pytest.mark.parametrize(
    "result",
    [
        Orphaned("extract", "SIGKILL", blame=False),
        raised(RetryLater("x")),
        Stopped("extract", progressed=True, stage_age_ms=0),
    ],
    ids=["orphaned", "later", "stopped"],
)
def test_a_suspect_that_was_given_back_is_still_one(result: Result) -> None:
    assert later(replace(FIRST, suspect=True), result).suspect


@pytest.mark.parametrize("result", [raised(RetryLater("x")), Orphaned("x", "lost", blame=False)])
def test_what_crashed_once_stays_alone_when_given_back(result: Result) -> None:
    assert later(replace(FIRST, crashes=1, suspect=True), result).suspect


@pytest.mark.parametrize("result", [raised(OSError("x")), Overdue("extract", "no_progress", "x")])
def test_a_suspect_that_failed_in_another_way_is_still_one(result: Result) -> None:
    assert retry(replace(FIRST, suspect=True), result).suspect


@pytest.mark.parametrize("result", [LaneDown("embed", "openai"), raised(DependencyDown("x"), lane_down=True)])
def test_a_suspect_that_is_held_is_still_one(result: Result) -> None:
    decided = decide(replace(FIRST, suspect=True), result)
    assert isinstance(decided, Hold)
    assert decided.suspect


def test_the_first_death_of_a_worker_counts_towards_nothing() -> None:
    assert not later(FIRST, Orphaned("extract", "SIGKILL")).counted
    assert later(replace(FIRST, suspect=True), Orphaned("extract", "SIGKILL")).counted


def test_a_lost_lease_nobody_is_to_blame_for_is_counted_lest_it_go_on_for_ever() -> None:
    assert later(FIRST, Orphaned("extract", "lease ran out", blame=False)).counted


@pytest.mark.parametrize("error", [StoreUnavailable("x"), StoreBusy("x")])
def test_a_store_that_was_away_costs_no_attempt(error: StoreError) -> None:
    assert later(LAST, raised(error)).delay_ms >= LATER_MS_MIN


@pytest.mark.parametrize("error", [RetryLater("x", delay_s=0), StoreUnavailable("x")])
def test_the_bound_on_postpones_is_hours_away_however_short_the_waits(error: Exception) -> None:
    life = live(UNSTARTED, [raised(error)], POLICY_DEFAULT.postpones_max)
    assert all(isinstance(each, Later) for each in life.decided)
    assert life.job.postponed_ms > 2 * HOUR_MS


GIVES_BACK = [
    pytest.param(raised(RetryLater("x")), id="later"),
    pytest.param(raised(StoreUnavailable("x")), id="store away"),
    pytest.param(Orphaned("extract", "SIGKILL"), id="orphaned"),
    pytest.param(Stopped("extract", True, 0), id="stopped"),
]


@pytest.mark.parametrize("result", GIVES_BACK)
def test_nothing_is_given_back_more_often_than_allowed(result: Result) -> None:
    job = replace(FIRST, policy=Policy(postpones_max=2), suspect=True)
    assert isinstance(decide(replace(job, postpones=1), result), Later)
    decided = dead(replace(job, postpones=2, crashes=1), result)
    assert decided.failure.code == "postpones_exhausted"
    assert (decided.charged, decided.crashes) == (False, 1)
    assert "2 times" in decided.why


def test_nothing_waits_longer_than_its_age_allows() -> None:
    job = replace(FIRST, policy=Policy(age_max_ms=HOUR_MS), postponed_ms=HOUR_MS - 60_000)
    assert later(job, raised(RetryLater("x", delay_s=60))).delay_ms == 60_000
    decided = dead(job, raised(RetryLater("x", delay_s=61)))
    assert decided.failure.code == "age_exceeded"
    assert not decided.charged


def test_a_charged_wait_is_bounded_by_the_age_too() -> None:
    job = replace(FIRST, policy=Policy(age_max_ms=HOUR_MS))
    assert dead(job, raised(Transient("x", retry_after_s=3_601))).failure.code == "age_exceeded"


# --- crashes ---------------------------------------------------------------------------------


def test_a_crash_alone_is_charged_and_runs_alone_again() -> None:
    decided = retry(FIRST, Crashed("extract", "SIGSEGV"))
    assert (decided.delay_ms, decided.crashes, decided.suspect) == (2_000, 1, True)
    assert decided.failure == Failure("extract", "Crashed", "crashed:SIGSEGV", "killed: SIGSEGV")


@pytest.mark.parametrize("reason", ["SIGSEGV", "SIGKILL", "memory_exceeded"])
def test_the_second_crash_quarantines_though_attempts_remain(reason: str) -> None:
    job = replace(FIRST, attempts=2, attempts_max=9, policy=Policy(attempts=9), crashes=CRASHES_MAX - 1)
    decided = dead(job, Crashed("extract", reason, "gone"))
    assert decided.failure == Failure("extract", "Crashed", f"crashed:{reason}", "gone")
    assert (decided.crashes, decided.charged) == (2, True)


def test_a_crash_in_the_last_attempt_is_dead_as_a_crash() -> None:
    decided = dead(LAST, Crashed("extract", "SIGBUS"))
    assert decided.failure.code == "crashed:SIGBUS"
    assert decided.crashes == 1


@pytest.mark.parametrize("reason", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_that_people_send_is_no_proof(reason: str) -> None:
    assert retry(replace(FIRST, crashes=1), Crashed("extract", reason)).crashes == 1


def test_other_failures_neither_add_nor_forget_crashes() -> None:
    job = replace(FIRST, crashes=1)
    assert retry(job, raised(OSError("x"))).crashes == 1
    assert retry(job, raised(OSError("x"))).suspect
    assert dead(replace(job, attempts=3), raised(OSError("x"))).crashes == 1
    assert dead(job, raised(Permanent("x"))).crashes == 1


# --- shutdown --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("progressed", "age_ms", "fair"),
    [
        (True, 10 * HOUR_MS, True),
        (False, YOUNG_STAGE_MS - 1, True),
        (False, YOUNG_STAGE_MS, False),
    ],
)
def test_a_shutdown_gives_back_what_got_on_or_was_young(progressed: bool, age_ms: int, fair: bool) -> None:
    decided = decide(FIRST, Stopped("extract", progressed, age_ms))
    if fair:
        assert decided == Later(0, "worker stopped", released=True)
    else:
        assert isinstance(decided, Retry)
        assert decided.failure.code == "worker_stopped"


def test_a_shutdown_gives_back_five_times() -> None:
    stopped = Stopped("extract", True, 0)
    assert isinstance(decide(replace(FIRST, releases=RELEASES_MAX - 1), stopped), Later)
    assert isinstance(decide(replace(FIRST, releases=RELEASES_MAX), stopped), Retry)


@pytest.mark.parametrize("releases", [0, RELEASES_MAX])
def test_no_shutdown_buries_a_document(releases: int) -> None:
    stopped = Stopped("extract", progressed=False, stage_age_ms=HOUR_MS)
    assert later(replace(LAST, releases=releases), stopped).counted


# --- its service fails now and then ----------------------------------------------------------


def flickered(chance: float, progressed: bool = False, asked_s: float = 0.0) -> Raised:
    return Raised("embed", Flickering("503", asked_s=asked_s, chance=chance), progressed=progressed)


@pytest.mark.parametrize("job", [FIRST, LAST])
def test_an_accident_puts_off_for_seconds_and_costs_nothing(job: Job) -> None:
    decided = later(job, flickered(0.06))
    assert (decided.delay_ms, decided.counted, decided.bounded, decided.afresh) == (
        2_000,
        False,
        False,
        False,
    )
    assert decided.failure is not None
    assert decided.failure.code == "flickering"


def test_a_call_that_fails_alone_is_charged_at_once() -> None:
    decided = retry(FIRST, flickered(1e-7))
    assert (decided.word, decided.delay_ms) == ("rescheduled", 300_000)


@pytest.mark.parametrize(("failing", "times"), [(0.05, 1), (0.35, 3), (0.5, 4), (0.8, 15), (0.99, 343)])
def test_a_poisonous_input_is_charged_when_chance_explains_it_no_longer(failing: float, times: int) -> None:
    job = FIRST
    while isinstance(decided := decide(job, flickered(failing**4)), Later):
        assert 1_000 <= decided.delay_ms <= 10_000
        job = replace(job, flickers=job.flickers + decided.flickered)
    assert isinstance(decided, Retry)
    assert job.flickers == times


def test_whoever_got_on_begins_to_count_again() -> None:
    tired = replace(FIRST, flickers=99)
    assert later(tired, flickered(0.4, progressed=True)).afresh
    assert isinstance(decide(tired, flickered(0.4)), Retry)


def test_a_service_that_asked_for_a_minute_gets_it() -> None:
    assert later(FIRST, flickered(1.0, asked_s=60.0)).delay_ms == 60_000


def test_a_service_that_answers_nobody_charges_nobody_however_long_it_goes_on() -> None:
    decided = later(replace(FIRST, flickers=10_000), flickered(1.0))
    assert decided.delay_ms == 10_000


def test_accidents_and_waits_that_were_asked_for_do_not_count_for_each_other() -> None:
    patient, unlucky = replace(FIRST, postpones=99), replace(FIRST, flickers=19)
    assert later(patient, flickered(0.06)).delay_ms == 2_000
    assert later(unlucky, raised(RateLimited(delay_s=3.0))).delay_ms == 3_000


def test_a_document_that_saved_something_is_not_put_off_longer_and_longer() -> None:
    tired = replace(FIRST, postpones=99)
    decided = later(tired, Raised("embed", RateLimited(delay_s=3.0), progressed=True))
    assert (decided.delay_ms, decided.afresh) == (3_000, True)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("one", "two", "delay_ms"),
    [
        (Flickering("503", asked_s=40.0), Flickering("503", asked_s=3.0), 40_000),
        (Flickering("503", asked_s=40.0), RateLimited(delay_s=1.0), 40_000),
        (Transient("busy", retry_after_s=400.0), RetryLater(delay_s=1.0), 400_000),
        (RateLimited(delay_s=2.0, ours=True), RetryLater(delay_s=30.0), 30_000),
        (Transient("busy", retry_after_s=400.0), ValueError("odd"), 400_000),
    ],
)
def test_of_several_errors_the_longest_wait_counts(
    one: Exception, two: Exception, delay_ms: int, turned: bool
) -> None:
    group = ExceptionGroup("calls", [two, one] if turned else [one, two])
    decided = decide(FIRST, raised(group))
    assert isinstance(decided, Later | Retry)
    assert decided.delay_ms == delay_ms


def test_an_accident_does_not_excuse_another_failure() -> None:
    group = ExceptionGroup("calls", [Flickering("503"), ValueError("odd")])
    assert isinstance(decide(FIRST, raised(group)), Retry)


def test_our_own_limiter_kills_nobody_however_long_it_goes_on() -> None:
    old = replace(FIRST, postpones=10_000, postponed_ms=POLICY_DEFAULT.age_max_ms)
    decided = later(old, raised(RateLimited(delay_s=3.0, ours=True)))
    assert (decided.counted, decided.bounded) == (False, False)
