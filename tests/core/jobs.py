"""A job to try the rules on, and what a store would make of each outcome."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import cycle

from perdure.core.model import POLICY_DEFAULT, Job, Policy
from perdure.core.outcome import Dead, Done, Gather, Hold, Later, Outcome, Raised, Result, Retry, outcome

HOUR_MS = 3_600_000
UNSTARTED = Job(
    id=1, org="o", key="doc-1", document_id="1", pipeline="p", queue="documents", lane="", stage="extract", token=9,
    generation=1, attempts=0, claims=0, postpones=0, releases=0, crashes=0, postponed_ms=0, suspect=False,
    attempts_max=3, policy=POLICY_DEFAULT, claimed_ms=0, lease_ms=30_000,
)  # fmt: skip
FIRST = replace(UNSTARTED, attempts=1, claims=1)
LAST = replace(UNSTARTED, attempts=3, claims=3)


def decide(job: Job, result: Result, drawn: float = 0.5) -> Outcome:
    """The outcome, with one number on every die."""
    return outcome(job, result, lambda: drawn)


def raised(error: BaseException, *, lane_down: bool = False, policy: Policy | None = None) -> Raised:
    """A stage `extract` that raised."""
    return Raised("extract", error, lane_down, policy)


def retry(job: Job, result: Result) -> Retry:
    """The outcome, which must be a Retry."""
    decided = decide(job, result)
    assert isinstance(decided, Retry)
    return decided


def later(job: Job, result: Result) -> Later:
    """The outcome, which must be a Later."""
    decided = decide(job, result)
    assert isinstance(decided, Later)
    return decided


def dead(job: Job, result: Result) -> Dead:
    """The outcome, which must be Dead."""
    decided = decide(job, result)
    assert isinstance(decided, Dead)
    return decided


def claimed(job: Job) -> Job:
    """What a claim writes."""
    return replace(job, attempts=job.attempts + 1, claims=job.claims + 1)


def after(job: Job, decided: Outcome) -> Job:
    """What a settled outcome leaves behind."""
    match decided:
        case Retry():
            return replace(job, crashes=decided.crashes, suspect=decided.suspect, flickers=0)
        case Later():
            return replace(
                job,
                attempts=job.attempts - 1,
                postpones=(0 if decided.afresh else job.postpones) + decided.counted,
                flickers=(0 if decided.afresh else job.flickers) + decided.flickered,
                postponed_ms=job.postponed_ms + decided.delay_ms * decided.bounded,
                releases=job.releases + decided.released,
                suspect=decided.suspect,
            )
        case Gather():
            return replace(job, attempts=job.attempts - 1, suspect=decided.suspect)
        case Hold():
            return replace(job, attempts=job.attempts - 1, holds=job.holds + 1, suspect=decided.suspect)
        case Dead(charged=charged):
            return replace(job, attempts=job.attempts - (not charged), crashes=decided.crashes)
        case Done():
            return job


@dataclass(frozen=True)
class Life:
    """How a job ended, and what was decided on the way."""

    job: Job
    decided: list[Outcome]
    attempts_seen: int


def live(job: Job, results: list[Result], claims_max: int) -> Life:
    """Claim and settle, meeting `results` over and over, until an end or `claims_max` claims."""
    decided: list[Outcome] = []
    attempts_seen = 0
    for result, _ in zip(cycle(results), range(claims_max), strict=False):
        job = claimed(job)
        attempts_seen = max(attempts_seen, job.attempts)
        decided.append(outcome(job, result))
        job = after(job, decided[-1])
        if isinstance(decided[-1], Done | Dead):
            break
    return Life(job, decided, attempts_seen)
