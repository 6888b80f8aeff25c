"""What operators do about dead documents and follow-up jobs, as verbs of the app: see, group, run again, take away.

Called by the library, the command and the API. `choosing` says which are meant, `groups` and `advice` why they died and
what to do, `requeue`, `purge`, `export` and `restore` do it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Unpack

from perdure.core.frozen import frozen
from perdure.core.model import HOOKS
from perdure.errors import InputInvalid, MoveForbidden
from perdure.operate.advice import advise
from perdure.operate.choosing import Choice, DeadOptions, choose, cursor, place, placed, resolved
from perdure.operate.desk import Desk
from perdure.operate.export import Target
from perdure.operate.groups import Group, facts, groups
from perdure.operate.known_options import refuse_unknown
from perdure.operate.purge import Exported, Purged, exporting, purging, streaming
from perdure.operate.requeue import Requeued, RequeueOptions, Requeuing
from perdure.operate.restore import Answer, restore
from perdure.store.blobs import CheckedBlobs
from perdure.store.records import Attempt, DeadRecord
from perdure.store.stuck import COLLECTIONS
from perdure.store.text import reason_kept

LIMIT_MAX = 1_000


@frozen
class DeadPage:
    """Dead documents, those that died last first; `after` leads to the next page, None: there is none."""

    documents: list[DeadRecord]
    after: str | None


@frozen
class Inspected:
    """All there is to know about a dead document."""

    document: DeadRecord
    meta: dict[str, Any]
    attempts: list[Attempt]
    saved: list[str]  # stages that a requeue takes up
    acts: list[dict[str, Any]]
    action: str
    advice: str
    traceback: str | None = None  # of the attempt that it died of


@frozen
class Imported:
    """How many lines of a file were read, and what became of them."""

    lines: int = 0
    imported: int = 0
    exists: int = 0
    refused: int = 0
    answers: tuple[Answer, ...] = ()  # since the last time


class DeadVerbs(Desk):
    """See `app.Perdure` for what each verb promises."""

    blobs: CheckedBlobs

    async def dead(
        self, *, after: str | None = None, limit: int = 100, **which: Unpack[DeadOptions]
    ) -> DeadPage:
        where = await resolved(self.store, which, self._names())
        size = _size(limit)
        found = await self.store.dead(where, None if after is None else placed(after), size + 1)
        more = cursor(place(found[size - 1])) if len(found) > size else None
        return DeadPage(found[:size], more)

    async def groups(self, *, limit: int = 20, **which: Unpack[DeadOptions]) -> list[Group]:
        where = await resolved(self.store, which, self._names())
        return await groups(self.store, where, _size(limit))

    async def inspect(self, document_id: str, org: str | None = None) -> Inspected:
        status = await self.status(document_id, org)
        document_id = status.id
        dead = await self.store.dead_of(status.org, document_id)
        found = await self.store.archived([(status.org, document_id)])
        if not dead or not found:
            raise MoveForbidden(f"document {document_id} is {status.state}, not dead; see its status")
        one = dead[0]  # itself, or the first of its follow-up jobs
        advice = advise(facts(one, await self.store.down(), await self.store.now_ms()))
        saves = await self.store.saves(status.org, document_id, one.pipeline)
        return Inspected(
            one, json.loads(found[0].document["meta"]), await self.store.attempts(status.org, document_id),
            list(dict.fromkeys(save.stage for save in saves)),
            [{name: act[name] for name in ("at_ms", "who", "verb", "reason")} for act in found[0].acts],
            str(advice.action), advice.text, await self.store.traceback(one),
        )  # fmt: skip

    async def choose(self, ids: Sequence[str] = (), **which: Unpack[DeadOptions]) -> Choice:
        """Which documents are meant; to be given to the verbs that end in -ing."""
        return await choose(self.store, which, ids, self._names())

    def _names(self) -> set[str]:
        """What stages, pipelines and follow-up jobs of this app are called."""
        stages = {stage.name for pipeline in self.pipelines.values() for stage in pipeline.stages}
        return {*self.pipelines, *stages, *COLLECTIONS, *HOOKS}

    async def requeue_dead(
        self, ids: Sequence[str] = (), *, how: RequeueOptions | None = None, **which: Unpack[DeadOptions]
    ) -> Requeued:
        choice = await self.choose(ids, **which)
        answers: list[tuple[str, str]] = []
        told = Requeued()
        async for told in self.requeuing(choice, how or RequeueOptions()):
            answers += told.answers
        return Requeued(
            told.found, told.requeued, told.refused, told.canary, told.stopped, tuple(dict(answers).items())
        )

    def requeuing(self, choice: Choice, how: RequeueOptions) -> AsyncGenerator[Requeued, None]:
        """`requeue_dead` step by step, for whoever shows how far it is or wants to stop it (then close it)."""
        refuse_unknown("requeue_dead", how, RequeueOptions)
        how = {**how, "reason": reason_kept(how.get("reason", ""))}
        by = self._who(how.get("who"))
        return Requeuing(self.store, self.pipelines, choice, by, how, self.given).run()

    async def export(
        self, target: str | Path, ids: Sequence[str] = (), *, who: str | None = None, reason: str = "",
        **which: Unpack[DeadOptions],
    ) -> Exported:  # fmt: skip
        return [told async for told in self.exporting(await self.choose(ids, **which), target, who, reason)][
            -1
        ]

    async def exporting(
        self, choice: Choice, target: Target, who: str | None = None, reason: str = ""
    ) -> AsyncGenerator[Exported, None]:
        """`export` page by page. Raises: StoreReadOnly, before anything is written: what leaves the store is in the
        trail."""
        self.store.must_write()
        by, why = self._who(who), reason_kept(reason)
        told = Exported()
        async with aclosing(exporting(self.store, self.blobs, choice, target)) as doing:
            async for told in doing:
                yield told
        if told.exported:
            what = f"dead: {choice.words}: {told.exported} exported to {target}"
            await self.store.act(by, "export", choice.where.org, what, why)

    async def export_streaming(
        self, choice: Choice, who: str | None = None, reason: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """`export` as the lines themselves, in pieces. What was read of them when the stream is closed is in the trail
        as well. Raises: StoreReadOnly."""
        self.store.must_write()
        by, why = self._who(who), reason_kept(reason)
        begun: Counter[str] = Counter()
        try:
            async with aclosing(
                streaming(self.store, self.blobs, choice, lambda: begun.update(("lines",)))
            ) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            if begun:
                what = f"dead: {choice.words}: {begun.total()} exported to a stream"
                await self.store.act(by, "export", choice.where.org, what, why)

    async def import_(self, source: str | Path, *, who: str | None = None, reason: str = "") -> Imported:
        answers: list[Answer] = []
        told = Imported()
        async for told in self.importing(source, who, reason):
            answers += told.answers
        return Imported(told.lines, told.imported, told.exists, told.refused, tuple(answers))

    async def importing(
        self, source: str | Path, who: str | None = None, reason: str = "", called: str = ""
    ) -> AsyncGenerator[Imported, None]:
        """`import_` some lines at a time; `called`: what the trail calls the source, if not by its path."""
        by, why = self._who(who), reason_kept(reason)
        counts: Counter[str] = Counter()
        try:
            async with aclosing(restore(self.store, self.blobs, source, by, why)) as doing:
                async for answers in doing:
                    counts.update(answer.answer.partition(" ")[0].rstrip(":") for answer in answers)
                    done = (counts["imported"], counts["exists"], counts["refused"])
                    yield Imported(sum(done), *done, answers=tuple(answers))
        finally:
            if counts["imported"]:
                what = f"dead: {counts['imported']} imported from {called or source}"
                await self.store.act(by, "import", None, what, why)

    async def purge(
        self, ids: Sequence[str] = (), *, export: str | Path | None, reason: str = "", who: str | None = None,
        dry_run: bool = False, **which: Unpack[DeadOptions],
    ) -> Purged:  # fmt: skip
        choice = await self.choose(ids, **which)
        answers: list[tuple[str, str]] = []
        told = Purged()
        async for told in self.purging(choice, export, reason, who, dry_run):
            answers += told.answers
        return Purged(told.found, told.exported, told.purged, told.refused, tuple(answers))

    def purging(
        self, choice: Choice, export: str | Path | None, reason: str = "", who: str | None = None,
        dry_run: bool = False,
    ) -> AsyncGenerator[Purged, None]:  # fmt: skip
        """`purge` step by step."""
        why = reason_kept(reason)
        if export is not None and str(export) == "-":
            raise InputInvalid("what is purged is exported to a file, not to standard output")
        return purging(self.store, self.blobs, choice, export, self._who(who), why, dry_run)


def _size(limit: int) -> int:
    if not 1 <= limit <= LIMIT_MAX:
        raise InputInvalid(f"limit must be from 1 to {LIMIT_MAX}, not {limit}")
    return limit
