"""Situations that chance rarely brings about: every fifth world has a client or two that cause one of them.

The planted bugs that show in them are in `mutations_scenes`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from perdure.operate.retention import Limits
from tests.sim.book import Book
from tests.sim.clients import Client
from tests.sim.world import Process, World

#: Every fifth world has a scene.
EVERY = 5
WAIT_S = 12.0
AGE_MS = 9_000  # as long as a process stands still before it purges: what ended meanwhile is younger


class Actor(Client, ABC):
    """A client with one verb."""

    verbs = {"act": 1}

    @abstractmethod
    async def act(self) -> None:
        """Bring the situation about."""

    async def _until(self, true: Callable[[], object]) -> None:
        """Wait, but not for long: what it waits for may never come."""
        until_s = self.world.loop.now_s + WAIT_S
        while not true() and self.world.loop.now_s < until_s and not self.leaving:
            await asyncio.sleep(0.05)

    async def _plain(self, org: str, number: int, pipeline: str = "notes") -> list[str]:
        entries = [self._options("plain", org) for _ in range(number)]
        ids = [added.id for added in await self.app.add_many(entries, pipeline=pipeline)]
        for id_ in ids:
            self.ledger.added(id_, "plain")
        return ids


class Rival(Actor):
    """Adds what is there already while it is deleted."""

    async def act(self) -> None:
        options = self._options("plain", "a")
        added = await self.app.add(pipeline="notes", **options)
        self.ledger.added(added.id, "plain")
        await self.app.cancel(added.id)

        async def again() -> None:
            self.ledger.added((await self.app.add(pipeline="notes", **options)).id, "plain")

        async def delete() -> None:
            with self.book.leaving.asked_by(self.process, "done", "dead", "cancelled"):
                await self._known(self.app.delete(added.id))

        await asyncio.gather(again(), delete())


class Insistent(Actor):
    """Asks for the same again and again, and loses replies: only the first time something is done."""

    def __init__(self, process: Process, book: Book) -> None:
        super().__init__(process, book)
        self.world.faults.reply_lost = 0.1

    async def act(self) -> None:
        if (document_id := self._one()) is not None:
            for _ in range(4):
                answer = await self._known(self.app.cancel(document_id, reason="simulated"))
                self._answered("cancel", document_id, answer)


class Retainer(Actor):
    """Deletes what ended a short time ago."""

    async def act(self) -> None:
        self.app.keeping = Limits(done_age_ms=AGE_MS)
        await self.retain()


class Repeater(Actor):
    """Requeues the notes that the retainer is about to delete; they end again soon."""

    async def act(self) -> None:
        await self._plain("b", 2)
        known = sorted(self.ledger.acknowledged.keys() & self.book.documents.keys())
        for note in [self.book.documents[id_] for id_ in known]:
            old = self.book.leaving.age_ms(note.id) > AGE_MS
            if old and (note.pipeline, note.name, note.state) == ("notes", "plain", "done"):
                self._answered("requeue", note.id, await self._known(self.app.requeue(note.id)))


class Crowd(Actor):
    """Has many documents held, lets others go on for a while, and releases them."""

    async def act(self) -> None:
        await self.app.hold("dep", "simulated", new=True)
        await self._plain("a", 25, "cards")
        others = await self._plain("b", 25)
        await self._until(lambda: all(self._ended(id_) for id_ in others))
        await self.app.release("dep")
        await self._plain("c", 3)
        await asyncio.sleep(WAIT_S)

    def _ended(self, id_: str) -> bool:
        return id_ not in self.book.documents or self.book.documents[id_].state != "open"


class Restarter(Actor):
    """Lets workers begin with documents whose next stage needs what is down, and which no lane holds yet."""

    def __init__(self, process: Process, book: Book) -> None:
        super().__init__(process, book)
        self.world.looks_late = True

    async def act(self) -> None:
        await self.app.release("dep")
        ids = await self._plain("a", 3, "books")
        await self._until(lambda: any(self._in_need(id_) for id_ in ids))
        self._kill_workers()
        await self.app.pause("documents")
        await self.app.hold("dep", "simulated", new=True)
        await self._until(lambda: not any(self._running(id_) for id_ in ids))
        self._kill_workers()
        await self.app.resume("documents")
        await asyncio.sleep(4.0)

    def _in_need(self, id_: str) -> bool:
        return (id_, "books", "two", 1) in self.book.saved and self._running(id_)

    def _running(self, id_: str) -> bool:
        return any(self.book.jobs[job].state == "running" for job in self.book.jobs_of[id_])

    def _kill_workers(self) -> None:
        for process in self.world.processes:
            if process.alive and process.name.startswith(("worker", "supervisor")):
                self.world.kill(process, "killed")


SCENES: tuple[tuple[type[Actor], ...], ...] = (
    (Rival,), (Insistent,), (Retainer, Repeater), (Crowd,), (Restarter,),
)  # fmt: skip


def actors(world: World) -> tuple[type[Actor], ...]:
    """Who makes the scene of this world, if it has one."""
    number, rest = divmod(world.seed, EVERY)
    return SCENES[number % len(SCENES)] if rest == EVERY - 1 else ()
