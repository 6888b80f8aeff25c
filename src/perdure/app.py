"""The composition root: settings → store, blobs, engine. The doors (CLI, API, web) and library users speak to this.

    with Perdure("sqlite:///books.db", pipelines=[books]) as app:      # plain code
    async with Perdure("sqlite:///books.db", pipelines=[books]) as app:  # the same verbs, awaited

`Perdure` runs an `AsyncPerdure` in a thread of its own and waits for its answers.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack

from perdure.blocking import Administration
from perdure.core.chunk import Chunk, Connection
from perdure.core.clock import Clock
from perdure.core.escalation import Escalation
from perdure.core.events import Listener
from perdure.engine.address import stop_if_loading
from perdure.engine.fork_signals import own_signals
from perdure.engine.pipeline import Pipeline
from perdure.engine.working import Summary
from perdure.errors import UsageError
from perdure.operate.audit import Audit, Progress
from perdure.operate.choosing import DeadOptions
from perdure.operate.dead import DeadPage, Imported, Inspected
from perdure.operate.groups import Group
from perdure.operate.purge import Exported, Purged
from perdure.operate.requeue import Requeued, RequeueOptions
from perdure.operate.rerun import Rerun, RerunOptions
from perdure.operate.retention import Retained
from perdure.operate.sweeping import Sweep
from perdure.operate.timeline import Happening
from perdure.operate.timeline import Page as TimelinePage
from perdure.operate.why import Why
from perdure.service import AddOptions, AsyncPerdure, ListOptions
from perdure.settings import Settings
from perdure.store.operations import Added
from perdure.store.records import Act, Attempt, DependencyRecord, Hit, Kpi, LimitRecord, Status

T = TypeVar("T")
__all__ = ["AsyncPerdure", "Perdure", "Summary"]

NOT_OPEN = "the app is not open; use it inside `with Perdure(...) as app:`"


class Perdure(Administration):
    """An app over one store. Inert until entered; `with` gives the plain form, `async with` the awaited one."""

    def __init__(
        self,
        store: str | None = None,
        *,
        pipelines: Iterable[Pipeline] = (),
        blobs: str | None = None,
        concurrency: int | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.service = AsyncPerdure(
            store, pipelines=pipelines, blobs=blobs, concurrency=concurrency, settings=settings, clock=clock
        )
        self._portal: Portal | None = None

    # --- entering --------------------------------------------------------------------------------

    async def __aenter__(self) -> AsyncPerdure:
        stop_if_loading()
        await self.service.start()
        return self.service

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.service.close()

    def __enter__(self) -> Perdure:
        stop_if_loading()
        if self._portal is not None:
            raise UsageError("the app is open already; make another one to use it twice", code="app_open")
        self._portal = Portal()
        try:
            self._call(self.service.start())
        except BaseException:
            self._portal.close()
            self._portal = None
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._portal is not None:
            try:
                self._call(self.service.close())
            finally:
                self._portal.close()
                self._portal = None

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._portal is None:
            work.close()
            raise UsageError(NOT_OPEN, code="app_closed")
        return self._portal.call(work)

    # --- documents -------------------------------------------------------------------------------

    def add(self, *, pipeline: Pipeline | str, **options: Unpack[AddOptions]) -> Added:
        """Take a document in: exactly one of text, url, data, json and path. Durable when this returns.

        A document that is there already is answered by `exists`, with its `state`. A dead one starts again, and a URL
        that was processed before is fetched again (`requeued`); something else under a known `key` takes the place of
        the old content (`refreshed`, else `unchanged`).
        """
        return self._call(self.service.add(pipeline=pipeline, **options))

    def add_many(self, entries: Iterable[AddOptions], *, pipeline: Pipeline | str) -> list[Added]:
        """Take many documents in, hundreds to a transaction; the answers in order."""
        return self._call(self.service.add_many(entries, pipeline=pipeline))

    def status(self, document_id: str, org: str | None = None, words: str | None = None) -> Status:
        """Where the document stands; with `words` (`bullmq`, `images`) in the words of that system. DocumentUnknown.
        An id may be abbreviated to 6 characters or more that tell it apart, here and wherever one is taken."""
        return self._call(self.service.status(document_id, org, words))

    def documents(self, **which: Unpack[ListOptions]) -> list[Status]:
        """Documents, those that came last first. `state` takes the words of other systems too, `name` any part of it,
        `after` the `place` (or the id) of the last one of the page before.

        documents(state="failed", created_after=datetime(2030, 1, 1, tzinfo=UTC))
        """
        return self._call(self.service.documents(**which))

    def overview(self) -> dict[str, Any]:
        """The whole store at one moment, what needs a person first; `operate.status` says which keys there are."""
        return self._call(self.service.overview())

    def why(self, document_id: str, org: str | None = None) -> Why:
        """One sentence: what the document waits for, for how long, what happens next, and what to press if anything."""
        return self._call(self.service.why(document_id, org))

    def timeline(self, document_id: str, org: str | None = None) -> list[Happening]:
        """All that happened to the document, in order and with durations."""
        return self._call(self.service.timeline(document_id, org))

    def timeline_page(
        self, document_id: str, org: str | None = None, *, after: str | None = None, limit: int = 1_000
    ) -> TimelinePage:
        """The last part of that, of `limit` attempts at most; what was before is after its `next`."""
        return self._call(self.service.timeline_page(document_id, org, after=after, limit=limit))

    def attempts(
        self, document_id: str, org: str | None = None, *, after: str | None = None, limit: int = 1_000
    ) -> list[Attempt]:
        """The newest claims of the document that ended, oldest first; those before them are after the `place` of the
        first one."""
        return self._call(self.service.attempts(document_id, org, after=after, limit=limit))

    def output(
        self, document_id: str, stage: str, org: str | None = None, pipeline: str | None = None
    ) -> Any:
        """What a stage of the document saved, as its type; StageUnknown if it has not been saved. `pipeline` names that
        of a follow-up job."""
        return self._call(self.service.output(document_id, stage, org, pipeline))

    def rows(self, document_id: str, name: str, org: str | None = None) -> list[tuple[dict[str, Any], Any]]:
        """Rows that stages of the document emitted under this name: (key, data)."""
        return self._call(self.service.rows(document_id, name, org))

    def chunks(self, document_id: str, org: str | None = None) -> list[Chunk]:
        """The document's chunks, in order."""
        return self._call(self.service.chunks(document_id, org))

    def connections(
        self, document_id: str, chunk_id: str | None = None, org: str | None = None
    ) -> list[Connection]:
        """Chunks of other documents that are about the same as this one's, or as one chunk of it."""
        return self._call(self.service.connections(document_id, chunk_id, org))

    def search(
        self, query: str, *, org: str | None = None, collection: str | None = None, document: str | None = None,
        limit: int = 10,
    ) -> list[Hit]:  # fmt: skip
        """The chunks that fit the query best, by words ("in quotes": a phrase) and by meaning."""
        found = self.service.search(query, org=org, collection=collection, document=document, limit=limit)
        return self._call(found)

    # --- other services --------------------------------------------------------------------------

    def remote_finish(
        self,
        document_id: str,
        token: int | str,
        output: Any,
        *,
        org: str | None = None,
        job: str | None = None,
    ) -> str:
        """A remote stage is done, with the token of its event: `saved`, `repeated`, `failed: why` or `refused: why`."""
        return self._call(self.service.remote_finish(document_id, token, output, org=org, job=job))

    def remote_fail(
        self, document_id: str, token: int | str, *, code: str = "remote_failed", message: str = "",
        retryable: bool = True, retry_after_s: float | None = None, org: str | None = None, job: str | None = None,
    ) -> str:  # fmt: skip
        """A remote stage could not be done; decided like a failure here: `failed`, `repeated` or `refused: why`."""
        asked = self.service.remote_fail(
            document_id, token, code=code, message=message, retryable=retryable, retry_after_s=retry_after_s, org=org,
            job=job,
        )  # fmt: skip
        return self._call(asked)

    def remote_beat(
        self, document_id: str, token: int | str, *, org: str | None = None, job: str | None = None
    ) -> str:
        """A service is at work on a remote stage, and its lease begins anew: `renewed` or `refused: why`."""
        return self._call(self.service.remote_beat(document_id, token, org=org, job=job))

    # --- operators -------------------------------------------------------------------------------

    def requeue(
        self, document_id: str, *, from_stage: str | None = None, only: bool = False, at: datetime | None = None,
        delay_s: float = 0.0, reason: str = "", who: str | None = None, org: str | None = None,
    ) -> str:  # fmt: skip
        """Start a new generation of a finished document: `requeued`, or `refused: why`.

        What earlier generations saved is taken up, except from `from_stage` on; with `only`, except that stage: those
        after it run again where what they read has changed. It waits until `at`, or for `delay_s`.
        """
        asked = self.service.requeue(
            document_id, from_stage=from_stage, only=only, at=at, delay_s=delay_s, reason=reason, who=who, org=org
        )  # fmt: skip
        return self._call(asked)

    def rerun(self, **options: Unpack[RerunOptions]) -> Rerun:
        """Requeue every finished document of a pipeline that fits `where` from a stage on; how many there were.

        rerun(pipeline="document", from_stage="embed", where={"model": "old"})
        """
        return self._call(self.service.rerun(**options))

    def dead(self, *, after: str | None = None, limit: int = 100, **which: Unpack[DeadOptions]) -> DeadPage:
        """Dead documents, those that died last first, a page at a time.

        dead(failed="archives.failed", older_than="2h", code="http_404")
        """
        return self._call(self.service.dead(after=after, limit=limit, **which))

    def groups(self, *, limit: int = 20, **which: Unpack[DeadOptions]) -> list[Group]:
        """Dead documents by cause, the largest group first, each with what to do about it."""
        return self._call(self.service.groups(limit=limit, **which))

    def inspect(self, document_id: str, org: str | None = None) -> Inspected:
        """All there is to know about a dead document; DocumentUnknown, MoveForbidden if it is not dead."""
        return self._call(self.service.inspect(document_id, org))

    def requeue_dead(
        self, ids: Sequence[str] = (), *, how: RequeueOptions | None = None, **which: Unpack[DeadOptions]
    ) -> Requeued:
        """Requeue dead documents: these, or all that fit. They take up what is saved of them.

        requeue_dead(group="3f9a", how={"canary": 10, "rate": 50, "reason": "the service is back"})
        """
        return self._call(self.service.requeue_dead(ids, how=how, **which))

    def export(
        self, target: str | Path, ids: Sequence[str] = (), *, who: str | None = None, reason: str = "",
        **which: Unpack[DeadOptions],
    ) -> Exported:  # fmt: skip
        """Write dead documents with content and history to a file of JSON lines (.gz: compressed)."""
        return self._call(self.service.export(target, ids, who=who, reason=reason, **which))

    def import_(self, source: str | Path, *, who: str | None = None, reason: str = "") -> Imported:
        """Bring back what `export` wrote: dead, with its history, ready to be requeued."""
        return self._call(self.service.import_(source, who=who, reason=reason))

    def purge(
        self, ids: Sequence[str] = (), *, export: str | Path | None, reason: str = "", who: str | None = None,
        dry_run: bool = False, **which: Unpack[DeadOptions],
    ) -> Purged:  # fmt: skip
        """Delete dead documents with everything that is theirs; `export` names a file that has them afterwards, None
        does without."""
        asked = self.service.purge(ids, export=export, reason=reason, who=who, dry_run=dry_run, **which)
        return self._call(asked)

    def cancel(
        self, document_id: str, *, reason: str = "", who: str | None = None, org: str | None = None
    ) -> str:
        """End a document now; a worker that runs it is fenced: `cancelled`, or `refused: why`."""
        return self._call(self.service.cancel(document_id, reason=reason, who=who, org=org))

    def delete(
        self, document_id: str, *, cancel: bool = False, reason: str = "", who: str | None = None,
        org: str | None = None,
    ) -> str:  # fmt: skip
        """Delete a document that has ended, with everything that is its own, but not its children: `purged`, or
        `refused: why`. With `cancel` one in progress is ended first."""
        return self._call(self.service.delete(document_id, cancel=cancel, reason=reason, who=who, org=org))

    def raise_(
        self, document_id: str, *, reason: str = "", who: str | None = None, org: str | None = None
    ) -> str:
        """Put a document before all others: `raised`, or `refused: why`."""
        return self._call(self.service.raise_(document_id, reason=reason, who=who, org=org))

    def priority(
        self, document_id: str, priority: int, *, reason: str = "", who: str | None = None, org: str | None = None
    ) -> str:  # fmt: skip
        """Give a document that waits for its turn another priority (-100 to 100): `changed`, or `refused: why`."""
        return self._call(self.service.priority(document_id, priority, reason=reason, who=who, org=org))

    def pause(self, queue: str, *, reason: str = "", who: str | None = None) -> None:
        """Claim nothing more from the queue, in any worker."""
        self._call(self.service.pause(queue, reason=reason, who=who))

    def resume(self, queue: str, *, reason: str = "", who: str | None = None) -> None:
        """Claim from the queue again."""
        self._call(self.service.resume(queue, reason=reason, who=who))

    def hold(
        self, dependency: str, reason: str = "held by hand", *, who: str | None = None, new: bool = False
    ) -> None:
        """Hold every document whose next stage needs the dependency. Raises: InputInvalid, if it is unknown and not
        `new`."""
        self._call(self.service.hold(dependency, reason, who=who, new=new))

    def release(self, dependency: str, reason: str = "", *, who: str | None = None) -> None:
        """Let held documents go on."""
        self._call(self.service.release(dependency, reason, who=who))

    def dependencies(self) -> list[DependencyRecord]:
        """Every service that stages need or call: up, down or ramping, since when, why, and how many wait for it."""
        return self._call(self.service.dependencies())

    def kpis(self, hours: float = 24) -> list[Kpi]:
        """How calls to each service went in the last hours: operations, retries, failures, added latency."""
        return self._call(self.service.kpis(hours))

    def limit(
        self, key: str, *, concurrency: int | None = None, rate_per_s: float | None = None, reason: str = "",
        who: str | None = None, new: bool = False,
    ) -> None:  # fmt: skip
        """Bound how many documents with this concurrency key run at once, and how many start per second. Raises:
        InputInvalid, if no document has or had the key and it is not `new`."""
        asked = self.service.limit(
            key, concurrency=concurrency, rate_per_s=rate_per_s, reason=reason, who=who, new=new
        )
        self._call(asked)

    def limits(self, key: str | None = None) -> list[LimitRecord]:
        """What bounds each concurrency key, how many are let in, and how many wait for room."""
        return self._call(self.service.limits(key))

    def weigh(self, org: str, weight: float, *, reason: str = "", who: str | None = None) -> None:
        """An organisation of weight 2 gets twice the turns of one of weight 1."""
        self._call(self.service.weigh(org, weight, reason=reason, who=who))

    def escalation(self) -> Escalation:
        """Who should look, and by when: tier 1 (nobody) to 4 (at once)."""
        return self._call(self.service.escalation())

    def retain(self) -> Retained:
        """Delete the documents that are beyond the limits that are set, dead ones after they were exported."""
        return self._call(self.service.retain())

    def audit(
        self,
        *,
        recount: bool = False,
        progress: Callable[[Progress], None] | None = None,
        who: str | None = None,
        reason: str = "",
    ) -> Audit:
        """Whether all that was accepted is there and belongs together; `recount` counts anew first, and changes
        counters, nothing else. `progress` is told, in another thread, what is being looked at."""
        return self._call(self.service.audit(recount=recount, progress=progress, who=who, reason=reason))

    def sweep(self, *, reason: str = "", who: str | None = None) -> Sweep:
        """Look for documents that do not get on, and see to leases, due documents and old rows, as workers do, too.
        With `reason` or `who` it is in the trail."""
        return self._call(self.service.sweep(reason=reason, who=who))

    def acts(
        self, *, who: str | None = None, verb: str | None = None, target: str | None = None,
        since: datetime | None = None, after: int | None = None, limit: int = 100,
    ) -> list[Act]:  # fmt: skip
        """What operators did, newest first; `after` takes the id of the last act of the page before."""
        asked = self.service.acts(who=who, verb=verb, target=target, since=since, after=after, limit=limit)
        return self._call(asked)

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Be told of every event in this process, until what this returns is called."""
        return self.service.subscribe(listener)

    # --- running ---------------------------------------------------------------------------------

    def run_until_idle(self, wait: float = 0.0) -> Summary:
        """Work until nothing is ready or running in our queues and nothing falls due within `wait` seconds."""
        return self._call(self.service.run_until_idle(wait))

    def run(self) -> None:
        """Work until SIGTERM or Ctrl-C (twice: at once). Leases are renewed from a thread here; `perdure worker` is
        stronger."""
        if self._portal is None:
            raise UsageError(NOT_OPEN, code="app_closed")
        asked, again = threading.Event(), threading.Event()
        previous = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                previous[number] = signal.signal(
                    number, lambda *_: again.set() if asked.is_set() else asked.set()
                )
        try:
            with own_signals(*previous):
                running = self._portal.start(self.service.run())
                while not asked.wait(0.2) and not running.done():
                    pass
                if not running.done():
                    self._call(self.service.stop())
                while not running.done() and not again.wait(0.2):
                    pass
                if again.is_set():
                    self._call(self.service.stop())
                running.result()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)


class Portal:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="perdure-loop", daemon=True)
        self._thread.start()

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
                break
            except (SystemExit, KeyboardInterrupt):
                continue  # a task of somebody's stage wanted to exit; this thread ends only when it is closed
        self._loop.close()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        async def cancel_all() -> None:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self._loop.shutdown_asyncgens()

        with suppress(Exception):
            self.start(cancel_all()).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
