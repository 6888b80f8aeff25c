"""Connections are those that one exact computation over the chunks gives, in whatever order these came and went."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest

from perdure.core.model import Job
from perdure.store import around, connecting
from perdure.store.around import LOST
from perdure.store.background import REST, REST_ALONE, REST_MAX_S, Background, in_background
from perdure.store.base import Row
from perdure.store.open import open_store
from perdure.store.sql_store import SqlStore
from tests.sim.loop import BEGINS_S, VirtualLoop
from tests.store.making import ORG, World, output, save
from tests.store.test_chunks import chunk, chunk_set, indexed, vector
from tests.store.test_large import Recorded

EACH, THRESHOLD = 2, 0.6
Vector = tuple[float, ...]
Pairs = dict[tuple[str, str], float]


def cosine(one: Vector, other: Vector) -> float:
    lengths = math.hypot(*one) * math.hypot(*other)
    return round(sum(a * b for a, b in zip(one, other, strict=True)) / lengths, 6) if lengths else 0.0


class Shelf:
    """Documents whose chunks are replaced at will, and what each of them has."""

    def __init__(self, world: World, stores: list[SqlStore], random: Random) -> None:
        self.world, self.stores, self.random = world, stores, random
        self.jobs: list[Job] = []
        self.has: dict[str, dict[str, Vector]] = {}

    async def fill(self, count: int) -> None:
        for n in range(count):
            job = await indexed(self.world, name=f"d{n}")
            self.jobs.append(job)
            self.has[job.document_id] = {}

    async def replace(self, job: Job, vectors: list[Vector]) -> None:
        made = [chunk(job.document_id, n, f"{v}", vector(*v)) for n, v in enumerate(vectors)]
        assert await self.world.store.save(save(job, output=output(), chunks=chunk_set(*made)))
        self.has[job.document_id] = {c.id: v for c, v in zip(made, vectors, strict=True)}

    async def connect(self, job: Job) -> None:
        store = self.random.choice(self.stores)
        await store.connect(ORG, job.document_id, threshold=THRESHOLD, each=EACH)

    async def shown(self) -> Pairs:
        found = [one for job in self.jobs for one in await self.world.store.connections(ORG, job.document_id)]
        return {(one.chunk_id, one.other_id): one.score for one in found}

    def exact(self) -> Pairs:
        """The nearest of each, from both sides."""
        every = [(doc, id_, v) for doc, chunks in self.has.items() for id_, v in chunks.items()]
        pairs: Pairs = {}
        for doc, id_, v in every:
            scores = [(-cosine(v, w), other, o) for other, o, w in every if other != doc]
            for score, _, o in sorted(one for one in scores if -one[0] >= THRESHOLD)[:EACH]:
                pairs[id_, o] = pairs[o, id_] = -score
        return pairs

    def vectors(self) -> list[Vector]:
        """Few directions, so that many are equally near; some point nowhere."""
        numbers = (0.0, 0.1, 1.0)
        return [tuple(self.random.choices(numbers, k=3)) for _ in range(self.random.randrange(4))]


def other(world: World, vectors_by: str) -> SqlStore:
    store = open_store(world.url, world.clock)
    store.vectors_by = vectors_by
    return store


async def shelves(world: World, test: Callable[[Shelf], Awaitable[None]], *seeds: int) -> None:
    """Run the test on a shelf whose documents are connected by two processes, one of which may have pgvector."""
    by = "pgvector" if world.store.dialect_name == "postgres" else "numpy"
    second = other(world, by)
    await second.open()
    try:
        for seed in seeds:
            shelf = Shelf(world, [world.store, second], Random(seed))
            await test(shelf)
            for job in shelf.jobs:  # the next one finds nothing of these
                await shelf.replace(job, [])
                await shelf.connect(job)
            assert await world.table("connection") == []
    finally:
        await second.close()


async def test_whatever_the_order_in_which_documents_come_and_come_again(world: World) -> None:
    async def test(shelf: Shelf) -> None:
        await shelf.fill(6)
        due: set[int] = set()
        for _ in range(25):
            n = shelf.random.randrange(6)
            if shelf.random.random() < 0.5:
                await shelf.replace(shelf.jobs[n], shelf.vectors())
                due.add(n)
            else:
                await shelf.connect(shelf.jobs[n])
                due.discard(n)
        for n in shelf.random.sample(sorted(due), len(due)):
            await shelf.connect(shelf.jobs[n])
        assert await shelf.shown() == shelf.exact()

    await shelves(world, test, *range(4))


async def test_while_others_come_again_and_are_connected(world: World) -> None:
    async def test(shelf: Shelf) -> None:
        await shelf.fill(5)

        async def again(job: Job) -> None:
            for _ in range(5):
                await shelf.replace(job, shelf.vectors())
                await shelf.connect(job)

        await asyncio.gather(*map(again, shelf.jobs))
        assert await shelf.shown() == shelf.exact()

    await shelves(world, test, *range(4))


async def test_a_list_that_loses_one_gets_the_next(world: World) -> None:
    async def test(shelf: Shelf) -> None:
        await shelf.fill(EACH + 3)
        for n, job in enumerate(shelf.jobs):
            await shelf.replace(job, [(1.0, n / 10)])
            await shelf.connect(job)
        assert await shelf.shown() == shelf.exact()
        nearest = shelf.jobs[1]
        await shelf.replace(nearest, [])
        assert nearest.document_id not in {
            one.other_document_id for one in await world.store.connections(ORG, shelf.jobs[0].document_id)
        }
        await shelf.connect(nearest)
        assert await shelf.shown() == shelf.exact()

    await shelves(world, test, 0)


async def test_what_changes_while_it_is_written_is_looked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look and the write a neighbour gets other chunks, and is connected before we are."""

    async def test(shelf: Shelf) -> None:
        await shelf.fill(EACH + 3)
        mine, neighbour, *_ = shelf.jobs
        for n, job in enumerate(shelf.jobs):
            await shelf.replace(job, [(1.0, n / 10)])
        looked = around.Look.around
        held = [neighbour]

        async def slowly(look: around.Look, document_id: str, chunks: Sequence[Row]) -> around.Around:
            found = await looked(look, document_id, chunks)
            if document_id == mine.document_id and held:
                await shelf.replace(held.pop(), [(0.0, 1.0)])
                await shelf.connect(neighbour)
            return found

        monkeypatch.setattr(around.Look, "around", slowly)
        for job in shelf.jobs:
            await shelf.connect(job)
        assert not held
        assert await shelf.shown() == shelf.exact()

    await shelves(world, test, 0)


async def test_a_passage_that_stands_everywhere_is_connected_in_small_pieces(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every chunk is near to every other one: neither memory nor a transaction grows with the number of pairs."""
    monkeypatch.setattr(connecting, "PIECE", 5)
    monkeypatch.setattr(around, "NEIGHBOURS", 10)
    longest: list[int] = []
    written: list[int] = []
    shelf = Shelf(world, [world.store], Random(1))
    await shelf.fill(3)
    take, put = around.Look._take, world.store._put

    def taken(look: around.Look, *given: Any) -> None:
        take(look, *given)
        longest.append(max(map(len, look._lists.values())))

    def put_counted(org: str, document_id: str, part: around.Around, each: int) -> Any:
        written.append(len(part.lists))
        return put(org, document_id, part, each)

    monkeypatch.setattr(around.Look, "_take", taken)
    monkeypatch.setattr(world.store, "_put", put_counted)
    for job in shelf.jobs:
        await shelf.replace(job, [(1.0, 0.0)] * 20)
        await shelf.connect(job)
    assert max(longest) < 2 * EACH + 1
    assert max(written) <= 5
    rows = await world.table("connection")
    lists = Counter((row["document_id"], row["chunk_id"]) for row in rows)
    assert set(lists.values()) == {EACH}
    assert (
        len(lists) == 50
    )  # the first document looked when there was no other, and was seen by its 10 nearest


async def test_a_computation_in_the_background_leaves_the_loop_free() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.005)
            ticks += 1

    def compute() -> str:
        until_s = time.thread_time() + 0.1
        while time.thread_time() < until_s:
            pass
        return threading.current_thread().name

    ticking = asyncio.create_task(tick())
    began_s = time.monotonic()
    names = await asyncio.gather(*(in_background(compute) for _ in range(3)))
    took_s = time.monotonic() - began_s
    ticking.cancel()
    assert len(set(names)) == 1
    assert "background" in names[0]
    assert took_s >= 0.29  # three times in one thread
    assert ticks >= 10


class Busy:
    """A worker, as far as long work must know it."""

    def __init__(self, shared: bool) -> None:
        self.shared = shared


@pytest.mark.parametrize("others", [True, False])
def test_long_work_takes_turns_and_rests_after_each_piece(others: bool) -> None:
    """The clock of this loop moves only during a sleep."""
    order: list[tuple[str, float]] = []

    async def work(name: str, background: Background) -> None:
        for _ in range(2):
            async with background.piece():
                order.append((name, asyncio.get_running_loop().time() - BEGINS_S))
                await asyncio.sleep(0.2)

    async def both() -> None:
        background = Background()
        workers = [Busy(shared) for shared in (False, others)]
        background.workers |= set(workers)
        await asyncio.gather(work("a", background), work("b", background))

    loop = VirtualLoop()
    loop.run_until_complete(both())
    loop.close()
    each_s = 0.2 * (1 + (REST if others else REST_ALONE))
    assert [name for name, _ in order] in (["a", "b", "a", "b"], ["b", "a", "b", "a"])
    assert [at_s for _, at_s in order] == pytest.approx([n * each_s for n in range(4)], abs=0.01)


def test_long_work_that_waited_for_others_rests_for_a_second() -> None:
    async def work() -> float:
        now_s = asyncio.get_running_loop().time
        async with Background().piece():
            await asyncio.sleep(60)
            ended_s = now_s()
        return now_s() - ended_s

    loop = VirtualLoop()
    assert loop.run_until_complete(work()) == pytest.approx(REST_MAX_S, abs=0.01)
    loop.close()


async def test_lists_that_lead_nowhere_are_looked_for_once_however_many_pieces_there_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That statement reads all that leads to the document: once a piece, its time grew with the square of the size."""
    monkeypatch.setattr(connecting, "PIECE", 5)
    shelf = Shelf(world, [world.store], Random(1))
    await shelf.fill(2)
    for job in shelf.jobs:
        await shelf.replace(job, [(1.0, n / 40) for n in range(40)])
    recorded = Recorded(world.store.driver)
    monkeypatch.setattr(world.store, "driver", recorded)
    for job in shelf.jobs:
        await shelf.connect(job)
    written = [query.sql for query in recorded.queries]
    assert sum(sql.startswith("INSERT INTO connection ") for sql in written) >= 8
    assert LOST not in written


@pytest.mark.parametrize(("chunks", "turns"), [(connecting.LONG, 0), (connecting.LONG + 1, 3)])
async def test_only_long_documents_are_connected_in_turns_with_rests(
    sqlite_world: World, monkeypatch: pytest.MonkeyPatch, chunks: int, turns: int
) -> None:
    """Eight documents of 30 chunks took ten times as long when each of their pieces was followed by a rest."""
    shelf = Shelf(sqlite_world, [sqlite_world.store], Random(1))
    await shelf.fill(1)
    await shelf.replace(shelf.jobs[0], [(1.0, n / chunks) for n in range(chunks)])
    taken: list[None] = []

    @asynccontextmanager
    async def piece() -> AsyncIterator[None]:
        taken.append(None)
        yield

    monkeypatch.setattr(sqlite_world.store.background, "piece", piece)
    await shelf.connect(shelf.jobs[0])
    assert len(taken) == turns
