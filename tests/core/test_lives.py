"""Whole lives of jobs: whatever happens, in whatever order, the counters keep their bounds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.core.model import Job, Policy
from perdure.core.outcome import (
    CRASHES_MAX,
    RELEASES_MAX,
    YOUNG_STAGE_MS,
    Crashed,
    Dead,
    Done,
    Failure,
    Finished,
    Hold,
    LaneDown,
    Later,
    Orphaned,
    Outcome,
    Overdue,
    Raised,
    Result,
    Retry,
    Stopped,
    Unserved,
    outcome,
)
from perdure.errors import DependencyDown, Permanent, RetryLater, StoreUnavailable, Transient
from tests.core.jobs import HOUR_MS, UNSTARTED, Life, claimed, live

stages = st.sampled_from(["fetch", "extract", "embed"])
policies = st.builds(
    Policy,
    attempts=st.integers(1, 6),
    base_ms=st.integers(0, 10_000),
    jitter=st.booleans(),
    postpones_max=st.integers(0, 8),
    age_max_ms=st.sampled_from([0, 5_000, HOUR_MS, 7 * 24 * HOUR_MS]),
)
errors: st.SearchStrategy[BaseException] = st.one_of(
    st.builds(ValueError, st.text(max_size=20)),
    st.builds(asyncio.CancelledError),
    st.builds(Permanent, st.sampled_from(["empty", "bad"])),
    st.builds(Transient, st.text(max_size=5), retry_after_s=st.none() | st.floats(0, 10**6)),
    st.builds(RetryLater, st.text(max_size=5), delay_s=st.floats(0, 10**5)),
    st.builds(StoreUnavailable, st.just("x")),
)
counted: list[st.SearchStrategy[Result]] = [
    st.builds(Raised, stages, errors, st.just(False), st.none() | policies),
    st.builds(Crashed, stages, st.sampled_from(["SIGSEGV", "memory_exceeded"])),
    st.builds(
        Overdue, stages, st.sampled_from(["stage_timeout", "no_progress"]), st.just("x"), st.none() | policies
    ),
    st.builds(Orphaned, stages, st.just("SIGKILL"), st.booleans()),
    st.builds(Stopped, stages, st.booleans(), st.integers(0, 2 * YOUNG_STAGE_MS)),
]
held: list[st.SearchStrategy[Result]] = [
    st.builds(LaneDown, stages, st.just("openai")),
    st.builds(Unserved, stages, st.just("not served here")),
    st.builds(Raised, stages, st.builds(DependencyDown, st.just("openai")), st.booleans()),
]
jobs = policies.map(lambda policy: replace(UNSTARTED, attempts_max=policy.attempts, policy=policy))


#: The first death of a worker makes a suspect and counts towards nothing; all later ones count.
FREE_ORPHANINGS = 1


@example(UNSTARTED, [Orphaned("extract", "lease ran out", blame=False)])
@example(UNSTARTED, [Orphaned("extract", "SIGKILL")])
@example(UNSTARTED, [Stopped("extract", progressed=True, stage_age_ms=0)])
@given(jobs, st.lists(st.one_of(*counted), min_size=1, max_size=12))
def test_whatever_happens_claims_are_bounded_and_the_job_ends(job: Job, results: list[Result]) -> None:
    bound = job.attempts_max + job.policy.postpones_max + FREE_ORPHANINGS
    life = live(job, results, bound + 1)
    assert isinstance(life.decided[-1], Dead)
    assert life.job.claims == len(life.decided) <= bound


def outage(decided: Outcome) -> bool:
    """Whether it waits for a dependency: held, or tried again because its stage alone calls the dependency down."""
    return isinstance(decided, Hold) or (
        isinstance(decided, Later) and not decided.counted and not decided.bounded
    )


@given(jobs, st.lists(st.one_of(*counted, *held, st.builds(Finished)), min_size=1, max_size=12))
def test_whatever_happens_no_counter_leaves_its_bounds(job: Job, results: list[Result]) -> None:
    life = live(job, results, 60)
    assert life.attempts_seen <= job.attempts_max
    assert 0 <= life.job.attempts <= job.attempts_max
    assert life.job.postpones <= job.policy.postpones_max
    assert life.job.postponed_ms <= job.policy.age_max_ms
    assert life.job.releases <= max(RELEASES_MAX, job.policy.postpones_max)
    assert life.job.crashes <= CRASHES_MAX
    holds = sum(outage(each) for each in life.decided)
    assert life.job.claims <= job.attempts_max + job.policy.postpones_max + FREE_ORPHANINGS + holds


@given(jobs, st.lists(st.one_of(*counted, *held), min_size=1, max_size=12))
def test_attempts_are_exactly_the_charged_claims(job: Job, results: list[Result]) -> None:
    life = live(job, results, 60)
    charged = [d for d in life.decided if isinstance(d, Retry) or (isinstance(d, Dead) and d.charged)]
    assert life.job.attempts == len(charged)


@given(jobs, st.lists(st.one_of(*held), min_size=1, max_size=4), st.integers(1, 300))
def test_an_outage_of_any_length_kills_nothing_and_costs_nothing(
    job: Job, results: list[Result], n: int
) -> None:
    life = live(job, results, n)
    assert all(outage(each) for each in life.decided)
    assert replace(life.job, claims=0, holds=0) == job


@given(jobs, st.lists(st.builds(Orphaned, stages, st.just("SIGKILL"), st.booleans()), min_size=1, max_size=6))
def test_the_death_of_workers_is_never_charged(job: Job, results: list[Result]) -> None:
    life = live(job, results, 60)
    assert life.job.attempts == 0
    assert life.decided[-1] == replace(dead_of(life), charged=False, crashes=0)


def dead_of(life: Life) -> Dead:
    last = life.decided[-1]
    assert isinstance(last, Dead)
    return last


@given(jobs, st.lists(st.one_of(*counted), min_size=1, max_size=12))
@settings(max_examples=50)
def test_two_crashes_in_one_generation_always_end_it(job: Job, results: list[Result]) -> None:
    life = live(job, [*results, Crashed("extract", "SIGSEGV")], 60)
    crashes = [i for i, d in enumerate(life.decided) if isinstance(d, Retry | Dead) and crashed(d.failure)]
    assert len(crashes) <= CRASHES_MAX
    if len(crashes) == CRASHES_MAX:
        assert crashes[-1] == len(life.decided) - 1


def crashed(failure: Failure) -> bool:
    return failure.code.startswith("crashed:")


@given(jobs, st.one_of(*counted, *held))
def test_every_decision_says_why(job: Job, result: Result) -> None:
    decided = outcome(claimed(job), result)
    assert not isinstance(decided, Done)
    assert decided.why
    if isinstance(decided, Retry | Dead):
        assert decided.failure.message
        assert decided.failure.stage
        assert decided.failure.code
