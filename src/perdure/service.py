"""The app's verbs, awaited. `app.Perdure` wraps this for plain code; `cli.child` runs it under a supervisor."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from perdure.calls.addresses import check_url
from perdure.calls.fleet import Fleet
from perdure.calls.storage import StorageGuard
from perdure.core.chunk import Chunk, Connection
from perdure.core.clock import Clock
from perdure.core.derived import keys_of
from perdure.core.events import Events, Listener
from perdure.core.model import ONLY, ORG_DEFAULT, State, state_filter
from perdure.core.services import CHECKS
from perdure.core.state_words import states_of
from perdure.core.words import asked
from perdure.engine import intake
from perdure.engine.answering import Answered, Answers, answered
from perdure.engine.fetched import saved_raw
from perdure.engine.isolate import Nursery
from perdure.engine.pipeline import Pipeline
from perdure.engine.slate import Slate
from perdure.engine.stage import Stage
from perdure.engine.stuck import policy_of
from perdure.engine.sweeper import Retention
from perdure.engine.working import Working
from perdure.errors import (
    DocumentUnknown,
    InputInvalid,
    Permanent,
    PipelineInvalid,
    SettingInvalid,
    StageUnknown,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from perdure.operate.acts import Acting
from perdure.operate.audit import Auditing
from perdure.operate.choosing import no_place
from perdure.operate.dead import DeadVerbs
from perdure.operate.desk import in_words, or_only, stage_of
from perdure.operate.keys import KeyDesk
from perdure.operate.known_options import refuse_unknown
from perdure.operate.rerun import Conditions, Rerun, RerunOptions, no_such_model, not_on_its_own, rerun
from perdure.operate.retention import limits_of
from perdure.operate.seeing import Seeing
from perdure.operate.sweeping import Sweeping
from perdure.operate.webhooks import WebhookDesk
from perdure.settings import WITHHELD, WITHHELD_SERVER, Settings, absolute_place, absolute_store, using
from perdure.store.base import DataRefused
from perdure.store.blobs import Blobs, CheckedBlobs, DirectoryBlobs, TableBlobs, open_blobs
from perdure.store.open import open_store
from perdure.store.operations import Added, NewDocument, Once, Requeue
from perdure.store.reading import ATTEMPTS_MAX
from perdure.store.records import (
    Attempt,
    AttemptPlace,
    Checkpoint,
    DependencyRecord,
    Hit,
    Kpi,
    Place,
    SavedStage,
    Status,
)
from perdure.store.text import checked, reason_kept
from perdure.watch.board import Board
from perdure.watch.meter import Meter
from perdure.watch.webhooks import Dispatcher

if TYPE_CHECKING:
    from perdure.watch.serve import Scrape

LIGHT_BYTES = 128 << 10  # of what a stage saved: more is decoded beside the event loop
log = logging.getLogger("perdure.search")
ADD_BATCH = 500
CONCURRENCY_MAX = 2000
QUERY_S = 5.0  # that a query waits for its vector
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PAUSE_EVERY = 20  # documents of one transaction that are made ready at one go


class AddOptions(TypedDict, total=False):
    """What `add` takes besides the pipeline: exactly one of text, url, data, json and path."""

    text: str
    url: str
    data: bytes
    json: Any
    path: str | Path
    name: str
    meta: dict[str, Any]
    org: str
    collection: str
    media_type: str
    priority: int
    run_at: datetime
    delay_s: float
    attempts: int
    backoff_s: float
    key: str
    dedupe: bool


class ListOptions(TypedDict, total=False):
    """Which documents `documents` lists: all that is given must hold."""

    state: str | None  # a state, or a word of other systems for some
    status: str | None  # the same, as others call it
    org: str | None
    collection: str | None
    pipeline: str | None
    name: str | None  # any part of it
    created_after: datetime | None  # at that time or later
    created_before: datetime | None
    finished_after: datetime | None  # at that time or later
    finished_before: datetime | None
    words: str | None  # of the system in whose words states are answered
    after: str | None  # `Status.place` of the last one of the page before, or its id
    limit: int


class EncodedOptions(AddOptions, total=False):
    """The same from a door that has encoded content and metadata already, as they are stored."""

    content: intake.Content
    meta_json: bytes


class AsyncPerdure(
    DeadVerbs,
    Acting,
    Seeing,
    Working,
    KeyDesk,
    Sweeping,
    WebhookDesk,
    Auditing,
):
    """An app over one store; see `app.Perdure` for what each verb promises."""

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
        super().__init__()
        self.given = settings  # current wherever options of our pipelines are read and stages run
        self.settings = settings or Settings()
        self.url = absolute_store(store or self.settings.store)
        self.pipelines = _registered(pipelines)
        self.concurrency = self.settings.concurrency if concurrency is None else concurrency
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise SettingInvalid(f"concurrency must be from 1 to {CONCURRENCY_MAX}, not {self.concurrency}")
        self.events = Events()
        self.clock = clock
        self._blobs_url = absolute_place(blobs or self.settings.blobs or "")
        self._connect()
        self.retention = Retention(
            self.settings.retention_age_s * 1000,
            self.settings.retention_count,
            calls_age_ms=self.settings.retry_metrics_age_s * 1000,
        )
        self.meter: Meter | None = None
        self._scrape: Scrape | None = None
        self.stuck_policy = policy_of(self.settings)
        self.keeping = limits_of(self.settings)
        keys_of(self.settings.secret_key)
        self.only_queues: tuple[str, ...] = ()
        self.query_s = QUERY_S

    def use(self, store: str) -> None:
        """Another store than the one it was made for; before `start`."""
        self.url = absolute_store(store)
        self._connect()

    def _connect(self) -> None:
        """A store and blobs that were not opened yet: what was closed cannot be opened again."""
        with using(self.settings):  # new files get the mode that is set
            self.store = open_store(self.url, self.clock, self.settings.direct_url)
            blobs = open_blobs(self._blobs_url, self._blobs_beside, StorageGuard)
        self.store.vector_room_bytes = self.settings.search_memory_mb << 20
        self.store.vectors_by = self.settings.vectors
        self.store.flusher.large_bytes = self.settings.large_bytes
        self.store.events = self.events
        self.blobs = CheckedBlobs(self.store, blobs)
        self._closed = False

    def _blobs_beside(self) -> Blobs:
        directory = getattr(self.store.driver, "directory", None)
        if directory is not None:
            return DirectoryBlobs(directory / "blobs", beside=True)
        reading: Any = getattr(self.store.driver, "reading", None)
        return TableBlobs(reading, lambda: self.store.background.others)

    async def start(self) -> None:
        """Open the store and make our queues and lanes known."""
        if self.url in (WITHHELD, WITHHELD_SERVER):
            raise SettingInvalid(
                "processes of isolated stages do not know the store; return rows and jobs instead of opening it, "
                "or name PERDURE_STORE in PERDURE_CELL_ENV",
                code="store_withheld",
            )
        if self._closed:
            self._connect()
        self._working, self._stopping = asyncio.Lock(), asyncio.Event()  # of the loop that we run in now
        try:
            await self.store.open()
            if (command := self.store.driver.exposed()) is not None:
                logging.getLogger("perdure.store").warning(
                    "other users can use the files of the store; run: %s", command
                )
            if not self.store.only_looks:
                await self.blobs.check_if_reachable()
                with using(self.given):
                    lanes = {stage.lane for p in self.pipelines.values() for stage in p.stages} | {""}
                await self.store.declare(self.queues, sorted(lanes))
                await self._create_tables()
        except BaseException:
            self._closed = True  # what was begun belongs to this loop; the next start may come from another
            with suppress(Exception):
                await self.store.close()
            raise

    async def _create_tables(self) -> None:
        for pipeline in self.pipelines.values():
            if pipeline.tables:
                try:
                    await self.store.create_tables(pipeline.tables)
                except (StoreBusy, StoreUnavailable):
                    raise
                except (StoreError, DataRefused) as error:
                    raise PipelineInvalid(f"the tables of pipeline {pipeline.name}: {error}") from error

    async def work(self, worker: int, slate: Slate, nursery: Nursery) -> None:
        """Claim and run until `stop`, and share with all other workers what the calls of stages learn of services."""
        self.check_settings()
        with using(self.given):
            await self._work(worker, slate, nursery)

    def check_settings(self) -> None:
        """Check what is read late, before anything is claimed. Raises: SettingInvalid, ExtraMissing."""
        if self.settings.pushes:
            self.settings.gateway()
        if self.settings.rabbitmq_host:
            from perdure.watch import bus  # noqa: F401  (an extra, which may be missing)
        with using(self.given):
            for check in CHECKS:
                check()

    async def _work(self, worker: int, slate: Slate, nursery: Nursery) -> None:
        beside = [asyncio.create_task(Fleet(self.store, worker).run(), name="perdure-fleet")]
        webhooks = Dispatcher(self.store, self.settings.allow_loopback, secret_key=self.settings.secret_key)
        beside.append(asyncio.create_task(webhooks.run(), name="perdure-webhooks"))
        if self.meter is not None:
            beside.append(asyncio.create_task(self.meter.run(), name="perdure-meter"))
        if self.keeping.any:
            retaining = self.retaining(self.stuck_policy.interval_s)
            beside.append(asyncio.create_task(retaining, name="perdure-retention"))
        if self.settings.rabbitmq_host:
            from perdure.watch.bus import Bus  # an extra

            bus = Bus(self.settings, self.store, self.answers)
            beside.append(asyncio.create_task(bus.run(), name="perdure-bus"))
        try:
            await super().work(worker, slate, nursery)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def close(self) -> None:
        """Stop working, write what is pending, disconnect."""
        await self.stop()
        async with self._working:
            self._closed = True
            await self.store.close()

    # --- documents -------------------------------------------------------------------------------

    async def add(self, *, pipeline: Pipeline | str, **options: Unpack[AddOptions]) -> Added:
        document = await self._receive(options, pipeline)
        return await self._known((await self.store.add([document]))[0], document)

    async def add_once(
        self,
        entries: Iterable[tuple[Pipeline | str, AddOptions]],
        once: Once | None = None,
        called: str = "",
    ) -> list[Added]:
        """Take documents in, all in one transaction; under a key only the first time. Pipeline `auto`: by content.
        `called`: how the caller calls the list, for errors that name an entry."""
        new = []
        for number, (pipeline, options) in enumerate(entries):
            if number % PAUSE_EVERY == PAUSE_EVERY - 1:
                await asyncio.sleep(0)  # others want an answer, too
            with intake.naming(called and f"{called}.{number}"):
                new.append(await self._receive(options, *self._route(pipeline, options)))
        if once is None:
            return await self._add(new)
        answer = await self.store.add_once(once, new)
        added = answer.added or []
        if answer.finished:
            return added
        final = [await self._known(one, document) for one, document in zip(added, new, strict=True)]
        return await self.store.finish_once(once, final)

    def _route(self, pipeline: Pipeline | str, options: AddOptions) -> tuple[Pipeline | str, AddOptions]:
        if pipeline != "auto":
            return pipeline, {}
        from perdure.pipelines.routing import routed  # heavy, and not everybody asks for it

        entry = dict(options)
        content = entry.get("content")
        if isinstance(content, intake.Content) and content.kind == "bytes":
            entry["path" if isinstance(content.data, Path) else "data"] = content.data
        name, found = routed(entry, self.pipelines)
        more: AddOptions = {}
        more.update(found)  # type: ignore[typeddict-item]
        return or_only(self.pipelines, name), more

    async def add_many(self, entries: Iterable[AddOptions], *, pipeline: Pipeline | str) -> list[Added]:
        answers: list[Added] = []
        batch: list[NewDocument] = []
        for options in entries:
            batch.append(await self._receive(options, pipeline))
            if len(batch) == ADD_BATCH:
                answers += await self._add(batch)
                batch = []
        return answers + (await self._add(batch) if batch else [])

    async def _add(self, batch: list[NewDocument]) -> list[Added]:
        added = await self.store.add(batch)
        return [await self._known(answer, new) for answer, new in zip(added, batch, strict=True)]

    async def _known(self, added: Added, new: NewDocument) -> Added:
        """What was there already: a dead document starts again, a URL is fetched again, and what has a key may have
        other content by now. If it is purged before that, the document is added after all."""
        dead = added.state == "dead"
        if added.answer != "exists" or not (new.may_change or dead):
            return added
        known = await self.store.document(new.org, added.id)
        if known is None:
            return await self._known((await self.store.add([new]))[0], new)
        same = (known.kind, known.content_hash) == (new.kind, new.content_hash)
        if same and new.kind != "url" and not dead:
            return replace(added, answer="unchanged")
        first = f"{new.job.stage}{ONLY}" if same and new.kind == "url" else None
        content = None if same else replace(new, name=new.name or known.name)
        name = new.name if same and intake.is_named(new) else None
        again = Requeue(new.org, added.id, new.job, first, self._who(), "added again", content, name=name)
        answer = await self.store.requeue(replace(again, dead_only=same and new.kind != "url"))
        if answer == "requeued":
            return replace(added, answer=answer if same else "refreshed")
        status = await self.store.status(new.org, added.id)
        if status is None:
            return await self._known((await self.store.add([new]))[0], new)
        return replace(added, state=status.state)  # another caller was first

    async def _receive(
        self, options: AddOptions, pipeline: Pipeline | str, found: AddOptions | None = None
    ) -> NewDocument:
        options = {**options, **(found or {})}
        refuse_unknown("add", options, EncodedOptions)
        if options.get("url") is not None:
            options = {**options, "url": self._url(options["url"])}
        entry, size_max = intake.Entry(**options), self.settings.document_bytes_max
        with using(self.given):
            return await intake.receive(entry, self._pipeline(pipeline), self.blobs, size_max)

    def _url(self, url: str) -> str:
        """The URL in its normal form; what may not be fetched is refused here already."""
        try:
            return check_url(url, allow_loopback=self.settings.allow_loopback)
        except Permanent as refused:
            raise InputInvalid(str(refused), code=refused.code) from None

    async def documents(self, **which: Unpack[ListOptions]) -> list[Status]:
        options = await self._listed(which)
        return in_words(await self.store.documents(**options), which.get("words"))

    async def _listed(self, which: ListOptions) -> dict[str, Any]:
        """The options as the store takes them. Raises: InputInvalid."""
        refuse_unknown("documents", which, ListOptions)
        state, status, after = which.get("state"), which.get("status"), which.get("after")
        if state is not None and status is not None and state != status:
            raise InputInvalid(f"state and status are one word, but they are {state!r} and {status!r} here")
        found: dict[str, Any] = {
            name: which.get(name)
            for name in ("org", "collection", "pipeline", "name", "limit")
            if name in which
        }
        if (word := state if state is not None else status) is not None:
            found["state"], found["stage"] = _states(word, which.get("words"))
        for name in ("created", "finished"):
            found[f"{name}_from_ms"] = _moment(which, f"{name}_after")
            found[f"{name}_to_ms"] = _moment(which, f"{name}_before")
        if after is not None:
            found["after"] = await self._place(after, which.get("org"))
        return found

    async def _place(self, after: str, org: str | None) -> str:
        """A place in the list, which an id names as well while its document is there."""
        try:
            return str(Place.of(after))
        except ValueError:
            pass
        try:
            return (await self.status(after, org)).place
        except DocumentUnknown:
            raise no_place() from None

    async def attempts(
        self, document_id: str, org: str | None = None, *, after: str | None = None, limit: int = ATTEMPTS_MAX
    ) -> list[Attempt]:
        key = await self._key(document_id, org)
        try:
            before = None if after is None else AttemptPlace.of(after)
        except ValueError:
            raise no_place() from None
        return await self.store.attempts(*key, before, limit)

    async def output(
        self, document_id: str, stage: str, org: str | None = None, pipeline: str | None = None
    ) -> Any:
        defined, save = await self._saved(document_id, stage, org, pipeline)
        raw = await saved_raw(save, self.blobs)
        if raw is None or len(raw) <= LIGHT_BYTES:
            return defined.codec.decode(raw or b"null")
        return await asyncio.to_thread(defined.codec.decode, raw)

    async def output_saved(
        self, document_id: str, stage: str, org: str | None = None, pipeline: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """What `output` gives as it is stored: JSON, in pieces of a few MB at most."""
        _, save = await self._saved(document_id, stage, org, pipeline)
        if save.inline is None and save.blob is not None:
            return self.blobs.stream(save.blob)
        return _alone(save.inline or b"null")

    async def _saved(
        self, document_id: str, stage: str, org: str | None, pipeline: str | None
    ) -> tuple[Stage[..., Any], SavedStage]:
        """The stage, and what it saved last. Raises: StageUnknown."""
        status = await self.status(document_id, org)
        found = self._pipeline(pipeline or status.pipeline)
        defined = stage_of(found, stage)
        saves = [
            save
            for save in await self.store.saves(status.org, status.id, found.name)
            if save.stage in (defined.name, defined.was)
        ]
        if not saves:
            raise StageUnknown(
                f"stage {stage} of document {status.id} is not saved; it is {status.state}",
                code="not_saved",
            )
        return defined, saves[-1]

    async def rows(
        self, document_id: str, name: str, org: str | None = None
    ) -> list[tuple[dict[str, Any], Any]]:
        found = await self.store.rows(*await self._key(document_id, org), name)
        return [(json.loads(key), json.loads(data)) for key, data in found]

    async def chunks(self, document_id: str, org: str | None = None) -> list[Chunk]:
        return await self.store.chunks(*await self._key(document_id, org))

    async def connections(
        self, document_id: str, chunk_id: str | None = None, org: str | None = None
    ) -> list[Connection]:
        return await self.store.connections(*await self._key(document_id, org), chunk_id)

    async def search(
        self, query: str, *, org: str | None = None, collection: str | None = None, document: str | None = None,
        limit: int = 10,
    ) -> list[Hit]:  # fmt: skip
        whose = checked(org or ORG_DEFAULT, "the organisation")
        if document is not None:
            document = (await self.status(checked(document, "the id"), whose)).id
        by_words_alone = not query.strip() or asked(query).quoted
        vector = None if by_words_alone else await self._vector(query)  # which may cost money
        return await self.store.search(
            whose, query, vector, collection=collection, document=document, limit=limit
        )

    async def _vector(self, query: str) -> tuple[str, bytes] | None:
        """The query as its embedder sees it; None while that cannot be asked: words are still found."""
        from perdure.pipelines.embed import embedder  # heavy, and not everybody searches

        model = await asyncio.to_thread(embedder, self.settings)
        try:
            async with asyncio.timeout(self.query_s):
                return model.name, (await model.aembed([query]))[0]
        except UsageError:
            raise
        except Exception as error:
            log.warning("the query could not be embedded and is searched by its words alone: %r", error)
            return None

    # --- other services --------------------------------------------------------------------------

    async def remote_finish(
        self,
        document_id: str,
        token: int | str,
        output: Any,
        *,
        org: str | None = None,
        job: str | None = None,
    ) -> str:
        about = await self._answered(document_id, token, org, job)
        with using(self.given):
            return await self.answers.finish(about, output)

    async def remote_fail(
        self, document_id: str, token: int | str, *, code: str = "remote_failed", message: str = "",
        retryable: bool = True, retry_after_s: float | None = None, org: str | None = None, job: str | None = None,
    ) -> str:  # fmt: skip
        about = await self._answered(document_id, token, org, job)
        return await self.answers.fail(about, code, message or code, retryable, retry_after_s)

    async def remote_beat(
        self, document_id: str, token: int | str, *, org: str | None = None, job: str | None = None
    ) -> str:
        return await self.answers.beat(await self._answered(document_id, token, org, job))

    @property
    def answers(self) -> Answers:
        """What takes the answers of other services."""
        return Answers(self.store, self.blobs, self.pipelines, self.events)

    async def _answered(
        self, document_id: str, token: int | str, org: str | None, job: str | None
    ) -> Answered:
        found, id_ = await self._key(document_id, org)
        return answered({"document_id": id_, "token": token, "org": found, "job": job})

    # --- operators -------------------------------------------------------------------------------

    async def rerun(self, **options: Unpack[RerunOptions]) -> Rerun:
        return [found async for found in self.rerunning(**options)][-1]

    async def rerunning(self, **options: Unpack[RerunOptions]) -> AsyncIterator[Rerun]:
        """`rerun` page by page, for whoever shows how far it is or wants to stop it."""
        refuse_unknown("rerun", options, RerunOptions)
        pipeline = self._pipeline(options["pipeline"])
        stage, conditions = stage_of(pipeline, options["from_stage"]), Conditions(options["where"])
        reason, limit = reason_kept(options.get("reason", "")), options.get("limit")
        who = self._who(options.get("who"))
        if limit is not None and limit < 1:
            raise InputInvalid(f"limit must be at least 1, not {limit}")

        async def again(one: Checkpoint) -> str:
            return await self._requeue(one.org, one.document_id, pipeline, stage.name, reason, who)

        found = Rerun()
        act = None if options.get("dry_run") else again
        async for found in rerun(self.store, pipeline, stage, conditions, limit, options.get("after"), act):
            yield found
        if found.found or found.running or found.last or options.get("after"):
            return
        others = [other for other in self.pipelines.values() if pipeline in other.then]
        if others and found.looked_at and not found.models:
            raise not_on_its_own(pipeline, others)
        if "model" in conditions.saved:
            raise no_such_model(conditions.saved["model"], pipeline, stage, found.models)

    async def dependencies(self) -> list[DependencyRecord]:
        return await self.store.dependencies()

    async def kpis(self, hours: float = 24) -> list[Kpi]:
        return await self.store.kpis(await self.store.now_ms() - int(hours * 3_600_000))

    def measure(self, board: Board | None = None) -> Scrape:
        """Count what happens here from now on; what that and the store say, for whoever shows metrics."""
        from perdure.watch.serve import Scrape
        from perdure.watch.shared_counters import SharedCounters

        if self.meter is None:
            self.meter = Meter(board or Board.private(), self.events)
            self.meter.know(self.pipelines.values())
        if self._scrape is None or self._scrape.store is not self.store:
            boards = (self.meter.board,)
            self._scrape = Scrape(boards, self.store, SharedCounters(boards, self.store))
        return self._scrape

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        return self.events.subscribe(listener)


def _states(word: str, words: str | None) -> tuple[list[str], str | None]:
    """The states and the stage that a filter means: in the words that are answered with, else in any that we know."""
    try:
        own = states_of(word, words)
        states, stage = (own, None) if own else state_filter(word)
    except ValueError as error:
        raise InputInvalid(str(error), code="state_unknown") from None
    return sorted({str(State.QUEUED if state is State.PARKED else state) for state in states}), stage


async def _alone(piece: bytes) -> AsyncGenerator[bytes, None]:
    yield piece


def _moment(which: ListOptions, name: str) -> int | None:
    """A time of the options in milliseconds, of a part of one the next. Raises: InputInvalid."""
    at: object = which.get(name)
    if at is None:
        return None
    if not isinstance(at, datetime) or at.tzinfo is None:
        said = at.isoformat() if isinstance(at, datetime) else repr(at)
        raise InputInvalid(f"{name} takes a time with a time zone, such as 2030-01-01T00:00:00Z, not {said}")
    return -((EPOCH - at) // timedelta(milliseconds=1))


def _registered(pipelines: Iterable[Pipeline]) -> dict[str, Pipeline]:
    found: dict[str, Pipeline] = {}
    for pipeline in _with_follow_ups(pipelines):
        pipeline.check(types=True)
        if pipeline.module is None and any(stage.wants_cells for stage in pipeline.stages):
            raise PipelineInvalid(
                f"pipeline {pipeline.name} has isolated stages but is not defined in a file; move it into a module"
            )
        for each in (pipeline, *pipeline.hooks.values()):
            if each.name in found:
                raise PipelineInvalid(f"two pipelines are called {each.name!r}; give one another name")
            found[each.name] = each
    return found


def _with_follow_ups(pipelines: Iterable[Pipeline]) -> list[Pipeline]:
    """They and those whose jobs they spawn, which may be named as well."""
    named = list(pipelines)
    along: list[Pipeline] = []
    for pipeline in named:
        along += (each for each in _with_follow_ups(pipeline.then) if each not in along and each not in named)
    return named + along
