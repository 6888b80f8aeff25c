"""Dead documents and follow-up jobs requeued: one, a group, or all that fit; a canary first, at a pace.

Each is a new generation with a fresh budget that takes up what is saved, or begins anew (`fresh`). Whatever happens on
the way, the same command goes on where it stopped: what was requeued is not dead any more, and what dies again while it
is under way is left alone. A follow-up job runs again in its generation, with a fresh budget.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NotRequired, TypedDict

from perdure.core.frozen import frozen
from perdure.core.model import Job, job_name
from perdure.engine.intake import first_job, limit_key
from perdure.engine.pipeline import Pipeline
from perdure.errors import InputInvalid, StoreError
from perdure.operate.choosing import Choice, count, dead_of, pages
from perdure.operate.groups import by_fingerprint
from perdure.settings import Settings, using
from perdure.store.operations import NewJob, Requeue
from perdure.store.records import DeadRecord
from perdure.store.sql_store import SqlStore

BATCH = 100  # that are requeued in one transaction
#: Organisation, id, name of the follow-up job and its generation.
Sent = tuple[str, str, str, int]
CANARY_WAIT_S = 600.0
LOOK_S = 0.25  # between two looks at the canaries, or at the clock


class RequeueOptions(TypedDict):
    """How they are requeued. `canary`: so many first, and the rest only if the share `canary_ok` of them is done within
    `canary_wait_s`; `rate`: at most so many a second."""

    fresh: NotRequired[bool]
    dry_run: NotRequired[bool]
    canary: NotRequired[int]
    canary_ok: NotRequired[float]
    canary_wait_s: NotRequired[float]
    rate: NotRequired[float | None]
    limit: NotRequired[int | None]
    reason: NotRequired[str]
    who: NotRequired[str | None]


@frozen
class Canary:
    """What became of those that went first."""

    sent: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0

    @property
    def left(self) -> int:
        return self.sent - self.done - self.dead - self.cancelled


@frozen
class Requeued:
    """How far it is: of `found` documents, what became of them. `answers` are those since the last time."""

    found: int = 0
    requeued: int = 0
    refused: int = 0
    canary: Canary | None = None
    stopped: str = ""  # why the rest was left alone
    answers: tuple[tuple[str, str], ...] = ()


class Requeuing:
    """One command."""

    def __init__(
        self, store: SqlStore, pipelines: Mapping[str, Pipeline], choice: Choice, by: str, options: RequeueOptions,
        settings: Settings | None = None,
    ) -> None:  # fmt: skip
        self.store, self.pipelines, self.choice, self.by, self.settings = (
            store,
            pipelines,
            choice,
            by,
            settings,
        )
        self.fresh, self.reason = options.get("fresh", False), options.get("reason", "")
        self.dry_run, self.limit = options.get("dry_run", False), options.get("limit")
        self.canary, self.ok = options.get("canary", 0), options.get("canary_ok", 1.0)
        self.wait_s, self.rate = options.get("canary_wait_s", CANARY_WAIT_S), options.get("rate")
        _check(self)
        self._counts: Counter[str] = Counter()
        self._told = Requeued()
        self._sent: set[Sent] = set()

    async def run(self) -> AsyncGenerator[Requeued, None]:
        """Do it; tells after each step how far it is."""
        if newest := await self.store.dead(self.choice.where, limit=1):  # what dies again is not meant
            where = replace(self.choice.where, before_ms=newest[0].died_ms + 1)
            self.choice = replace(self.choice, where=where)
        self._answered(self.choice.refused)
        dead = await count(self.store, self.choice)
        found = min(dead, self.limit if self.limit is not None else dead) + len(self.choice.refused)
        self._told = replace(self._told, found=found)
        yield self._told
        if self.dry_run:
            return
        try:
            async for told in self._requeue():
                yield told
        finally:
            await self._act()

    async def _requeue(self) -> AsyncIterator[Requeued]:
        if self.canary:
            async for told in self._canary():
                yield told
            if self._told.stopped:
                return
        started_s, paced = time.monotonic(), 0
        size = BATCH if self.rate is None else max(1, min(BATCH, int(self.rate / 4)))
        async for page in pages(self.store, self.choice, size):
            some = [one for one in page if _sent(one) not in self._sent][: self._room()]
            if not some:
                if self._room() == 0:
                    break
                continue
            while self.rate is not None and (early_s := started_s + paced / self.rate - time.monotonic()) > 0:
                await asyncio.sleep(min(early_s, LOOK_S))
                yield replace(self._told, answers=())  # so that it can be stopped
            paced += len(some)
            yield await self._send(some)

    def _room(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - len(self._sent))

    async def _send(self, some: Sequence[DeadRecord]) -> Requeued:
        jobs = await self.store.main_jobs([(one.org, one.id) for one in some])
        answers = await asyncio.gather(*(self._one(one, jobs.get((one.org, one.id))) for one in some))
        self._sent |= {_sent(one) for one in some}
        return self._answered([(one.id, answer) for one, answer in zip(some, answers, strict=True)])

    def _answered(self, answers: Sequence[tuple[str, str]]) -> Requeued:
        self._counts.update("requeued" if answer == "requeued" else "refused" for _, answer in answers)
        self._told = replace(
            self._told, requeued=self._counts["requeued"], refused=self._counts["refused"], answers=tuple(answers)
        )  # fmt: skip
        return self._told

    async def _one(self, one: DeadRecord, job: Job | None) -> str:
        if one.job:
            return await self.store.revive(one, self.by, self.reason)
        pipeline = self.pipelines.get(one.pipeline)
        if pipeline is None and (self.fresh or job is None):
            known = ", ".join(sorted(p for p in self.pipelines if "." not in p)) or "none"
            return (
                f"refused: its pipeline {one.pipeline} is not known here ({known}); use the app that has it"
            )
        with using(self.settings):
            again = next_job(job, pipeline, one.collection)
        fresh = None
        if self.fresh and pipeline is not None:
            fresh, again = pipeline.stages[0].name, await self._from_the_first(one, again, pipeline)
        return await self.store.requeue(
            Requeue(one.org, one.id, again, fresh, self.by, self.reason, dead_only=True)
        )

    async def _from_the_first(self, one: DeadRecord, job: NewJob, pipeline: Pipeline) -> NewJob:
        """The same job before its first stage: in the lane of that, and under its limit again."""
        first = pipeline.stages[0]
        document = await self.store.document(one.org, one.id) if pipeline.limited(first) else None
        with using(self.settings):
            key = limit_key(document, pipeline) if document is not None else job.limit_key
            return replace(
                job, stage=first.name, lane=first.lane, lease_ms=first.lease_ms, limit_key=key
            )  # fmt: skip

    # --- the canary ------------------------------------------------------------------------------

    async def _canary(self) -> AsyncIterator[Requeued]:
        first = await self._first(min(self.canary, self._told.found))
        yield await self._send(first)
        canary = Canary(self._counts["requeued"])
        until_s = time.monotonic() + self.wait_s
        while True:
            canary = await self._looked_at(first, canary.sent)
            self._told = replace(self._told, canary=canary, answers=())
            yield self._told
            if not canary.left or time.monotonic() > until_s:
                break
            await asyncio.sleep(LOOK_S)
        left = self._told.found - self._counts["requeued"] - self._counts["refused"]
        if left and (why := self._doubts(canary)):
            self._told = replace(self._told, stopped=f"{why}; the other {left:,} are still dead")
            yield self._told

    def _doubts(self, canary: Canary) -> str:
        """Why the rest should not follow; nothing if it should."""
        if canary.left:
            return (
                f"{canary.left} of {canary.sent} canaries have not ended after {self.wait_s:g} s "
                "(does a worker run? `perdure status`)"
            )
        if not canary.sent or canary.done < self.ok * canary.sent - 1e-9:
            return f"{canary.done} of {canary.sent} canaries are done, and {self.ok:.0%} are asked for"
        return ""

    async def _first(self, wanted: int) -> list[DeadRecord]:
        """Some of every group, of the largest first, so that no cause goes untried if there is room for it."""
        if self.choice.keys is not None:
            return [one for key in self.choice.keys[:wanted] for one in await dead_of(self.store, key)][
                :wanted
            ]
        groups = by_fingerprint(await self.store.dead_causes(self.choice.where))
        waiting = [
            await self.store.dead(
                replace(self.choice.where, group=causes[0].fingerprint, job=causes[0].job), limit=wanted
            )
            for causes in groups[:wanted]
        ]
        first: list[DeadRecord] = []
        while len(first) < wanted and any(waiting):
            first += [some.pop(0) for some in waiting if some]
        return first[:wanted]

    async def _looked_at(self, first: Sequence[DeadRecord], sent: int) -> Canary:
        states: Counter[str] = Counter()
        for one in first:
            if one.job:
                jobs = await self.store.jobs(one.org, one.id)
                named = {(job_name(job.key, job.generation), job.generation): job.state for job in jobs}
                states[named.get((one.job, one.generation), "done")] += 1  # a row that was pruned ended well
        documents = [one for one in first if not one.job]
        for org in {one.org for one in documents}:
            found = await self.store.statuses(org, [one.id for one in documents if one.org == org])
            generations = {one.id: one.generation for one in documents if one.org == org}
            states.update(one.state for one in found if one.generation > generations[one.id])
        return Canary(sent, states["done"], states["dead"], states["cancelled"])

    async def _act(self) -> None:
        """One act for all of them; each has its own besides."""
        if not self._sent:
            return
        told = f"dead: {self.choice.words}: {self._counts['requeued']} requeued, {self._counts['refused']} refused"
        with suppress(StoreError):
            await self.store.act(self.by, "requeue", self.choice.where.org, told, self.reason)


def _sent(one: DeadRecord) -> Sent:
    """A document that dies again is of another generation, a follow-up job is not."""
    return one.org, one.id, one.job, one.generation if one.job else 0


def next_job(job: Job | None, pipeline: Pipeline | None, collection: str) -> NewJob:
    """The job of the next generation: from the stage where it died on, and as patient as the pipeline is by now, unless
    the document brought its own budget."""
    if job is None:
        assert pipeline is not None
        return first_job(pipeline, pipeline.policy_of(collection))
    again = NewJob(
        job.pipeline, job.queue, job.stage, job.lane, priority=job.priority, policy=job.policy, limit_key=job.limit_key,
        lease_ms=job.lease_ms,
    )  # fmt: skip
    if pipeline is None:
        return again
    stage = pipeline.at(job.stage) or pipeline.stages[0]
    return replace(
        again, queue=pipeline.queue, stage=stage.name, lane=stage.lane, lease_ms=stage.lease_ms,
        policy=job.policy if job.policy.pinned else pipeline.policy_of(collection),
        limit_each=pipeline.concurrency_per_key,
    )  # fmt: skip


def _check(asked: Requeuing) -> None:
    for name, value, least in (("canary", asked.canary, 0), ("limit", asked.limit, 1)):
        if value is not None and value < least:
            raise InputInvalid(f"{name} must be at least {least}, not {value}")
    if not 0 < asked.ok <= 1:
        raise InputInvalid(f"canary_ok is a share above 0 and up to 1, not {asked.ok:g}")
    if asked.rate is not None and not 0 < asked.rate < math.inf:
        raise InputInvalid(f"the rate must be a number above 0, not {asked.rate:g}")
