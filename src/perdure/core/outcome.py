"""What becomes of a job: pure `(job, result, now) → Done | Retry | Later | Hold | Gather | Dead`.

The worker and the sweeper both decide here, so a document that dies with its worker ends exactly like one whose stage
raised. Whoever decides writes the answer in one transaction guarded by the job's token.
"""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable
from dataclasses import field, replace

from perdure.core.backoff import DELAY_MS_MAX
from perdure.core.fingerprint import failure_fingerprint
from perdure.core.frozen import frozen
from perdure.core.lane import uses_of
from perdure.core.model import Job, Policy
from perdure.core.refusal import refused
from perdure.core.traces import place_of, traced
from perdure.errors import (
    DependencyDown,
    Flickering,
    PerdureError,
    Permanent,
    RateLimited,
    Rescheduled,
    RetryLater,
    SettingInvalid,
    StoreBusy,
    StoreUnavailable,
    Transient,
    Unstorable,
)

RELEASES_MAX = 5
CRASHES_MAX = 2
YOUNG_STAGE_MS = 60_000
LATER_MS_MIN = 1_000
LATER_MS_GROWN_MAX = 900_000
RESCHEDULE_MS = 300_000
#: A call is taken for one that always fails when chance explains its failures no better than this, where a run of a
#: stage fails by chance no more often than that, however rarely the service answers.
ACCIDENT, ACCIDENTS_MOST = 1e-6, 0.98
#: A document that such a call puts off waits at most so long.
FLICKER_MS_MAX = 10_000
MESSAGE_MAX = 4_000
#: Letters of a traceback that are kept.
#: Signals that people and service managers send; a process that dies of one proves nothing about its document.
POLITE_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGHUP"})


@frozen
class Failure:
    """Why an attempt ended badly, in the words that history, logs and groups share."""

    stage: str
    error_type: str
    code: str
    message: str
    status_code: int | None = None
    place: str | None = None  # where an exception that is not ours was raised
    dependency: str | None = None  # what was called, where the error names it
    traceback: str | None = field(default=None, compare=False)  # of what a job died of

    @property
    def fingerprint(self) -> str:
        return failure_fingerprint(self.stage, self.error_type, self.message, self.dependency)


# --- results: what happened to a claim -------------------------------------------------------


@frozen
class Finished:
    """Every stage is saved."""


@frozen
class Raised:
    """Stage code raised. `lane_down` says whether the shared state agrees that its dependency is away."""

    stage: str
    error: BaseException
    lane_down: bool = False
    policy: Policy | None = None  # the stage's own, where it differs from the job's
    progressed: bool = False  # whether something was saved since the claim


@frozen
class Crashed:
    """The process that ran this document alone was killed (`reason` e.g. SIGSEGV, memory_exceeded)."""

    stage: str
    reason: str
    message: str = ""
    policy: Policy | None = None


@frozen
class Overdue:
    """A stage passed its hard timeout (`stage_timeout`) or showed no progress (`no_progress`). `alone`: its document
    was a suspect and ran by itself, which is proof as a crash is."""

    stage: str
    code: str
    message: str
    policy: Policy | None = None
    alone: bool = False


@frozen
class Orphaned:
    """Its worker died or lost the lease; nobody knows whose fault that was. `blame`: stage code may have caused it."""

    stage: str
    reason: str
    blame: bool = True


@frozen
class Stopped:
    """The worker was asked to stop before the job ended."""

    stage: str
    progressed: bool
    stage_age_ms: int


@frozen
class LaneDown:
    """The next stage needs a dependency that is down, or (`limited`) has a limit that the job has not passed yet."""

    stage: str
    lane: str
    limited: bool = False


@frozen
class Outgrown:
    """What a stage fetched is large, and the job holds the slot of a small document: the rest is for another slot."""

    stage: str


@frozen
class Spawning:
    """The next stage gathers what this document spawned, and not all of that has ended."""

    stage: str


@frozen
class Unserved:
    """This worker does not know the job's pipeline or stage; another one may."""

    stage: str
    reason: str


Result = (
    Finished | Raised | Crashed | Overdue | Orphaned | Stopped | LaneDown | Outgrown | Spawning | Unserved
)


# --- outcomes: what is written ---------------------------------------------------------------


@frozen
class Done:
    """The document reached its end."""


@frozen
class Retry:
    """Try again after `delay_ms`; the attempt stays charged."""

    delay_ms: int
    why: str
    failure: Failure
    crashes: int
    suspect: bool = False
    word: str = "retry"  # in history; `rescheduled` where a call used up its own retries


@frozen
class Later:
    """Try again after `delay_ms`; the attempt is given back. `counted`: it counts towards `postpones_max`, and if
    `bounded` its delay towards `age_max_s`."""

    delay_ms: int
    why: str
    failure: Failure | None = None
    suspect: bool = False
    released: bool = False
    counted: bool = True
    bounded: bool = True
    flickered: bool = False  # a call failed, perhaps by accident
    afresh: bool = False  # it saved something since the last time: those before it are forgotten
    in_turn: bool = False  # it waits among the others of its lane, instead of before them
    word: str = "later"  # in history; `answered` where another service gave what its stage was to make


@frozen
class Hold:
    """Back to its lane, which is down; the attempt is given back and no bound is touched.

    Where the lane is up again when this is written, the job waits `hold_delay_ms` instead, so that it cannot spin.
    """

    why: str
    failure: Failure | None = None
    suspect: bool = False
    aside: bool = False  # it does not wait for the lane: it lets others go first, whether that is down or not


@frozen
class Gather:
    """Wait, without a slot, until all that the document spawned has ended; the attempt is given back."""

    why: str
    failure: Failure | None = None
    suspect: bool = False


@frozen
class Dead:
    """Set aside with its cause."""

    failure: Failure
    why: str
    charged: bool = True
    crashes: int = 0
    exhausted: bool = False  # of its attempts, which were all it had


Outcome = Done | Retry | Later | Hold | Gather | Dead


def outcome(job: Job, result: Result, rand: Callable[[], float] = random.random) -> Outcome:
    """Decide what becomes of `job` after `result`."""
    match result:
        case Finished():
            return Done()
        case LaneDown() | Outgrown():
            return _kept_from(job, result)
        case Spawning(stage=stage):
            return Gather(f"stage {stage} waits for all that the document spawned", suspect=job.suspect)
        case Unserved(reason=reason):
            return Hold(reason, suspect=job.suspect, aside=True)
        case Crashed(stage=stage, reason=reason, message=message, policy=policy):
            failure = Failure(stage, "Crashed", f"crashed:{reason}", message or f"killed: {reason}")
            return _crashed(job, failure, reason, policy or job.policy, rand)
        case Overdue(stage=stage, code=code, message=message, policy=policy, alone=alone):
            failure = Failure(stage, "Overdue", code, message)
            if alone:
                return _crashed(job, failure, code, policy or job.policy, rand)
            return _charged(job, failure, policy or job.policy, None, rand)
        case Orphaned(stage=stage, reason=reason, blame=blame):
            failure = Failure(stage, "Orphaned", "worker_lost", reason)
            suspect, counted = blame or job.suspect, job.suspect or not blame
            # at once; but one that keeps coming back through nobody's fault must not use up its postpones in a second
            delay_ms = 0 if blame or job.postpones == 0 else hold_delay_ms(job.postpones - 1)
            later = Later(delay_ms, f"worker lost: {reason}", failure, suspect=suspect, counted=counted)
            return _given_back(job, later)
        case Stopped() as stopped:
            return _stopped(job, stopped, rand)
        case Raised(stage=stage, error=error, lane_down=lane_down, policy=policy, progressed=progressed):
            told = telling(error)
            if (
                isinstance(told, Flickering)
                and (soon := _flickering(job, stage, told, progressed)) is not None
            ):
                return soon
            decided = _raised(job, stage, told, lane_down, policy or job.policy, rand, progressed)
            return _with_traceback(decided, error)


def _kept_from(job: Job, result: LaneDown | Outgrown) -> Outcome:
    turn = f"stage {result.stage} waits for its turn"
    if isinstance(result, Outgrown):
        why = f"{turn} among large documents: what was fetched is large"
    elif result.limited:
        why = f"{turn} under the limit of {', '.join(sorted(uses_of(result.lane)))}"
    else:
        return Hold(f"stage {result.stage} needs {result.lane}, which is down", suspect=job.suspect)
    return Later(0, why, suspect=job.suspect, counted=False, bounded=False, in_turn=True)


def describe(stage: str, error: BaseException) -> Failure:
    """The failure as recorded: class, stable code, message, HTTP status where the error carries one."""
    code = _read(error, "code") if isinstance(error, PerdureError) else "unexpected"
    name = str(_read(error, "type_name") or type(error).__name__)
    status = _status(error, code == "unexpected")
    try:
        message = str(error)[:MESSAGE_MAX]
    except Exception:  # an exception whose own text cannot be had must still be recorded
        message = ""
    place = place_of(error) if code == "unexpected" else None
    named = _read(error, "dependency") or (
        _read(error, "name") if isinstance(error, DependencyDown) else None
    )
    dependency = named if isinstance(named, str) else None
    return Failure(stage, name, str(code)[:100], message or name, status, place, dependency)


def _status(error: BaseException, foreign: bool) -> int | None:
    """The HTTP status that it carries; libraries that are not ours have several names for it."""
    names = ("status_code", "status", "code") if foreign else ("status_code",)
    found = [_read(error, name) for name in names] + [_read(_read(error, "response"), "status_code")]
    return next((one for one in found if type(one) is int and 100 <= one <= 599), None)


def _read(thing: object, name: str) -> object:
    """An attribute of somebody else's object, None where it has none or breaks."""
    try:
        return getattr(thing, name, None)
    except Exception:
        return None


def hold_delay_ms(holds: int) -> int:
    """How long a job waits that was held although its lane is up: 2 s doubling to 5 min, never dead of it."""
    return int(min(2_000 * 2 ** min(holds, 20), RESCHEDULE_MS))


def telling(error: BaseException) -> BaseException:
    """The error that decides: of a group Permanent, then DependencyDown, then RetryLater, then the one that asks for
    the longest wait, and never before any of them may be tried again; for an error of a call that failed for good the
    Permanent that it means."""
    if (ending := refused(error)) is not None:
        return ending
    if not isinstance(error, BaseExceptionGroup):
        return error
    inner = [telling(e) for e in error.exceptions]
    for kind in (Permanent, DependencyDown):
        if chosen := [e for e in inner if isinstance(e, kind)]:
            return chosen[0]
    longest = max(inner, key=_asked_s)
    later = [e for e in inner if isinstance(e, RetryLater)]
    if not later or longest in later:
        own = [
            e for e in inner if not isinstance(e, Flickering)
        ]  # an accident does not excuse another failure
        return longest if _asked_s(longest) > 0 or not own else own[0]
    first = copy.copy(max(later, key=_asked_s))
    first.delay_s = _asked_s(longest)
    return first


def _asked_s(error: BaseException) -> float:
    """Seconds before which an error asks not to be tried again; 0 where nobody asked."""
    match error:
        case Flickering(asked_s=asked_s):
            return asked_s
        case RetryLater(delay_s=delay_s):
            return delay_s
        case Rescheduled():
            return 0.0
        case Transient(retry_after_s=after_s):
            return after_s or 0.0
    return 0.0


def _clamped_ms(seconds: float, default_ms: int) -> int:
    """A wait that somebody else asked for, as milliseconds that can be stored."""
    if not math.isfinite(seconds):
        return default_ms
    return math.ceil(min(max(seconds, 0.0) * 1000, DELAY_MS_MAX))


def _raised(
    job: Job,
    stage: str,
    error: BaseException,
    lane_down: bool,
    policy: Policy,
    rand: Callable[[], float],
    progressed: bool = False,
) -> Outcome:
    failure = describe(stage, error)
    match error:
        case Permanent() | Unstorable():
            return Dead(failure, f"permanent: {failure.code}", crashes=job.crashes)
        case DependencyDown(confirmed=confirmed) if lane_down or confirmed:
            return Hold(str(error), failure, job.suspect)
        case DependencyDown():
            return _dependency_doubtful(job, failure, rand)
        case SettingInvalid() | StoreUnavailable(code="blobs_refused"):
            # the worker's fault: another one, or this one set right, can run it
            return Hold(str(error), failure, job.suspect, aside=True)
        case StoreBusy() | StoreUnavailable():
            delay_ms = hold_delay_ms(job.postpones)
            return _given_back(job, Later(delay_ms, "the store was away", failure, job.suspect))
        case RateLimited(ours=True, delay_s=delay_s):
            delay_ms = max(LATER_MS_MIN, _clamped_ms(delay_s, RESCHEDULE_MS))
            paused = error.paused
            why = f"asked to wait: {failure.code}" if paused else "waits for its turn: requests are limited"
            return Later(delay_ms, why, failure, job.suspect, counted=False, bounded=False)
        case RetryLater(delay_s=delay_s):
            asked_ms = max(LATER_MS_MIN, _clamped_ms(delay_s, RESCHEDULE_MS))
            why, chance = f"asked to wait: {failure.code}", error.chance
            flickers = 0 if progressed else job.flickers
            if chance is not None and not too_often(chance, flickers):  # it answers others meanwhile
                return _by_accident(job, asked_ms, why, failure, progressed)
            # the longer it goes on the rarer we ask, so that the bound on postpones is hours away
            before = 0 if progressed else job.postpones
            grown_ms = min(asked_ms * 2 ** (before // 10), LATER_MS_GROWN_MAX)
            later = Later(max(asked_ms, grown_ms), why, failure, job.suspect, afresh=progressed)
            return _given_back(replace(job, postpones=before), later)
        case Transient(retry_after_s=after) if after is not None:
            not_before_ms = _clamped_ms(after, RESCHEDULE_MS)
            if not_before_ms > policy.age_max_ms:
                why = f"asked to wait longer than {policy.age_max_ms // 1000} s"
                return Dead(replace(failure, code="age_exceeded"), why, crashes=job.crashes)
            decided = _charged(job, failure, policy, not_before_ms, rand)
            if isinstance(decided, Retry) and isinstance(error, Rescheduled):
                why = f"rescheduled after attempt {job.attempts} of {min(policy.attempts, job.attempts_max)}"
                return replace(decided, why=why, word="rescheduled")
            return decided
        case _:
            return _charged(job, failure, policy, None, rand)


def _with_traceback(decided: Outcome, error: BaseException) -> Outcome:
    """What a job died of is kept whole. It may be given back without end, and each time leaves a line of history."""
    if not isinstance(decided, Dead):
        return decided
    return replace(decided, failure=replace(decided.failure, traceback=traced(error)))


def _flickering(job: Job, stage: str, error: Flickering, progressed: bool) -> Later | None:
    """Tried again in seconds and for nothing, as long as chance explains that its calls failed since it last saved
    something, or nobody else was answered either; None: they always fail, and that is its own fault. An input that no
    service can bear ends that way."""
    before = 0 if progressed else job.flickers
    if too_often(error.chance, before):
        return None
    delay_ms = flicker_delay_ms(error.soon_s, error.asked_s, before)
    why = "asked to wait: flickering" if error.asked_s else "the service fails now and then"
    return _by_accident(job, delay_ms, why, describe(stage, error), progressed)


def too_often(chance: float, before: int) -> bool:
    """Whether chance does not explain that a document failed once more after so many times, where each is so likely.
    Never where nobody else was answered either (1)."""
    return chance < 1 and math.pow(min(chance, ACCIDENTS_MOST), before + 1) < ACCIDENT


def flicker_delay_ms(soon_s: float, asked_s: float, before: int) -> int:
    """How long a document waits whose call failed by accident, after so many times; never less than was asked for."""
    asked_ms = _clamped_ms(asked_s, RESCHEDULE_MS)
    if asked_ms >= LATER_MS_MIN:
        return asked_ms
    grown_ms = _clamped_ms(soon_s * 1.2 ** min(before, 20), RESCHEDULE_MS)
    return max(LATER_MS_MIN, min(grown_ms, FLICKER_MS_MAX))


def _by_accident(job: Job, delay_ms: int, why: str, failure: Failure, progressed: bool) -> Later:
    """Neither counted nor bounded: it is remembered only that it happened once more."""
    return Later(
        delay_ms, why, failure, job.suspect, counted=False, bounded=False, flickered=True, afresh=progressed
    )


def _dependency_doubtful(job: Job, failure: Failure, rand: Callable[[], float]) -> Outcome:
    """A stage calls its dependency down but the shared state does not agree (yet): tried again in minutes, as long as
    the stage says so, because an outage of any length costs nothing."""
    delay_ms = int(RESCHEDULE_MS * (0.5 + rand() / 2))
    return Later(delay_ms, failure.message, failure, job.suspect, counted=False, bounded=False)


def _charged(
    job: Job,
    failure: Failure,
    policy: Policy,
    not_before_ms: int | None,
    rand: Callable[[], float],
    crashes: int | None = None,
) -> Outcome:
    crashes = job.crashes if crashes is None else crashes
    attempts_max = min(policy.attempts, job.attempts_max)
    if job.attempts >= attempts_max:
        why = f"attempt {job.attempts} of {attempts_max} failed"
        return Dead(failure, why, crashes=crashes, exhausted=True)
    delay_ms = policy.backoff.delay_ms(job.attempts, rand)
    why = f"backoff after attempt {job.attempts} of {attempts_max}"
    if not_before_ms is not None and not_before_ms > delay_ms:
        delay_ms, why = not_before_ms, f"{why}, asked to wait"
    return Retry(delay_ms, why, failure, crashes, suspect=job.suspect or crashes > 0)


def _crashed(job: Job, failure: Failure, reason: str, policy: Policy, rand: Callable[[], float]) -> Outcome:
    """A crash or a timeout while alone is proof: it is charged, and the second one in a generation quarantines."""
    crashes = job.crashes + (reason not in POLITE_SIGNALS)
    if crashes >= CRASHES_MAX:
        what = "crashes" if failure.error_type == "Crashed" else "crashes or timeouts"
        return Dead(failure, f"quarantined after {crashes} {what} while alone", crashes=crashes)
    return _charged(job, failure, policy, None, rand, crashes)


def _given_back(job: Job, later: Later) -> Outcome:
    """An attempt that had no chance is given back, but neither for ever nor more often than allowed."""
    failure = later.failure or Failure(job.stage, "Postponed", "postponed", later.why)
    if later.counted and job.postpones >= job.policy.postpones_max:
        why = f"given back {job.postpones} times, the most allowed"
        return Dead(replace(failure, code="postpones_exhausted"), why, charged=False, crashes=job.crashes)
    if job.postponed_ms + later.delay_ms > job.policy.age_max_ms:
        why = f"would have waited longer than {job.policy.age_max_ms // 1000} s in all"
        return Dead(replace(failure, code="age_exceeded"), why, charged=False, crashes=job.crashes)
    return later


def _stopped(job: Job, stopped: Stopped, rand: Callable[[], float]) -> Outcome:
    """A shutdown gives the attempt back if the job got on or was young, at most five times; it never kills."""
    fair = stopped.progressed or stopped.stage_age_ms < YOUNG_STAGE_MS
    spent = job.attempts >= job.attempts_max
    if spent or (fair and job.releases < RELEASES_MAX):
        later = Later(0, "worker stopped", suspect=job.suspect, released=True)
        return _given_back(job, later)
    failure = Failure(stopped.stage, "Stopped", "worker_stopped", "the worker stopped in the middle")
    return Retry(0, "worker stopped in the middle", failure, job.crashes, job.suspect)
