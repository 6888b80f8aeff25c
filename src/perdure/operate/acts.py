"""What operators do, each act in the trail with who, when, what and why; and the trail itself."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime

from perdure.core.lane import uses_of
from perdure.core.limit_key import DEPENDENCY, ORG
from perdure.core.model import ONLY, TERMINAL
from perdure.core.naming import NAME, NAME_RULE
from perdure.engine import intake
from perdure.engine.pipeline import Pipeline
from perdure.errors import InputInvalid
from perdure.operate.desk import Desk, stage_of
from perdure.operate.nearest import nearest
from perdure.operate.whole_ids import whole_target
from perdure.settings import using
from perdure.store.operations import Cancel, Raise, Requeue
from perdure.store.records import Act, LimitRecord
from perdure.store.text import checked, reason_kept

ENDED = tuple(sorted(TERMINAL))
IF_MEANT = "; if it is meant, say so with `new` (in a command: --new)"


class Acting(Desk):
    """See `app.Perdure` for what each verb promises."""

    async def requeue(
        self, document_id: str, *, from_stage: str | None = None, only: bool = False, at: datetime | None = None,
        delay_s: float = 0.0, reason: str = "", who: str | None = None, org: str | None = None,
    ) -> str:  # fmt: skip
        status = await self.status(document_id, org)
        pipeline = self._pipeline(status.pipeline)
        if from_stage is not None:
            stage_of(pipeline, from_stage)
        fresh = f"{from_stage}{ONLY}" if from_stage is not None and only else from_stage
        if not 0 <= delay_s < math.inf or (at is not None and at.tzinfo is None):
            raise InputInvalid("a requeue is put off by seconds from 0 on, or to a time with a time zone")
        return await self._requeue(
            status.org, status.id, pipeline, fresh, reason, who, intake.moment_ms(at), int(delay_s * 1000)
        )

    async def _requeue(
        self, org: str, document_id: str, pipeline: Pipeline, fresh: str | None, reason: str,
        who: str | None = None, run_at_ms: int | None = None, delay_ms: int = 0,
    ) -> str:  # fmt: skip
        why, by = reason_kept(reason), self._who(who)
        document = await self.store.document(org, document_id)
        with using(self.given):
            policy = pipeline.policy_of(document.collection if document is not None else "")
            job = replace(intake.first_job(pipeline, policy), run_at_ms=run_at_ms, delay_ms=delay_ms)
        begins = pipeline.at(fresh.removesuffix(ONLY)) if fresh is not None else pipeline.stages[0]
        if document is not None and (begins is None or pipeline.limited(begins)):
            key, each = intake.limit_key(document, pipeline), pipeline.concurrency_per_key
            job = replace(job, limit_key=key, limit_each=each)
        return await self.store.requeue(Requeue(org, document_id, job, fresh, by, why))

    async def cancel(
        self, document_id: str, *, reason: str = "", who: str | None = None, org: str | None = None
    ) -> str:
        why, by = reason_kept(reason), self._who(who)
        return await self.store.cancel(Cancel(*await self._key(document_id, org), by, why))

    async def delete(
        self, document_id: str, *, cancel: bool = False, reason: str = "", who: str | None = None,
        org: str | None = None,
    ) -> str:  # fmt: skip
        why, by = reason_kept(reason), self._who(who)
        status = await self.status(document_id, org)
        key = (status.org, status.id)
        if cancel:
            await self.store.cancel(
                Cancel(*key, by, why)
            )  # refused where it has ended, which is just as well
        return (await self.store.purge([key], ENDED, act=(by, why)))[key]

    async def raise_(
        self, document_id: str, *, reason: str = "", who: str | None = None, org: str | None = None
    ) -> str:
        return await self._raise(document_id, None, reason, who, org)

    async def priority(
        self, document_id: str, priority: int, *, reason: str = "", who: str | None = None, org: str | None = None
    ) -> str:  # fmt: skip
        if not -intake.PRIORITY_BOUND <= priority <= intake.PRIORITY_BOUND:
            bound = intake.PRIORITY_BOUND
            raise InputInvalid(f"a priority is from -{bound} to {bound}, higher first, not {priority}")
        return await self._raise(document_id, priority, reason, who, org)

    async def _raise(
        self, document_id: str, priority: int | None, reason: str, who: str | None, org: str | None
    ) -> str:
        why, by = reason_kept(reason), self._who(who)
        return await self.store.raise_(Raise(*await self._key(document_id, org), by, why, priority))

    async def pause(self, queue: str, *, reason: str = "", who: str | None = None) -> None:
        await self.store.pause(await self._queue(queue), True, self._who(who), reason_kept(reason))

    async def resume(self, queue: str, *, reason: str = "", who: str | None = None) -> None:
        await self.store.pause(await self._queue(queue), False, self._who(who), reason_kept(reason))

    async def _queue(self, name: str) -> str:
        known = sorted(queue.name for queue in await self.store.queues())
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "there are none yet"
            raise InputInvalid(f"there is no queue {name!r} ({there})", code="queue_unknown")
        return name

    async def needed(self) -> list[str]:
        """The names of all dependencies that a pipeline of this app or a row of the store knows."""
        with using(self.given):
            stages = [stage for pipeline in self.pipelines.values() for stage in pipeline.stages]
            own = {name for stage in stages for name in stage.needs}
        lanes = {name for lane in await self.store.lanes() for name in uses_of(lane.name)}
        return sorted(own | lanes | {one.name for one in await self.store.dependencies()})

    async def hold(
        self, dependency: str, reason: str = "held by hand", *, who: str | None = None, new: bool = False
    ) -> None:
        if _dependency(dependency) not in (known := await self.needed()) and not new:
            near = nearest(dependency, known)
            message = f"nothing is known to need {dependency!r}; {near}{IF_MEANT}"
            raise InputInvalid(message, code="dependency_unknown")
        await self.store.hold(dependency, reason_kept(reason), self._who(who))

    async def release(self, dependency: str, reason: str = "", *, who: str | None = None) -> None:
        if _dependency(dependency) not in (known := await self.needed()):
            message = f"there is no dependency {dependency!r}; {nearest(dependency, known)}"
            raise InputInvalid(message, code="dependency_unknown")
        await self.store.release(dependency, self._who(who), reason_kept(reason))

    async def limit(
        self, key: str, *, concurrency: int | None = None, rate_per_s: float | None = None, reason: str = "",
        who: str | None = None, new: bool = False,
    ) -> None:  # fmt: skip
        by, why = self._who(who), reason_kept(reason)
        _check_key(checked(key, "the key"))
        if not new:
            await self.known_limit_key(key, IF_MEANT)
        await self.store.limit(key, concurrency, rate_per_s, by, why)

    async def known_limit_key(self, key: str, more: str = "") -> None:
        """Refuse a key that no document has or had. Raises: InputInvalid, which names the nearest ones."""
        if key not in (known := await self._limit_keys(key)):
            message = f"no document has or had the concurrency key {key!r}; {nearest(key, known)}{more}"
            raise InputInvalid(message, code="limit_key_unknown")

    async def _limit_keys(self, key: str) -> list[str]:
        """What a limit may be set for, of the kind of `key`: organisations, dependencies, or keys of pipelines."""
        if key.startswith(ORG):
            return [ORG + org for org in await self.store.orgs()]
        if key.startswith(DEPENDENCY):
            return [DEPENDENCY + name for name in await self.needed()]
        return await self.store.limit_keys()

    async def limits(self, key: str | None = None) -> list[LimitRecord]:
        return await self.store.limits(key)

    async def weigh(self, org: str, weight: float, *, reason: str = "", who: str | None = None) -> None:
        by, why = self._who(who), reason_kept(reason)
        await self.store.weigh(checked(org, "the organisation"), weight, by, why)

    async def acts(
        self, *, who: str | None = None, verb: str | None = None, target: str | None = None,
        since: datetime | None = None, after: int | None = None, limit: int = 100,
    ) -> list[Act]:  # fmt: skip
        if since is not None and since.tzinfo is None:
            raise InputInvalid("`since` takes a time with a time zone")
        target = None if target is None else await whole_target(self.store, target)
        since_ms = int(since.timestamp() * 1000) if since is not None else None
        return await self.store.acts(limit, who=who, verb=verb, target=target, since_ms=since_ms, after=after)


def not_needed(name: str, known: list[str]) -> str | None:
    """Return the warning for a hold of a name that nobody knew before. It may be right: a stage with a fallback and a
    service that was never called leave no row."""
    if name in known:
        return None
    return f"no stage is known to need {name} (known: {', '.join(known) or 'none'}); release it if that is a typo"


def _check_key(key: str) -> None:
    """Refuse the key of a limit that no document can ever have. Raises: InputInvalid."""
    if key.startswith(DEPENDENCY):
        _dependency(key.removeprefix(DEPENDENCY))
    elif key in ("", ORG):
        raise InputInvalid(
            f"{key!r} is not a key; write {ORG}NAME, {DEPENDENCY}NAME, or what a `concurrency_key` gives"
        )


def _dependency(name: str) -> str:
    if not NAME.fullmatch(name):
        raise InputInvalid(f"a dependency is called as stages name it in `needs`: {NAME_RULE}, not {name!r}")
    return name
