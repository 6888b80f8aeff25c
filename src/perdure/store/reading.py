"""The reading half of the store: committed state, straight from the database, past the flusher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from perdure.core.clock import Clock
from perdure.core.gathered import Gathered
from perdure.core.lane import needs_of, plain
from perdure.core.model import Job, is_gathered, job_name, repairs
from perdure.errors import InputInvalid
from perdure.store import exchange, rows
from perdure.store.base import DataRefused, Driver, Query, Row, Steps
from perdure.store.counting import Counts, told
from perdure.store.records import (
    ALL,
    Attempt,
    AttemptPlace,
    Checkpoint,
    DependencyRecord,
    DocumentRecord,
    Kpi,
    LaneRecord,
    Part,
    QueueRecord,
    Reporter,
    SavedItem,
    SavedStage,
    Status,
    Tally,
)

T = TypeVar("T")
ATTEMPTS_MAX = 1_000  # that are told at once
AFTER_ALL = "\U0010ffff"  # comes after every character of an id


class Reading:
    """See `perdure.store.base.Store` for what each verb promises."""

    driver: Driver
    sql: Any
    clock: Clock

    async def status(self, org: str, document_id: str) -> Status | None:
        found = await self._rows(self.sql.STATUS, org, document_id)
        return rows.status(found[0]) if found else None

    async def statuses(self, org: str, ids: Sequence[str]) -> list[Status]:
        """Where these documents stand, in any order; those that are not there are left out."""
        wanted = [(org, id_) for id_ in ids]
        return [rows.status(row) for row in await self._read(one(Query(self.sql.STATUSES, rows=wanted)))]

    async def jobs_open(self, org: str, ids: Sequence[str]) -> list[str]:
        """The keys of these documents' jobs that have not ended, follow-ups too."""
        wanted = [(org, id_) for id_ in ids]
        return [row[0] for row in await self._read(one(Query(self.sql.JOBS_OPEN, rows=wanted)))]

    async def items_saved(self, statuses: Sequence[Status]) -> dict[str, int]:
        """How many items each document has saved of the stage and in the generation that it is in."""
        wanted = [(s.org, s.id, s.pipeline, s.stage, s.generation) for s in statuses]
        return dict(await self._read(one(Query(self.sql.ITEMS_SAVED, rows=wanted)))) if wanted else {}

    async def checkpoints(
        self, after: tuple[str, str], limit: int, stage: str, was: str | None = None
    ) -> list[Checkpoint]:
        """The next documents after (organisation, id), each with its newest save of the stage."""
        return [Checkpoint(*row) for row in await self._rows(self.sql.CHECKPOINTS, *after, limit, stage, was)]

    async def find(self, document_id: str) -> str | None:
        """The organisation of a document."""
        found = await self._rows(self.sql.FIND, document_id)
        return found[0][0] if found else None

    async def find_like(self, beginning: str, org: str | None, limit: int) -> list[tuple[str, str]]:
        """Organisation and id of the first documents whose id begins so."""
        span = (beginning, beginning + AFTER_ALL, limit)
        asked = (self.sql.FIND_LIKE, org, *span) if org is not None else (self.sql.FIND_LIKE_ANY, *span)
        return [(row[0], row[1]) for row in await self._rows(*asked)]

    async def document(self, org: str, document_id: str) -> DocumentRecord | None:
        found = await self._rows(self.sql.DOCUMENT, org, document_id)
        return DocumentRecord(*found[0]) if found else None

    async def attempts(
        self, org: str, document_id: str, before: AttemptPlace | None = None, most: int = ATTEMPTS_MAX
    ) -> list[Attempt]:
        """Claims of the document that ended, the newest `most`, oldest first; those before that place, if given."""
        since = before or (None, None, None, None)
        found = await self._rows(self.sql.ATTEMPTS, org, document_id, *since, most)
        return [rows.attempt_record(row) for row in reversed(found)]

    async def gathered(self, job: Job, since: int) -> Gathered | None:
        def steps() -> Steps[Gathered | None]:
            if (yield Query(self.sql.SPAWNED, (job.org, job.id))):
                return None
            documents: dict[str, dict[str, int]] = {}
            degraded: Counter[str] = Counter()
            for pipeline, state, n, pending in (yield Query(self.sql.CHILDREN, (job.org, job.document_id))):
                documents.setdefault(pipeline, {})[state] = n
                degraded[pipeline] += pending
            ended = yield Query(self.sql.FOLLOWED, (job.org, job.document_id, since, job.generation))
            named = [(job_name(key, generation), outcome) for key, generation, outcome in ended]
            return Gathered(documents, {n: o for n, o in named if is_gathered(n)}, dict(+degraded))

        return await self._read(steps)

    async def jobs_failed(self, job: Job, since: int) -> dict[str, tuple[str, bytes | None]]:
        which = (job.org, job.document_id, since, job.generation)

        def steps() -> Steps[dict[str, tuple[str, bytes | None]]]:
            ended = yield Query(self.sql.FOLLOWED, which)
            last = {job_name(key, generation): generation for key, generation, _ in ended}
            failed = {}
            for key, generation, pipeline, input in (yield Query(self.sql.JOBS_FAILED, which)):
                name = job_name(key, generation)
                if repairs(key) and pipeline != job.pipeline:
                    name = pipeline  # what it was to repair
                if is_gathered(name) and last.get(name, 0) <= generation:
                    failed[name] = (pipeline, input)
            return failed

        return await self._read(steps)

    async def saves(
        self, org: str, document_id: str, pipeline: str, generation: int | None = None
    ) -> list[SavedStage]:
        """The newest save of each stage; with a generation, what a job of it may read: the newest up to it, and the
        newest before it. In the order of generations."""
        found = await self._rows(self.sql.SAVES, org, document_id, pipeline, generation)
        return [SavedStage(*(*row[:-1], bool(row[-1]))) for row in found]

    async def items(
        self, org: str, document_id: str, pipeline: str, stage: str, fingerprint: str, generation: int
    ) -> list[SavedItem]:
        found = await self._rows(self.sql.ITEMS, org, document_id, pipeline, stage, fingerprint, generation)
        return [SavedItem(*row) for row in found]

    async def rows(self, org: str, document_id: str, name: str, page: Part = ALL) -> list[tuple[str, bytes]]:
        found = await self._rows(self.sql.ROWS, org, document_id, name, page.most, page.first)
        return [(row[0], row[1]) for row in found]

    async def lanes(self) -> list[LaneRecord]:
        found = {
            plain(name): LaneRecord(plain(name), *rest) for name, *rest in await self._rows(self.sql.LANES)
        }
        return list(found.values())

    async def dependencies(self) -> list[DependencyRecord]:
        """Every dependency that a lane names or that was ever held or called, by name."""

        def steps() -> Steps[list[DependencyRecord]]:
            now_ms = (yield Query(self.sql.NOW, (self.clock.now_ms(),)))[0][0]
            reporters: dict[str, list[Reporter]] = {}
            for name, *row in (yield Query(self.sql.REPORTERS_OF_ALL, (now_ms - exchange.STANDING_MS,))):
                reporters.setdefault(name, []).append(Reporter(*row))
            found_rows = yield Query(self.sql.DEPENDENCIES)
            known = [rows.dependency(row, reporters.get(row[0], []), now_ms) for row in found_rows]
            found = {dependency.name: dependency for dependency in known}
            held: Counter[str] = Counter()
            for lane, waiting in told((yield Query(self.sql.COUNTS))).held.items():
                held.update(dict.fromkeys(needs_of(lane), waiting))
            return [
                replace(found.get(name, DependencyRecord(name)), held=held[name])
                for name in sorted({*found, *held})
            ]

        found = await self._read(steps)
        return [one if one.since_ms is not None else replace(one, held=0) for one in found]

    async def kpis(self, since_ms: int) -> list[Kpi]:
        return await self._read(lambda: exchange.kpis(self.sql, since_ms))

    async def down(self) -> frozenset[str]:
        return frozenset(row[0] for row in await self._rows(self.sql.DEPENDENCIES_DOWN))

    async def queues(self) -> list[QueueRecord]:
        """Every queue, by name."""

        def steps() -> Steps[list[QueueRecord]]:
            since: dict[str, list[int]] = {}
            for *flow, _, closed in (yield Query(self.sql.FLOWS)):
                for suspect in (False, True) if not closed else ():
                    ready = yield Query(self.sql.READY_SINCE, (*flow, suspect))
                    since.setdefault(flow[0], []).extend(n for (n,) in ready if n)
            return [
                QueueRecord(name, bool(paused), min(since.get(name, ()), default=None))
                for name, paused in (yield Query(self.sql.QUEUES))
            ]

        return await self._read(steps)

    async def counts(self) -> Counts:
        """How many there are of everything, at one moment; it costs the same with a million documents."""
        return told(await self._rows(self.sql.COUNTS))

    async def live(self) -> dict[str, int]:
        """How many documents that have not ended are in each state."""
        return (await self.counts()).live

    async def counted(self, name: str) -> int:
        found = await self._rows(self.sql.TALLY, name)
        return int(found[0][0]) if found else 0

    async def blob_named(self, hash_: str) -> bool:
        """Whether any row names this blob."""
        return bool(await self._rows(self.sql.BLOB_NAMED, hash_))

    async def tally(self, queues: Sequence[str] | None = None) -> Tally:
        def steps() -> Steps[Tally]:
            counts = told((yield Query(self.sql.COUNTS)))
            fenced = int((yield Query(self.sql.FENCED))[0][0])
            ours = {
                queue: states for queue, states in counts.queues.items() if queues is None or queue in queues
            }
            dues = [due_ms for queue, due_ms in counts.due_ms.items() if queues is None or queue in queues]
            return Tally(counts.states(), ours, min(dues, default=None), fenced)

        return await self._read(steps)

    async def now_ms(self) -> int:
        """The store's time."""
        return int((await self._rows(self.sql.NOW, self.clock.now_ms()))[0][0])

    async def _read(self, steps: Callable[[], Steps[T]]) -> T:
        try:
            return await self.driver.read(steps)
        except DataRefused as refused:
            raise InputInvalid(f"this cannot be looked up: {refused}", code="text_broken") from refused

    async def _rows(self, sql: str, *params: Any) -> list[Row]:
        return await self._read(one(Query(sql, params)))


def one(query: Query) -> Callable[[], Steps[list[Row]]]:
    """Steps of a single statement."""

    def steps() -> Steps[list[Row]]:
        return (yield query)

    return steps
