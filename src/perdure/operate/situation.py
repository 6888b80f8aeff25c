"""All that is known about one document at one moment: what `why` makes a sentence of and the timeline a story."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from perdure.core.frozen import frozen
from perdure.core.lane import needs_of
from perdure.core.model import GATHERING_MS, job_key
from perdure.engine.result import DEGRADED
from perdure.operate.advice import Advice, advise
from perdure.operate.groups import facts
from perdure.operate.turns import slows
from perdure.store.dead import Where
from perdure.store.inspecting import ChildRecord, JobRecord, PendingEvent
from perdure.store.records import (
    Act,
    Attempt,
    DependencyRecord,
    LimitRecord,
    Status,
    WorkerRecord,
)
from perdure.store.sql_store import SqlStore

ACTS_MAX = 1_000


@frozen
class Situation:
    """A document with its jobs, and what these depend on."""

    now_ms: int
    status: Status
    job: JobRecord | None = None  # its main job; None: pruned, long after its end
    followers: tuple[JobRecord, ...] = ()  # follow-up jobs
    attempts: tuple[Attempt, ...] = ()  # that ended, of all its jobs, in order
    acts: tuple[Act, ...] = ()  # on the document, newest first
    paused: Act | None = None  # what paused its queue, if that is paused
    serving: tuple[WorkerRecord, ...] = ()  # workers of its queue that are alive
    unserved: bool = False  # no worker of its queue has its pipeline
    worker: WorkerRecord | None = None  # who has it in hand
    worker_gone: bool = False
    ahead: int = 0  # jobs whose turn is before its own
    running: int = 0  # jobs of its organisation and queue that workers have in hand
    limit: LimitRecord | None = None  # what it waits for room under
    down: tuple[
        DependencyRecord, ...
    ] = ()  # of those that its next stage needs, or its follow-up jobs if it has ended
    slow: tuple[
        DependencyRecord, ...
    ] = ()  # of those that its stage asks: requests wait there for their turn
    children: tuple[ChildRecord, ...] = ()
    events: tuple[PendingEvent, ...] = ()  # about it, that are not published yet
    items: int = 0  # saved of the stage that runs
    alike: int = 0  # dead documents of the same cause, itself included
    advice: Advice | None = None  # what to do about these
    marked: str = ""  # why a stage marked it as degraded, if one did

    @property
    def ours(self) -> list[Attempt]:
        """Attempts of the main job in this generation."""
        key = job_key(self.status.id)
        return [a for a in self.attempts if a.job_key == key and a.generation == self.status.generation]

    @property
    def last(self) -> Attempt | None:
        ours = self.ours
        return ours[-1] if ours else None

    @property
    def gathers(self) -> bool:
        """Whether it waits for what it spawned."""
        return self.job is not None and self.job.state == "waiting" and self.job.run_at_ms == GATHERING_MS

    @property
    def since_ms(self) -> int:
        """Since when it has been waiting or running as it is."""
        job, last = self.job, self.last
        if job is None or self.status.finished_ms is not None:
            return self.status.finished_ms or self.status.created_ms
        if job.state == "running":
            return job.claimed_ms or self.status.created_ms
        entered = [self.status.created_ms, last.ended_ms if last else 0]
        entered += [act.at_ms for act in self.acts if act.verb == "requeue"][:1]
        return max(entered)


async def situation(store: SqlStore, status: Status) -> Situation:
    """What can be read about the document; every read is bounded."""
    org, id_ = status.org, status.id
    jobs = await store.jobs(org, id_)
    job = next((one for one in jobs if not one.name), None)
    known = Situation(
        now_ms=await store.now_ms(),
        status=status,
        job=job,
        followers=tuple(one for one in jobs if one.name),
        attempts=tuple(await store.attempts(org, id_)),
        acts=tuple(await store.acts(ACTS_MAX, target=id_)),
        children=tuple(await store.children(org, id_)),
        events=tuple(await store.outbox_of(org, id_)),
    )
    if status.state == "dead":
        return await _dead(store, known)
    if status.degraded:
        known = replace(known, marked=await _marked(store, status))
    if job is not None and job.finished_ms is None:
        return await _open(store, known, job)
    waiting = [one.lane for one in known.followers if one.finished_ms is None]
    return replace(known, down=await _down(store, *waiting))


async def _down(store: SqlStore, *lanes: str) -> tuple[DependencyRecord, ...]:
    """Dependencies of these lanes that are not up."""
    needed = {name for lane in lanes for name in needs_of(lane)}
    return (
        tuple(d for d in await store.dependencies() if d.name in needed and d.since_ms is not None)
        if needed
        else ()
    )


async def _open(store: SqlStore, known: Situation, job: JobRecord) -> Situation:
    workers = [one for one in await store.workers() if one.kind == "worker"]
    gone = await store.missing([one.id for one in workers])
    more: dict[str, Any] = {
        "serving": tuple(one for one in workers if one.id not in gone and job.queue in one.queues),
        "paused": await _paused(store, job.queue),
    }
    if job.state == "running":
        more["worker"] = next((one for one in workers if one.id == job.worker), None)
        more["worker_gone"] = job.worker in gone
        items = await store.items_of(known.status.org, known.status.id)
        more["items"] = items.get((job.pipeline, job.stage, job.generation), 0)
    if job.state == "queued":
        more["ahead"] = await store.ahead(job)
        more["running"] = await store.running_of(known.status.org, job.queue)
    if job.state in ("queued", "parked"):
        lacking = {(queue, pipeline) for queue, pipeline, _ in await store.unserved()}
        more["unserved"] = (job.queue, job.pipeline) in lacking
    if job.state == "parked" and job.limit_key is not None:
        more["limit"] = next(iter(await store.limits(job.limit_key)), None)
    known = replace(known, **more, down=await _down(store, job.lane))
    return replace(known, slow=await _slow(store, known, job))


async def _slow(store: SqlStore, known: Situation, job: JobRecord) -> tuple[DependencyRecord, ...]:
    """Services where requests of its stage wait for their turn: those that it names, and those that it asked before."""
    before = next((a for a in reversed(known.ours) if a.stage == job.stage), None)
    asked = needs_of(job.lane) | (before.requests.keys() if before is not None else set())
    return tuple(d for d in await store.dependencies() if d.name in asked and slows(d)) if asked else ()


async def _paused(store: SqlStore, queue: str) -> Act | None:
    if not await store.paused(queue):
        return None
    acts = await store.acts(1, verb="pause", target=queue)
    return acts[0] if acts else Act(0, 0, "somebody", "pause", None, queue, "")


async def _marked(store: SqlStore, status: Status) -> str:
    """What a stage said when it marked the document; nothing where a fallback did."""
    saves = await store.saved_of(status.org, status.id)
    saved = {one.stage for one in saves if one.degraded and one.generation == status.generation}
    rows = await store.rows(status.org, status.id, DEGRADED)
    return "; ".join(json.loads(data)["why"] for key, data in rows if json.loads(key)["stage"] in saved)


async def _dead(store: SqlStore, known: Situation) -> Situation:
    found = await store.dead_one(known.status.org, known.status.id)
    if found is None or not found.fingerprint:
        return known
    alike = await store.dead_count(Where(org=known.status.org, group=found.fingerprint))
    advice = advise(facts(found, await store.down(), known.now_ms))
    return replace(known, alike=alike, advice=advice)
