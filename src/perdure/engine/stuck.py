"""The stuck sweep: finds the jobs that do not get on although workers had every chance, and does something about each.

    requeue     it is made due at once; one that another service never answered is charged, and its event goes out again
    skip        it was tried lately, or is in hand of somebody who tries: its backoff is not over
    bury        it has no attempt left

Run by the sweeping leader and by `perdure sweep`. All jobs are looked at, a page at a time in the order of their key;
each change is guarded by how the job was found, so a sweep that is killed is finished by the next, and of two at once
only one changes a job.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from perdure.core.events import Events, StuckSwept
from perdure.core.outcome import Dead, Failure, Orphaned, Outcome, Retry, outcome
from perdure.core.stuck import StuckPolicy
from perdure.core.token import new_token
from perdure.engine.recovery import take_back, taking_back, unanswered
from perdure.errors import StoreBusy, StoreUnavailable
from perdure.settings import Settings
from perdure.store.base import Store
from perdure.store.operations import Settle
from perdure.store.stuck import Page, Run, StuckJob, exhausts

PAGE = 2_000
BATCH = 200
ATTEND_S = 30.0
OVERDUE = 3  # intervals without a sweep
PROBLEMS_MAX = 20
T = TypeVar("T")


def policy_of(settings: Settings) -> StuckPolicy:
    """The policy that the settings ask for."""
    collections = ("archives", "messages", "chunks", "threads")
    return StuckPolicy(
        settings.retry_job_interval_seconds,
        round(settings.retry_job_stuck_threshold_hours * 3_600_000),
        round(settings.retry_job_base_delay_seconds * 1000),
        round(settings.retry_job_max_delay_seconds * 1000),
        {name: getattr(settings, f"retry_job_max_attempts_{name}") for name in collections},
    )


@dataclass(slots=True)
class StuckRun:
    """What one stuck sweep found and did, by collection; `problems` tells of jobs that could not be handled."""

    stuck: Counter[str] = field(default_factory=Counter)
    starved: Counter[str] = field(default_factory=Counter)
    requeued: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    buried: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    since_ms: int | None = None  # of the one that is stuck for longest
    looked_at: int = 0
    duration_ms: int = 0
    broken: bool = False  # it did not come to its end

    @property
    def status(self) -> str:
        return "failure" if self.broken else "partial" if self.errors else "success"

    def failed(self, where: str, error: BaseException) -> None:
        """Count what went wrong and go on."""
        self.errors[type(error).__name__] += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(f"{where}: {type(error).__name__}: {error}")


class StuckSweep:
    """Looks for what is stuck in the whole store, whoever it belongs to."""

    def __init__(self, store: Store, events: Events, policy: StuckPolicy | None = None) -> None:
        self.store = store
        self.events = events
        self.policy = policy or StuckPolicy()
        self._attended_s = -1e9

    async def tick(self, monotonic_s: float) -> StuckRun | None:
        """Keep what has to be kept about queues and lanes, and sweep if the last one is long enough ago."""
        if monotonic_s - self._attended_s < min(ATTEND_S, self.policy.interval_s):
            return None
        self._attended_s = monotonic_s
        now_ms, ran_ms = await self.store.attend()
        return await self.run() if self.policy.due(ran_ms, now_ms) else None

    async def run(
        self,
        told: Callable[[StuckRun], None] = lambda _: None,
        problems: Sequence[tuple[str, Exception]] = (),
    ) -> StuckRun | None:
        """One sweep, which tells after each page how far it is; None while another one is at work. `problems` of what
        ran with it are counted as its own."""
        alone = await self.store.lead_stuck()
        if not alone and not await self._neglected():
            return None
        try:
            run = await self._run(told, problems)
        finally:
            if alone:
                await self.store.leave_stuck()
        return run

    async def _neglected(self) -> bool:
        """Whether the one who has the lock seems to stand still."""
        now_ms, ran_ms = await self.store.attend()
        return ran_ms > 0 and now_ms - ran_ms >= OVERDUE * self.policy.interval_s * 1000

    async def _run(
        self, told: Callable[[StuckRun], None], problems: Sequence[tuple[str, Exception]]
    ) -> StuckRun:
        run, began_s = StuckRun(), time.monotonic()
        for where, problem in problems:
            run.failed(where, problem)
        try:
            now_ms, _ = await self.store.attend()
            after: tuple[str, int] | None = ("", 0)
            while after is not None:
                page = await self.store.stuck(after, PAGE, now_ms - self.policy.threshold_ms, now_ms)
                await self._handle(run, page, now_ms)
                run.looked_at += page.size
                after = page.after
                told(run)
        except Exception as error:
            run.broken = True
            run.failed("the sweep ended early", error)
        run.duration_ms = round((time.monotonic() - began_s) * 1000)
        found = dict(run.stuck), dict(run.starved)
        done = dict(run.requeued), dict(run.skipped), dict(run.buried), dict(run.errors)
        try:
            await self.store.record_run(
                Run(run.status, run.duration_ms, dict(run.errors), *found, run.since_ms)
            )
        finally:  # one that failed because the store is away is told of as well
            self.events.publish(
                StuckSwept(run.status, *found, *done, run.since_ms, tuple(run.problems), run.duration_ms)
            )
        return run

    async def _handle(self, run: StuckRun, page: Page, now_ms: int) -> None:
        run.starved.update(page.starved)
        run.stuck.update(one.collection for one in page.stuck)
        run.since_ms = min(
            [*filter(None, [run.since_ms]), *(one.since_ms for one in page.stuck)], default=None
        )
        for id_, error in page.bad:
            run.failed(f"job {id_} cannot be read", error)
        again: list[StuckJob] = []
        skipped: Counter[str] = Counter()
        settles: list[tuple[StuckJob, Settle]] = []
        for one in page.stuck:
            try:
                decided = self._decide(one, now_ms)
            except Exception as error:  # whatever it is that somebody else wrote there
                run.failed(f"document {one.job.document_id}", error)
                continue
            if isinstance(decided, Settle):
                settles.append((one, decided))
            elif decided == "requeue":
                again.append(one)
            else:
                skipped[one.collection] += 1
        run.skipped += skipped
        for batch in _batches(again):
            await self._requeue(run, batch, skipped)
            skipped = Counter()
        if skipped:
            await self.store.requeue_stuck([], skipped)
        for pairs in _batches(settles):
            await self._settle(run, pairs)
        if again or settles:
            self.store.wake_soon()

    # --- one job ---------------------------------------------------------------------------------

    def _decide(self, one: StuckJob, now_ms: int) -> Settle | str:
        job = one.job
        attempts_max = self.policy.attempts_of(one.collection, job.attempts_max)
        if one.state == "running":
            return "skip" if one.unpublished else self._overdue(one, attempts_max)
        last_ms = max(one.requeued_ms or 0, job.claimed_ms if job.attempts and job.claimed_ms else 0)
        verdict = self.policy.verdict(job.attempts, attempts_max, one.requeues, last_ms, now_ms)
        if verdict == "bury":
            return self._burial(one, attempts_max, now_ms)
        # what waits in its queue only needs a worker: requeued, it would lose its place
        return "skip" if one.state in ("queued", "parked") else verdict

    def _overdue(self, one: StuckJob, attempts_max: int) -> Settle:
        """A claim that nobody ended: another service had its chance, or a worker is gone that nobody missed."""
        result = unanswered(one.job)
        if result is None:
            ending = outcome(one.job, Orphaned(one.job.stage, "lease expired long ago"))
            return _requeued(one, ending, expired_only=True)
        policy = result.policy or one.job.policy
        result = replace(result, policy=replace(policy, attempts=min(policy.attempts, attempts_max)))
        ending = outcome(one.job, result)
        if isinstance(ending, Retry):  # it has waited for longer than that
            ending = replace(ending, delay_ms=0)
        return _requeued(one, ending)

    def _burial(self, one: StuckJob, attempts_max: int, now_ms: int) -> Settle:
        job = replace(
            one.job, token=new_token(), worker=0, claims=one.job.claims + 1, claimed_ms=now_ms
        )  # fmt: skip
        why = f"stuck with {job.attempts} of {attempts_max} attempts made"
        failure = Failure(job.stage, "Stuck", "stuck", why)
        ending = Dead(failure, why, crashes=job.crashes, exhausted=True)
        return replace(taking_back(job, ending), seized=True)

    # --- writing ---------------------------------------------------------------------------------

    async def _requeue(self, run: StuckRun, jobs: Sequence[StuckJob], skipped: Counter[str]) -> None:
        """In one transaction; if that cannot be written, one by one."""
        try:
            taken = await self.store.requeue_stuck(jobs, skipped)
        except (StoreBusy, StoreUnavailable):
            raise
        except Exception as error:
            if len(jobs) == 1:
                run.failed(f"document {jobs[0].job.document_id}", error)
                return
            for n, one in enumerate(jobs):
                await self._requeue(run, [one], skipped if n == 0 else Counter())
            return
        run.requeued.update(one.collection for one in taken)

    async def _settle(self, run: StuckRun, pairs: Sequence[tuple[StuckJob, Settle]]) -> None:
        answers = await take_back(self.store, self.events, [settle for _, settle in pairs], "stuck")
        for (one, settle), answer in zip(pairs, answers, strict=True):
            if isinstance(answer, BaseException):
                run.failed(f"document {one.job.document_id}", answer)
            elif answer and exhausts(settle):
                run.buried[one.collection] += 1
            elif answer and not isinstance(settle.outcome, Dead):
                run.requeued[one.collection] += 1


def _requeued(one: StuckJob, ending: Outcome, expired_only: bool = False) -> Settle:
    """Counted as requeued, unless it is dead."""
    settle = taking_back(one.job, ending, expired_only)
    return settle if isinstance(ending, Dead) else replace(settle, requeued=one.collection)


def _batches(all_: Sequence[T]) -> Iterable[Sequence[T]]:
    return (all_[n : n + BATCH] for n in range(0, len(all_), BATCH))
