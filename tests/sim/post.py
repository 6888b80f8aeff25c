"""Another service in a simulated world: the broker, which keeps what it has confirmed, the real relay, and the service,
which answers late, twice, or not at all while faults last."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from perdure.errors import DocumentUnknown, StoreError
from perdure.watch.broker import Broker
from perdure.watch.relay import Relay
from tests.sim.driver import SimStore
from tests.sim.fleet import SETTINGS, SimApp
from tests.sim.telling import Follower
from tests.sim.world import LEASE_S, Process, World

if TYPE_CHECKING:
    from tests.sim.book import Book


class Post:
    """Messages that nobody has acknowledged yet. It stands for an exchange, as the relay knows it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.events: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self.deaths: set[tuple[str, int]] = set()  # that were told

    async def publish(self, message: Any, key: str, mandatory: bool, timeout: float) -> None:
        """Take it; sometimes nobody hears of that."""
        rng, calm = self.world.rng, self.world.mended_s > 0
        await asyncio.sleep(rng.random() * 0.01)
        if not calm and rng.random() < 0.1:
            raise TimeoutError("simulated: it did not arrive")
        said = json.loads(message.body)
        if mandatory:
            self.events.append(said)
        else:
            self.deaths.add((said["job"], said["generation"]))
        self.world.happened("event published", f"{key} of {said['job']}")
        await asyncio.sleep(rng.random() * 0.01)
        if not calm and rng.random() < 0.1:
            self.world.happened("confirm lost", said["job"])
            raise TimeoutError("simulated: the confirm was lost")


class SimRelay(Relay):
    """The real relay over the simulated broker."""

    def __init__(self, post: Post, store: SimStore) -> None:
        super().__init__(Broker(SETTINGS), store)
        self.post: Any = post

    async def _connected(self) -> Any:
        return None, self.post

    async def _way_back(self, *_: Any) -> None: ...

    async def _away(self, error: BaseException) -> None:
        await asyncio.sleep(0.2)


class Office:
    """The processes around the broker; whoever ends is replaced."""

    def __init__(self, world: World, book: Book) -> None:
        self.world, self.book, self.rng = world, book, world.rng
        self.post = book.post = Post(world)
        self.follower = Follower(book)
        self._mains = {
            "relay": self._relay, "service": self._serve, "listener": self._listen, "follower": self.follower.run,
        }  # fmt: skip
        self._processes: dict[str, Process] = {}

    def replace(self) -> None:
        for name, main in self._mains.items():
            if name not in self._processes or not self._processes[name].alive:
                self._processes[name] = process = Process(self.world, f"{name}-{len(self.world.processes)}")
                process.start(lambda main=main, process=process: main(process))  # type: ignore[misc]

    async def _relay(self, process: Process) -> None:
        store = SimStore(process, self.book)
        await store.open()
        relay = SimRelay(self.post, store)
        while True:
            if store.lost is not None:
                raise store.lost
            if not await relay.turn():
                await asyncio.sleep(0.5)

    async def _serve(self, _: Process) -> None:
        """Take any event, work, answer, and only then acknowledge."""
        ledger = self.book.ledger
        while True:
            await asyncio.sleep(self.rng.random() * 0.5)
            if not self.post.events:
                continue
            event = self.rng.choice(self.post.events)
            calm = self.world.mended_s > 0
            await asyncio.sleep(0.1 if calm else self.rng.choice((0.01, 0.1, 2.0, LEASE_S * 1.5)))
            who = {key: event[key] for key in ("document_id", "token", "org", "job")}
            does = (
                "finish"
                if calm
                else self.rng.choice(("finish", "finish", "twice", "fail", "beat", "nothing", "nothing"))
            )
            if event["document"]["name"] == "unwelcome" and does != "nothing":
                does = "fail"
            self.world.happened(f"service: {does}", event["job"])
            if does in ("finish", "twice"):
                ledger.answered.add(int(event["token"]))
                self.post.answers += [{"verb": "finish", "about": who, "event": event}] * (
                    1 + (does == "twice")
                )
            elif does == "fail":
                ledger.refused.add(int(event["token"]))
                self.post.answers.append({"verb": "fail", "about": who, "event": event})
            elif does == "beat":
                self.post.answers.append({"verb": "beat", "about": who, "event": event})
                continue
            if event in self.post.events:
                self.post.events.remove(event)

    async def _listen(self, process: Process) -> None:
        """Apply any answer, and acknowledge it once the store has it."""
        app = SimApp(process, self.book)
        await app.start()
        while True:
            await asyncio.sleep(self.rng.random() * 0.2)
            if self.post.answers:
                answer = self.rng.choice(self.post.answers)
                with suppress(StoreError):
                    told = await self._applied(app, answer)
                    self.world.happened(f"answer {told.partition(':')[0]}", answer["event"]["job"])
                    if answer in self.post.answers:
                        self.post.answers.remove(answer)
                if app.store.lost is not None:
                    raise app.store.lost

    async def _applied(self, app: SimApp, answer: dict[str, Any]) -> str:
        """What comes too late for a document that is gone is set aside."""
        try:
            return await self._apply(app, answer)
        except DocumentUnknown:
            if answer["about"]["document_id"] not in self.book.leaving.ever:
                raise
            return "set aside"

    async def _apply(self, app: SimApp, answer: dict[str, Any]) -> str:
        about, event = answer["about"], answer["event"]
        which = (about["document_id"], about["token"])
        more = {"org": about["org"], "job": about["job"]}
        match answer["verb"]:
            case "beat":
                return await app.remote_beat(*which, **more)
            case "fail":
                return await app.remote_fail(*which, code="busy", **more)
        told = await app.remote_finish(*which, self.rng.getrandbits(30), **more)
        if told == "saved":
            self.book.ledger.taken(event["job"], event["generation"])
        return told
