"""Why a document is where it is: one sentence that says what it waits for, for how long, and what happens next.

Pure: `explain` makes it of a Situation. Where a person must act it says what to press.
"""

from __future__ import annotations

from collections.abc import Callable

from perdure.core.frozen import frozen
from perdure.core.handover import Handover
from perdure.core.lane import is_large, needs_of
from perdure.core.model import repairs
from perdure.core.services import CONFIGURATION
from perdure.errors import BLOBS_REFUSED, ExtraMissing, PolicyInvalid, SettingInvalid
from perdure.operate.advice import Action
from perdure.operate.situation import Situation
from perdure.operate.turns import at_services
from perdure.operate.words import count, line, since, until, when
from perdure.store.base import BREAKER
from perdure.store.inspecting import AHEAD_MAX, JobRecord
from perdure.store.records import Attempt, DependencyRecord

#: A lease that is over for longer than this should have been taken back.
LATE_MS = 10_000
REPLACED = "its supervisor replaces it after PERDURE_LOOP_STALL_S"


@frozen
class Why:
    """The sentence, and the command that a person should press; None: nobody has to do anything."""

    id: str
    state: str
    sentence: str
    press: str | None = None


Said = tuple[str, str | None]


def explain(s: Situation) -> Why:
    """One sentence about the document."""
    said, press = _BY_STATE[s.status.state](s)
    for told, also in (_follower(s, job) for job in s.followers):
        said, press = f"{said}{told}", press or also
    do = f": press `{press}`" if press else ""
    return Why(s.status.id, s.status.state, f"{said}{do}.", press)


# --- by state ------------------------------------------------------------------------------------


def _queued(s: Situation) -> Said:
    job, waited = s.job, since(s.since_ms, s.now_ms)
    if job is None:
        return "It is in no queue although it has not ended", "perdure audit"
    if s.paused is not None:
        by = f"{s.paused.who} paused queue {job.queue}{_because(s.paused.reason)}"
        age = f" {since(s.paused.at_ms, s.now_ms)} ago" if s.paused.at_ms else ""
        return f"It has waited for {waited} because {by}{age}", f"perdure resume {job.queue}"
    if not s.serving:
        return f"It has waited for {waited} because no worker serves queue {job.queue}", "perdure worker"
    if s.unserved:
        told = (
            f"It has waited for {waited} because no worker of queue {job.queue} has pipeline {job.pipeline}"
        )
        return f"{told}: start one whose app has it", "perdure worker MODULE:APP"
    if job.probe is not None:
        return f"It is the one that finds out whether {job.probe} is back, and begins within seconds", None
    if job.state == "parked":
        return _parked(s, job, waited)
    if (aside := _unserved(s)) is not None:
        return aside
    alone = ", alone because a worker died or stood still with it in hand" if job.suspect else ""
    if is_large(job.lane) and not job.suspect:
        alone = ", in one of the slots for large documents"
    if silent := _all_silent(s):
        told = f"It has waited for {waited} because {silent}; {REPLACED}"
        return f"{told}, and then it begins by itself{alone}", None
    served = f"{count(len(s.serving), 'worker')} {'serves' if len(s.serving) == 1 else 'serve'} the queue"
    if not s.ahead:
        told = f"It is next in queue {job.queue} after {waited} and begins as soon as a slot is free{alone}"
        return f"{told}{_share(s)}{_turns(s)}", None
    ahead = f"{s.ahead:,}" if s.ahead < AHEAD_MAX else f"more than {AHEAD_MAX - 1:,}"
    order = f"{ahead} {'is' if s.ahead == 1 else 'are'} before it and {served}"
    return (
        f"It has waited for {waited} in queue {job.queue}: {order}; it begins by itself{alone}{_turns(s)}",
        None,
    )


def _turns(s: Situation) -> str:
    """Where its requests wait once its stage runs."""
    at = at_services(s.slow, s.now_ms)
    return f"; its requests then wait for their turn at {at}" if at else ""


def _share(s: Situation) -> str:
    """Why others may begin before it."""
    if s.running < 2:
        return ""
    bound = "while others have documents, it holds at most half of a worker's slots for long"
    return f"; its organisation has {s.running:,} in work, and {bound}"


def _parked(s: Situation, job: JobRecord, waited: str) -> Said:
    limit = s.limit
    if limit is None or (limit.concurrency is None and limit.rate_per_s is None):
        return f"It has waited for {waited} for room under {job.limit_key} and is let in within seconds", None
    bounds = []
    if limit.concurrency is not None:
        bounds.append(f"{limit.used:,} of {limit.concurrency:,} are let in")
    if limit.rate_per_s is not None:
        bounds.append(f"{limit.rate_per_s:g} may start per second")
    told = f"{' and '.join(bounds)}, {limit.parked:,} {'waits' if limit.parked == 1 else 'wait'}"
    room = f"It has waited for {waited} for room under the limit of {limit.key} ({told})"
    return f"{room}; it goes on by itself, or sooner with `perdure limit {limit.key} --concurrency N`", None


def _running(s: Situation) -> Said:
    job = s.job
    if job is None:
        return "It runs, and its job is just being written", None
    if s.status.remote:
        return _remote(s, job)
    who = s.worker.name if s.worker is not None else "unknown"
    attempt = f"attempt {job.attempts} of {job.attempts_max}"
    where = f"{_ran(s, job)} in worker {job.worker} ({who}), {attempt}"
    late_ms = s.now_ms - (job.lease_until_ms or s.now_ms)
    if s.worker_gone or s.worker is None or late_ms > LATE_MS:
        lost = "is gone" if s.worker_gone or s.worker is None else "does not renew its lease"
        if not s.serving:
            return f"{where}, but that worker {lost} and there is no other to take it back", "perdure worker"
        return f"{where}, but that worker {lost}; another takes it back within seconds", None
    if s.worker.silent_since_ms is not None:
        silent = f"that worker has not answered for {since(s.worker.silent_since_ms, s.now_ms)}"
        held = "a stage of it, this one or a neighbour, holds it, or its process is stopped"
        return f"{where}, but {silent}: {held}; {REPLACED}, and the document runs again uncharged", None
    signs = [f"{count(s.items, 'item')} saved"] if s.items else []
    if job.beat_ms is not None:
        signs.append(f"last beat {since(job.beat_ms, s.now_ms)} ago")
    alone = "; it runs alone because a worker died or stood still with it in hand" if job.suspect else ""
    now = "it is at work"
    if job.probe is not None:
        now = f"it finds out whether {job.probe} is back"
    elif at := at_services(s.slow, s.now_ms):
        now = f"its requests wait for their turn at {at}"
    return f"{where}: {', '.join(signs) or 'just begun'}{alone}; {now}, there is nothing to do", None


def _all_silent(s: Situation) -> str:
    """Which workers of its queue stand still, if all do."""
    since_ms = [one.silent_since_ms for one in s.serving]
    if any(one is None for one in since_ms):
        return ""
    longest = since(min(filter(None, since_ms)), s.now_ms)
    names = ", ".join(f"{one.id} ({one.name})" for one in s.serving)
    workers, have = ("worker", "has") if len(since_ms) == 1 else ("workers", "have")
    return f"{workers} {names} of queue {s.job.queue if s.job else ''} {have} not answered for {longest}"


def _ran(s: Situation, job: JobRecord) -> str:
    """The stage that it runs, and for how long; saved items move `progress_ms`, which is then not its beginning."""
    claimed = since(job.claimed_ms, s.now_ms)
    if not _saved_in_claim(job):
        return f"It has run stage {job.stage} for {claimed}"
    if s.items:
        return f"It runs stage {job.stage}, claimed {claimed} ago,"
    return f"It has run stage {job.stage} for {since(job.progress_ms, s.now_ms)}"


def _remote(s: Situation, job: JobRecord) -> Said:
    given, waited = Handover.from_text(job.remote), since(job.claimed_ms, s.now_ms)
    event, done = (given.event, given.done) if given else ("its event", "the answer")
    pending = next((one for one in s.events if one.hands_over), None)
    if pending is not None:
        tried = (
            f"; tried {count(pending.tries, 'time')}{_because(pending.error or '')}" if pending.tries else ""
        )
        look = " (is the broker up, and do workers have RABBITMQ_HOST?)"
        return (
            f"It has waited for {waited} to be handed over at stage {job.stage}: "
            f"event {event} is not published yet{tried}{look}; it is as soon as the broker takes it",
            None,
        )
    until_ms = job.lease_until_ms
    left = f" {until(until_ms, s.now_ms)}" if until_ms is not None else ""
    then = "it fails for good" if job.attempts >= job.attempts_max else f"attempt {job.attempts + 1} begins"
    return (
        f"It has waited for {waited} for another service at stage {job.stage}: {event} is published, "
        f"{done} has not come; without an answer{left} {then}",
        None,
    )


def _waiting(s: Situation) -> Said:
    job, last = s.job, s.last
    if s.paused is not None:
        return _queued(s)
    if s.gathers:
        return _gathering(s)
    due_ms = s.status.run_at_ms or 0
    again = f"{until(due_ms, s.now_ms)} ({when(due_ms, s.now_ms)})" if due_ms > s.now_ms else "now"
    if due_ms + LATE_MS < s.now_ms and not s.serving:
        late = since(due_ms, s.now_ms)
        return f"It has been due for {late} and no worker is there to take it up", "perdure worker"
    if (aside := _unserved(s)) is not None:
        return aside
    if last is None or job is None:
        act = next((one for one in s.acts if one.verb == "requeue"), None)
        who = f" by {act.who}{_because(act.reason)}" if act is not None and s.status.generation > 1 else ""
        return f"It is scheduled{who} and begins {again}", None
    cause, waited = _failed(last), since(last.ended_ms, s.now_ms)
    by = f" by {', '.join(sorted(last.requests))}" if last.requests else ""
    if last.outcome in ("retry", "rescheduled"):
        tried = f"attempt {last.attempt} of {job.attempts_max} failed at stage {last.stage}"
        asked = f", as it was asked to{by}" if "asked to wait" in last.why else ""
        then = f"attempt {last.attempt + 1} begins {again}{asked}"
        return f"It has waited for {waited} because {tried} with {cause}; {then}", None
    if last.error_code is not None and last.why == f"asked to wait: {last.error_code}":
        why = f"it was asked to wait{by}, {cause}"
    else:
        why = f"{last.why}{f', {cause}' if last.error_code else ''}"
    told = f"It has waited for {waited} at stage {last.stage}: {why}"
    return f"{told}; it goes on {again} and no attempt was used{_turns(s)}", None


def _gathering(s: Situation) -> Said:
    total = sum(one.count for one in s.children)
    open_ = sum(one.count for one in s.children if one.state == "open")
    jobs = sum(one.finished_ms is None and not repairs(one.key) for one in s.followers)
    left = [f"{open_:,} of {total:,} documents"] if open_ else []
    left += [count(jobs, "follow-up job")] if jobs else []
    dead = sum(one.count for one in s.children if one.state == "dead")
    died = f" ({dead:,} died)" if dead else ""
    what, have = " and ".join(left) or "they", "has" if (open_, jobs) == (0, 1) else "have"
    waited = since(s.last.ended_ms if s.last else s.since_ms, s.now_ms)
    return (
        f"It has waited for {waited} for what it spawned: {what} {have} not ended{died}; then it goes on by itself",
        None,
    )


def _held(s: Situation) -> Said:
    job, stage = s.job, s.status.stage
    if s.paused is not None and not s.down:
        return _queued(s)
    by_hand = [d for d in s.down if d.held_by != BREAKER]
    one = next(iter(by_hand or s.down), None)
    if one is None or job is None:
        return f"It was held because stage {stage} needs {s.status.held_by}, which is just coming back", None
    others = [d.name for d in s.down if d is not one]
    also = f" (and {', '.join(others)})" if others else ""
    held_ms = max(one.since_ms or 0, s.since_ms)
    told = f"It has been held for {since(held_ms, s.now_ms)} because stage {stage} needs {one.name}{also}"
    return _down(s, told, one)


def _down(s: Situation, told: str, one: DependencyRecord) -> Said:
    down, n = since(one.since_ms, s.now_ms), one.held
    wait = f"{count(n, 'document')} {'waits' if n == 1 else 'wait'}"
    if one.state == "ramping":
        return (
            f"{told}, which is back after {down}: documents go on at {one.ramp_per_s or 0:.0f} per second",
            None,
        )
    because = _because(one.reason)
    if one.held_by == BREAKER:
        probe = until(one.probe_at_ms, s.now_ms) if one.probe_at_ms is not None else "soon"
        then = f"the next probe is {probe} and, if it succeeds, they go on by themselves"
        then = f"{then}; `perdure release {one.name}` lets them go now"
        return f"{told}, which has been down for {down}{because}: {wait}; {then}", None
    if one.held_by == CONFIGURATION:
        then = "they go on when a worker starts that is"
        return f"{told}, which no worker is configured for{because}: {wait}; {then}", "perdure worker"
    held = f"which {one.held_by} has held for {down}{because}"
    return f"{told}, {held}: {wait} until somebody releases it", f"perdure release {one.name}"


def _done(s: Situation) -> Said:
    tries = sum(a.charged for a in s.ours) or s.status.attempts_made
    after = f" after {count(tries, 'attempt')}" if tries > 1 else ""
    told = f"It is done{after}, {since(s.status.finished_ms, s.now_ms)} ago"
    if not s.status.degraded:
        return told, None
    if s.marked:
        return f"{told}, but degraded: {line(s.marked)}; nothing repairs it by itself", _requeue(s)
    repair = next((job for job in s.followers if repairs(job.key) and job.finished_ms is None), None)
    if repair is None:
        return f"{told}, but degraded: a fallback stands in and nothing repairs it by itself", _requeue(s)
    return f"{told}, but degraded: a fallback stands in until its repair succeeds", None


def _dead(s: Situation) -> Said:
    last, status = s.last, s.status
    cause = f"{status.error_code}: {line(status.error_message or '')}"
    at = f" at stage {last.stage}" if last is not None else ""
    why = f" ({last.why})" if last is not None and last.why not in cause else ""
    others = f"; {s.alike - 1:,} more died of the same" if s.alike > 1 else ""
    told = f"It has been dead for {since(status.finished_ms, s.now_ms)}{at}: {cause}{why}{others}"
    if s.advice is None:
        return f"{told}; nothing happens by itself", _requeue(s)
    return f"{told}; nothing happens by itself: {s.advice.text}", _PRESS.get(s.advice.action, _inspect)(s)


def _cancelled(s: Situation) -> Said:
    act = next((one for one in s.acts if one.verb == "cancel"), None)
    by = f" by {act.who}" if act is not None else ""
    reason = _because(s.status.error_message or "")
    ago = since(s.status.finished_ms, s.now_ms)
    return (
        f"It was cancelled {ago} ago{by}{reason} and stays so; `perdure requeue {s.status.id}` starts it again",
        None,
    )


_BY_STATE: dict[str, Callable[[Situation], Said]] = {
    "queued": _queued, "running": _running, "waiting": _waiting, "held": _held, "done": _done, "dead": _dead,
    "cancelled": _cancelled,
}  # fmt: skip


# --- parts ---------------------------------------------------------------------------------------


def _follower(s: Situation, job: JobRecord) -> Said:
    """What there is to say of a follow-up job; nothing of one that went well."""
    last = next((a for a in reversed(s.attempts) if a.job_key == job.key), None)
    failed = f": {_failed(last)}" if last is not None and last.error_code is not None else ""
    if job.generation != s.status.generation or job.state in ("done", "cancelled"):
        return "", None
    if job.state == "dead":
        return f"; its follow-up job {job.name} failed{failed}", f"perdure dead requeue {s.status.id}"
    down = next((d for d in s.down if d.state == "down" and d.name in needs_of(job.lane)), None)
    if job.state in ("queued", "parked") and down is not None:
        return (
            f"; its follow-up job {job.name} is held because {down.name} is down{_because(down.reason)}",
            None,
        )
    due_ms = job.run_at_ms if job.state == "waiting" else 0
    again = f" and goes on {until(due_ms, s.now_ms)}" if due_ms else ""
    return (
        f"; its follow-up job {job.name} is {'queued' if job.state == 'parked' else job.state}{failed}{again}",
        None,
    )


def _unserved(s: Situation) -> Said | None:
    """Given back because no worker that took it knows its pipeline or stage."""
    job, last = s.job, s.last
    if job is None or last is None or not job.holds or last.outcome != "hold" or s.down:
        return None
    again = f"; it is offered again {until(s.status.run_at_ms, s.now_ms)}" if s.status.run_at_ms else ""
    told = f"It has waited for {since(last.ended_ms, s.now_ms)} because no worker that took it could run it"
    if last.error_code in (SettingInvalid.code, PolicyInvalid.code, ExtraMissing.code):
        correct = "correct that setting where the workers run and start them again"
        return f"{told} ({line(last.why)}){again} and no attempt was used: {correct}", "perdure worker"
    if last.error_code == BLOBS_REFUSED:
        correct = (
            "correct the key of the bucket where the workers run and start them again, or give it the rights"
        )
        return f"{told} ({line(last.why)}){again} and no attempt was used: {correct}", "perdure worker"
    return (
        f"{told} ({line(last.why)}){again}: start one whose app has pipeline {job.pipeline}",
        "perdure worker MODULE:APP",
    )


def _saved_in_claim(job: JobRecord) -> bool:
    return job.progress_ms is not None and job.claimed_ms is not None and job.progress_ms > job.claimed_ms


def _requeue(s: Situation) -> str:
    return f"perdure requeue {s.status.id}"


def _inspect(s: Situation) -> str:
    return f"perdure dead inspect {s.status.id}"


_PRESS: dict[Action, Callable[[Situation], str]] = {
    Action.REQUEUE: _requeue,
    Action.WAIT: lambda _: "perdure dependencies",
}


def _failed(attempt: Attempt) -> str:
    code = attempt.error_code or attempt.outcome
    named = f"{code}: {attempt.error_type}" if code == "unexpected" else code
    status = f" (HTTP {attempt.status_code})" if attempt.status_code else ""
    return f"{named}{_because(attempt.message)}{status}" if attempt.message else f"{named}{status}"


def _because(reason: str | None) -> str:
    return f" ({line(reason)})" if reason else ""
