"""Clients and operators: they add documents and use every verb of the app, and hold its answers against the book."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from perdure.engine.pipeline import Pipeline
from perdure.errors import PerdureError, StoreBusy, StoreUnavailable
from perdure.operate.retention import Limits
from perdure.service import AddOptions
from perdure.store.base import BREAKER
from perdure.store.once import KeyReused
from perdure.store.operations import Once
from perdure.store.records import Tally
from tests.sim.book import Book
from tests.sim.documents import CHARACTERS, ENDS
from tests.sim.fleet import QUEUES, SimApp
from tests.sim.operators import Operator
from tests.sim.releases import FIRST, RELEASES
from tests.sim.world import LARGE_BYTES, Process

ORGS = ("a", "b", "c")
#: Each verb and how often it is used.
VERBS = {
    "add": 40, "errand": 15, "add_many": 4, "cancel": 8, "requeue": 34, "rerun": 26, "raise_": 5, "pause": 3,
    "resume": 5, "hold": 3, "release": 5, "limit": 4, "weigh": 3, "look": 8, "add_once": 16, "requeue_dead": 12,
    "purge": 16, "export": 1, "import_": 10, "priority": 4, "put_off": 4, "sweep": 4, "see": 5, "audit": 1,
    "delete": 16, "map": 40, "retain": 5,
}  # fmt: skip
#: What `look` and `see` read.
READS = {
    "status", "attempts", "documents", "output", "rows", "dependencies", "kpis", "chunks", "search", "connections",
    "why", "timeline", "overview", "groups", "dead", "inspect", "acts", "escalation", "summary", "limits",
    "standing", "readiness",
}  # fmt: skip


class Client(Operator):
    """One client's session: it ends with its process, or when told."""

    leaving = False
    verbs: Mapping[str, int] = VERBS

    async def run(self) -> None:
        self.app = await opened(self.process, self.book, self.rng.choice(RELEASES))
        self.app.keeping = Limits(dead_age_ms=20_000, done_age_ms=15_000, archive=self.world.room / "archive")
        while True:
            await asyncio.sleep(self.rng.random() * 2)
            if self.leaving:
                return
            (verb,) = self.rng.choices(tuple(self.verbs), tuple(self.verbs.values()))
            if verb in ("requeue_dead", "purge") and not self._dead():
                verb = "doomed"
            with suppress(PerdureError):
                await getattr(self, verb)()
                self.world.happened(f"answered {verb}", self.process.name)
            if self.app.store.lost is not None:
                raise self.app.store.lost

    async def last_acts(self) -> None:
        """What operators do once the faults have stopped, to the documents that most features have touched."""
        self.app = await opened(self.process, self.book, self.rng.choice(RELEASES))
        self.eager = True
        for verb in self.rng.sample(("requeue", "delete", "requeue", "delete", "put_off"), 3):
            await asyncio.sleep(3.0)
            with suppress(PerdureError):
                await getattr(self, verb)()

    # --- documents -------------------------------------------------------------------------------

    async def add(self) -> None:
        pipeline = self.rng.choice(("books", "books", "notes", "scans"))
        options = self._options(self.rng.choice(CHARACTERS[pipeline]))
        meta: dict[str, Any] = options["meta"]
        if self.rng.random() < 0.2:
            options["delay_s"] = meta["delay_s"] = 5.0
        if self.rng.random() < 0.1:
            options["priority"] = self.rng.choice((-5, 5))
        if self.rng.random() < 0.4:
            meta["key"] = self.rng.choice(("few", "few", "slow"))
        if self.rng.random() < 0.3:
            options["key"] = "again"
        if self.rng.random() < 0.7 and ENDS[options["name"].partition("@")[0]] is None:
            options["text"] = "the same"  # whose stages may be saved under another name
        added = await self.app.add(pipeline=pipeline, **options)
        self.world.happened(f"add answered {added.answer}", added.id)
        self.ledger.added(added.id, options["name"])

    async def map(self) -> None:
        """A document that meets everything that a pipeline can have."""
        options = self._options(self.rng.choice(CHARACTERS["maps"]))
        meta: dict[str, Any] = options["meta"]
        meta["child"] = self.rng.random() < 0.5
        if self.rng.random() < 0.25:
            options["delay_s"] = meta["delay_s"] = 3.0
        if self.rng.random() < 0.25:
            options["priority"] = self.rng.choice((-5, 5))
        if self.rng.random() < 0.4:
            meta["key"] = self.rng.choice(("few", "few", "slow"))
        if self.rng.random() < 0.5:
            options["key"] = "again"
        added = await self.app.add(pipeline="maps", **options)
        self.world.happened(f"add answered {added.answer}", added.id)
        self.ledger.added(added.id, options["name"])

    async def errand(self) -> None:
        """A document with a stage that another service does."""
        options = self._options(self.rng.choice(CHARACTERS["errands"]))
        added = await self.app.add(pipeline="errands", **options)
        self.ledger.added(added.id, options["name"])

    async def doomed(self) -> None:
        """One that dies at once, for those who look for dead ones."""
        options = self._options("broken@tear")
        added = await self.app.add(pipeline="leaflets", **options)
        self.ledger.added(added.id, options["name"])

    async def add_once(self) -> None:
        """Under one key: the first time, again after whatever happened to whoever asked, or something else."""
        org, key = "a", "once"
        body = self.rng.choice(("this", "this", "that"))
        name = self.rng.choice(CHARACTERS["notes"]) if body == "this" else "plain"
        options: AddOptions = {
            "name": name, "text": body, "org": org, "meta": {"once": f"{org} {key}"}, "dedupe": False,
        }  # fmt: skip
        try:
            added = await self.app.add_once([("notes", options)], Once(org, key, body))
        except KeyReused:
            self.ledger.once_refused(org, key, body)
            raise
        self.ledger.once_answered(org, key, body, added[0].id)

    async def add_many(self) -> None:
        """A crowd of one organisation; `cards` are held while what they need is down."""
        pipeline = "cards" if self.book.lanes_down else "notes"
        entries = [self._options("plain", "a") for _ in range(self.rng.randint(5, 25))]
        for added in await self.app.add_many(entries, pipeline=pipeline):
            self.ledger.added(added.id, "plain")

    def _options(self, character: str, org: str | None = None) -> AddOptions:
        number = self.rng.getrandbits(60)
        text = f"text {number}"
        if number % 5 == 0:
            text = text.ljust(LARGE_BYTES)
            self.world.happened("large document")
        return {"name": character, "text": text, "org": org or self.rng.choice(ORGS), "meta": {}}

    async def look(self) -> None:
        if (document_id := self._one()) is not None:
            found = await self._known(self.app.status(document_id))
            assert found.id == document_id
            await self.app.attempts(document_id)
            await self.app.rows(document_id, "part")
        check_tally(self.book, await self.app.store.tally())
        assert [each.name for each in await self.app.dependencies()] == ["dep"]
        await self.app.kpis()
        if self.rng.random() < 0.2:  # what a call of some worker found out
            await self.app.store.probed("dep", self.rng.random() < 0.5)
        for dead in await self.app.documents(state="dead", limit=1):
            await self.app.output(dead.id, "one")

    # --- operators -------------------------------------------------------------------------------

    async def cancel(self) -> None:
        if (document_id := self._one()) is not None:
            self._answered("cancel", document_id, await self.app.cancel(document_id, reason="simulated"))

    async def requeue(self) -> None:
        if (document_id := self._followed() or self._one(ended=self.rng.random() < 0.8)) is not None:
            stage = self._stage(self.book.documents[document_id].pipeline)
            answer = await self._known(self.app.requeue(document_id, from_stage=stage))
            self._answered("requeue", document_id, answer)

    async def rerun(self) -> None:
        """What one organisation finished, from a stage on; those in progress are left alone."""
        pipeline, org = self.rng.choice(("books", "maps", "maps")), self.rng.choice(ORGS)
        stage = self._stage(pipeline) or self.app.pipelines[pipeline].stages[0].name
        found = await self.app.rerun(pipeline=pipeline, from_stage=stage, where={"org": org}, limit=5)
        self.world.happened("rerun", f"{found.requeued} of {org} from {stage}")

    def _stage(self, pipeline: str) -> str | None:
        """One to begin with, of those that its release has; most often the last."""
        names = [stage.name for stage in self.app.pipelines[pipeline].stages]
        return self.rng.choice((None, *names, names[-1])) if pipeline in ("books", "maps") else None

    async def raise_(self) -> None:
        if (document_id := self._one()) is not None:
            self._answered("raise", document_id, await self.app.raise_(document_id))

    async def pause(self) -> None:
        await self.app.pause(self.rng.choice(QUEUES))

    async def resume(self) -> None:
        await self.app.resume(self.rng.choice(QUEUES))

    async def hold(self) -> None:
        if self.rng.random() < 0.3:
            await self.app.hold("dep", "simulated", new=True)
        else:
            await self.app.store.hold("dep", "simulated", BREAKER)

    async def release(self) -> None:
        await self.app.release("dep")

    async def limit(self) -> None:
        match self.rng.randrange(6):
            case 0 | 1:
                await self.app.limit("few", concurrency=self.rng.choice((1, 1, 2)), new=True)
            case 2:
                await self.app.limit("slow", rate_per_s=0.5, new=True)
            case 3:
                await self.app.limit(
                    "org:c", rate_per_s=2, concurrency=self.rng.choice((1, 2, None)), new=True
                )
            case _:
                key = self.rng.choice(("org:a", "dependency:dep", "dependency:dep"))
                await self.app.limit(key, concurrency=self.rng.choice((1, 1, 2, None)), new=True)

    async def weigh(self) -> None:
        await self.app.weigh(self.rng.choice(ORGS), self.rng.choice((1.0, 2.0)))

    def _followed(self) -> str | None:
        """Now and then, one that has ended but has a follow-up under way."""
        jobs = [job for job in self.book.jobs.values() if job.pipeline == "after" and job.ending is None]
        ended = [job.document_id for job in jobs if self.book.documents[job.document_id].state != "open"]
        known = sorted(self.ledger.acknowledged.keys() & set(ended))
        return self.rng.choice(known) if known and self.rng.random() < 0.8 else None


async def opened(process: Process, book: Book, pipelines: Sequence[Pipeline] = FIRST) -> SimApp:
    """An app, once the store lets it in."""
    while True:
        app = SimApp(process, book, pipelines)
        with suppress(StoreBusy, StoreUnavailable):
            await app.start()
            return app
        await asyncio.sleep(0.1)


def check_tally(book: Book, tally: Tally) -> None:
    """What the store counts is what is there; nothing may have happened since it counted."""
    book.count_fenced()
    documents = Counter(document.state for document in book.documents.values())
    queues: dict[str, Counter[str]] = {}
    for job in book.jobs.values():
        state = job.state
        if state in ("queued", "parked") and job.lane in book.lanes_down:
            state = "held"
        elif state == "running" and job.worker == 0:
            state = "remote"
        elif state in ("queued", "waiting", "parked") and job.queue in book.queues_paused:
            state = "paused"
        if job.ending is None:
            queues.setdefault(job.queue, Counter())[state] += 1
    counted = (tally.documents, tally.queues, tally.fenced)
    if counted != (documents, queues, book.fenced):
        there = (dict(documents), {queue: dict(states) for queue, states in queues.items()}, book.fenced)
        book.world.violated("counters", f"counted were {counted}, there are {there}")
