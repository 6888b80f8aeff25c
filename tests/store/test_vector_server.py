"""Vectors searched by PostgreSQL: the same answers as in memory, whoever wrote the chunks and whatever became of it."""

from __future__ import annotations

import asyncio
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import asyncpg
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.core.model import Job
from perdure.errors import SettingInvalid
from perdure.settings import Settings
from perdure.store import indexing, pgvector, staging
from perdure.store.matrix import unit
from perdure.store.near import Among, Near, Which
from perdure.store.open import open_store
from perdure.store.sql_store import SqlStore
from tests.store.making import ORG, World, dead, document, output, save
from tests.store.test_chunks import MODEL, chunk, chunk_set, indexed, vector

WANTED = (MODEL, vector(1, 0))


async def opened(url: str, vectors_by: str = "pgvector") -> SqlStore:
    store = open_store(url)
    store.vectors_by = vectors_by
    await store.open()
    return store


def server(store: SqlStore) -> pgvector.PgVectors:
    assert store._server is not None
    return store._server


async def found(store: SqlStore, org: str = ORG) -> list[str]:
    return [hit.snippet for hit in await store.search(org, "", WANTED)]


async def agree(world: World) -> None:
    """`chunk_vector` holds the vectors of all chunks that have one, of length 1, and nothing else."""
    truth = {
        num: (org, id_, model, len(data) // 4, tuple(unit(data, len(data) // 4)[0].tolist()))
        for num, org, id_, model, data in await world.query(
            "SELECT num, org, document_id, model, vector FROM chunk WHERE octet_length(vector) BETWEEN 4 AND 64000"
        )
    }
    held = {row[0]: row[1:] for row in await world.query(
        "SELECT num, org, document_id, model, dimensions, CAST(vector AS real[]) FROM chunk_vector"
    )}  # fmt: skip
    assert held.keys() == truth.keys()
    for num, (*facts, numbers) in held.items():
        assert tuple(facts) == truth[num][:4]
        assert numbers == pytest.approx(truth[num][4], abs=1e-6)


# --- the same answers ------------------------------------------------------------------------------

NUMBER = st.one_of(
    st.floats(-1, 1, width=32),
    st.sampled_from([0.0, -0.0, 1.0, 1e30, -1e38, 1e-30, 1e-45, math.nan, math.inf]),
)
VECTOR = st.one_of(st.none(), st.lists(NUMBER, min_size=2, max_size=3).map(lambda n: vector(*n)))
#: Which document gets these vectors, in which collection, and which of the stores writes them.
SAVES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["", "sea"]), st.lists(VECTOR, max_size=4), st.booleans()),
    min_size=1,
    max_size=8,
)


def same(ours: list[list[Near]], theirs: list[list[Near]]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert [n.score for n in one] == pytest.approx([n.score for n in other], abs=1e-5)
        assert [n.score for n in one] == sorted((n.score for n in one), reverse=True)


@pytest.mark.parametrize("slices", [1, 10**12])
def test_the_server_finds_what_is_found_in_memory(
    postgres_url: str, slices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any saves, by programs that know of the extension and by such that do not; any filter."""
    monkeypatch.setattr(pgvector, "PRODUCTS", slices)
    loop = asyncio.new_event_loop()
    world = World(postgres_url)
    loop.run_until_complete(world.__aenter__())
    seeing = loop.run_until_complete(opened(postgres_url))
    count = iter(range(10_000))

    async def play(saves: list[tuple[int, str, list[bytes | None], bool]], wanted: list[float]) -> None:
        org = f"org{next(count)}"
        jobs: dict[int, Job] = {}
        for n, (which, collection, vectors, sees) in enumerate(saves):
            if which not in jobs:
                jobs[which] = await indexed(world, "nothing yet", org=org)
            job = jobs[which]
            await world.execute(
                "UPDATE document SET collection = $3 WHERE org = $1 AND id = $2",
                org,
                job.document_id,
                collection,
            )
            made = [chunk(job.document_id, p, f"{n} {p}", v) for p, v in enumerate(vectors)]
            # the same text keeps its chunk and gets another vector
            made += [chunk(job.document_id, 9, "stays", vector(n, 1))]
            await (seeing if sees else world.store).save(save(job, output=output(), chunks=chunk_set(*made)))
        data = vector(*wanted)
        which_vectors = Which(org, MODEL, len(wanted))
        document = jobs[saves[0][0]].document_id
        for among in (
            Among(), Among(collection="sea"), Among(document=document), Among(but=document),
            Among(collection="sea", document=document), Among(document="absent"),
        ):  # fmt: skip
            for limit, least in ((100, -1.0), (2, -1.0), (100, 0.4637)):
                arguments = which_vectors, [data, vector(*wanted[::-1])], limit, among, least
                theirs = await server(seeing).nearest(*arguments)
                assert theirs is not None
                ours = await world.store.vectors.nearest(*arguments)
                same(ours, theirs)
                if limit == 100 and least < 0:
                    for one, other in zip(ours, theirs, strict=True):
                        assert {n.num for n in one} == {n.num for n in other}
        known = [await store.nearest(org, document, threshold=0.4637) for store in (seeing, world.store)]
        assert [c.score for c in known[0]] == pytest.approx([c.score for c in known[1]], abs=1e-5)

    @settings(max_examples=15, suppress_health_check=list(HealthCheck))
    @given(SAVES, st.lists(NUMBER, min_size=2, max_size=3))
    def run(saves: list[tuple[int, str, list[bytes | None], bool]], wanted: list[float]) -> None:
        loop.run_until_complete(play(saves, wanted))

    try:
        run()
        loop.run_until_complete(agree(world))
    finally:
        loop.run_until_complete(seeing.close())
        loop.run_until_complete(world.__aexit__(None, None, None))
        loop.close()


async def test_real_lengths_and_values_agree(postgres_world: World) -> None:
    """Every pattern of bits is read as numpy reads it, and the best of many are the same."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(200, 384)).astype("<f4")
    rows[1] *= np.float32(1e-38)
    rows[2] *= np.float32(1e30)
    bits = rng.integers(0, 2**32, size=(40, 384), dtype=np.uint32) & np.uint32(0xBFFFFFFF)  # finite ones
    vectors = [row.tobytes() for row in (*rows, *bits.view("<f4"))]
    await indexed(postgres_world, *(f"t{n}" for n in range(len(vectors))), vectors=vectors)
    seeing = await opened(postgres_world.url)

    await agree(postgres_world)
    for wanted in vectors[:3]:
        (theirs,) = await server(seeing).nearest(Which(ORG, MODEL, 384), [wanted], 10, Among(), -1.0) or [[]]
        (ours,) = await postgres_world.store.vectors.nearest(Which(ORG, MODEL, 384), [wanted], 10, Among())
        assert [near.num for near in theirs] == [near.num for near in ours]
    await seeing.close()


async def test_vectors_that_the_type_cannot_hold_are_found_in_memory(postgres_world: World) -> None:
    seeing = await opened(postgres_world.url)
    long = vector(*([1.0] * 16_001))
    await indexed(postgres_world, "long", "fits", vectors=[long, vector(1, 0)])

    assert [h.snippet for h in await seeing.search(ORG, "", (MODEL, long))] == ["long"]
    assert await found(seeing) == ["fits"]
    await agree(postgres_world)
    await seeing.close()


# --- coming and going ------------------------------------------------------------------------------


async def test_what_was_there_before_is_filled_in(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While others write and supersede; until nothing is missing, searches are answered from memory."""
    world = postgres_world
    jobs = [await indexed(world, f"a{n}", f"b{n}", vectors=[vector(1, n), vector(n, 1)]) for n in range(12)]
    monkeypatch.setattr(pgvector, "SLICE", 2)
    monkeypatch.setattr(pgvector, "FILL_S", 0.0)
    seeing = await opened(world.url)
    assert not server(seeing).whole
    assert len(await found(seeing)) == 10

    for n, job in enumerate(jobs):
        new = [chunk(job.document_id, 0, f"a{n}", vector(2, n)), chunk(job.document_id, 1, f"c{n}", None)]
        await world.store.save(save(job, output=output(), chunks=chunk_set(*new[n % 2 :])))
    await server(seeing).filled()

    assert server(seeing).whole
    await agree(world)
    await seeing.close()


async def test_filling_waits_for_no_writer(postgres_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that holds a later chunk and wants an earlier one gets it; what it held is filled in afterwards."""
    world = postgres_world
    await indexed(world, *(f"t{n}" for n in range(6)), vectors=[vector(1, n) for n in range(6)])
    monkeypatch.setattr(pgvector, "FILL_S", 0.0)
    writer = await asyncpg.connect(world.url)
    try:
        async with asyncio.timeout(90), writer.transaction():
            nums = [row[0] for row in await writer.fetch("SELECT num FROM chunk ORDER BY num")]
            lock = "SELECT num FROM chunk WHERE num = $1 FOR UPDATE"
            await writer.execute(lock, nums[-1])
            seeing = await opened(world.url)
            while not await world.query(
                "SELECT 1 FROM chunk_vector UNION ALL SELECT 1 FROM pg_locks WHERE NOT granted"
            ):
                await asyncio.sleep(0.01)
            await writer.execute(lock, nums[0])
            assert not server(seeing).whole
        await asyncio.wait_for(server(seeing).filled(), 90)
    finally:
        await writer.close()

    assert server(seeing).whole
    await agree(world)
    await seeing.close()


async def test_filling_goes_on_where_it_was_left(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = postgres_world
    await indexed(world, *(f"t{n}" for n in range(80)), vectors=[vector(1, n) for n in range(80)])
    monkeypatch.setattr(pgvector, "FILL_S", 0.0)
    monkeypatch.setattr(pgvector, "SLICE", 1)
    left = await opened(world.url)
    while not await world.query("SELECT 1 FROM chunk_vector"):
        await asyncio.sleep(0)
    await left.close()
    assert not await world.query("SELECT 1 FROM pg_class WHERE relname = 'chunk_vector_whole'")
    assert await world.store.driver.lock("vectors", pgvector.FILLING)  # somebody else is at it
    waiting = await opened(world.url)
    assert len(await found(waiting)) == 10
    assert not server(waiting).whole

    await world.store.driver.unlock("vectors", pgvector.FILLING)  # and died
    monkeypatch.setattr(pgvector, "AGAIN_S", 0.0)
    monkeypatch.setattr(pgvector, "FILL_S", 30.0)
    async with asyncio.timeout(90):
        while not server(waiting).whole:  # the session that was cut off may hold its locks for a moment
            assert len(await found(waiting)) == 10

    await agree(world)
    await waiting.close()


async def test_a_fleet_that_starts_at_once_sets_up_once(postgres_world: World) -> None:
    await indexed(postgres_world, "one", vectors=[vector(1, 0)])

    stores = await asyncio.gather(*(opened(postgres_world.url) for _ in range(6)))

    for store in stores:
        assert await found(store) == ["one"]
    await indexed(postgres_world, "two", vectors=[vector(1, 0.1)])
    for store in stores:
        assert await found(store) == ["one", "two"]
        await store.close()


async def test_the_extension_may_be_dropped_and_come_back(postgres_world: World, caplog: Any) -> None:
    world = postgres_world
    seeing = await opened(world.url, "auto")
    await indexed(world, "one", vectors=[vector(1, 0)])
    assert await found(seeing) == ["one"]
    assert seeing._vectors is None  # no copy in this process

    await world.execute("DROP EXTENSION vector CASCADE")
    await indexed(world, "two", vectors=[vector(1, 0.1)])
    assert await found(seeing) == ["one", "two"]
    assert "searched in memory from now on" in caplog.text
    await world.execute("CREATE EXTENSION vector")
    await indexed(world, "three", vectors=[vector(1, 0.2)])
    assert await found(seeing) == ["one", "two", "three"]

    again = await opened(world.url)
    assert await found(again) == ["one", "two", "three"]
    assert again._vectors is None
    await agree(world)
    await seeing.close()
    await again.close()


async def test_it_can_be_got_rid_of_as_the_documentation_says(postgres_world: World) -> None:
    world = postgres_world
    seeing = await opened(world.url)
    await indexed(world, "one", vectors=[vector(1, 0)])
    documented = (Path(__file__).parents[2] / "docs" / "search.md").read_text(encoding="utf-8")
    statements = re.findall(r"`(DROP [^`]+)`", documented)
    assert len(statements) == 2

    for statement in statements:
        await world.execute(statement)
    await indexed(world, "two", vectors=[vector(1, 0.1)])

    assert await found(seeing) == await found(world.store) == ["one", "two"]
    assert not await world.query(
        "SELECT 1 FROM pg_trigger WHERE NOT tgisinternal AND tgname LIKE 'chunk_vector%'"
    )
    await seeing.close()


async def test_half_of_the_table_is_never_searched(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that searched by the server while the table was made anew, and is being filled, sees all chunks."""
    world = postgres_world
    seeing = await opened(world.url)
    await indexed(world, "one", "two", vectors=[vector(1, 0), vector(1, 0.1)])
    assert await found(seeing) == ["one", "two"]
    await world.execute("DROP EXTENSION vector CASCADE")
    monkeypatch.setattr(pgvector.PgVectors, "_begin_filling", lambda self: asyncio.sleep(0))
    other = await opened(world.url)

    assert await world.query("SELECT 1 FROM chunk_vector") == []
    assert await found(seeing) == await found(other) == ["one", "two"]
    await seeing.close()
    await other.close()


async def test_nothing_depends_on_the_search_path(postgres_url: str) -> None:
    """The extension where nobody looks, the tables in a schema that must be quoted."""
    somebody = await asyncpg.connect(postgres_url)
    await somebody.execute(
        'CREATE SCHEMA hidden; CREATE EXTENSION vector SCHEMA hidden; CREATE SCHEMA "Odd one"; '
        f'ALTER DATABASE "{urlsplit(postgres_url).path[1:]}" SET search_path = "Odd one"'
    )
    async with World(postgres_url) as world:
        seeing = await opened(postgres_url)
        await indexed(world, "one", vectors=[vector(1, 0)])

        assert await found(seeing) == ["one"]
        assert seeing._vectors is None
        await somebody.execute('DELETE FROM "Odd one".chunk')  # on another path
        assert await world.query("SELECT 1 FROM chunk_vector") == []
        await seeing.close()
    await somebody.close()


# --- what may be refused ---------------------------------------------------------------------------


@pytest.fixture
def clerk(postgres_url: str) -> Iterator[str]:
    """The address for a user who may read and write the tables that are there, and make none."""
    role = f"clerk_{urlsplit(postgres_url).path[-8:]}"

    async def run(*statements: str) -> None:
        connection = await asyncpg.connect(postgres_url)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    async def make() -> None:
        await open_store(postgres_url).migrate()
        await run(
            f"CREATE ROLE {role} LOGIN PASSWORD '{role}'",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}",
            f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {role}",
        )

    asyncio.run(make())
    parts = urlsplit(postgres_url)
    host = parts.netloc.rpartition("@")[2]
    yield urlunsplit(parts._replace(netloc=f"{role}:{quote(role)}@{host}"))
    asyncio.run(run(f"DROP OWNED BY {role}", f"DROP ROLE {role}"))


async def test_without_the_rights_memory_is_used_and_the_log_says_so(clerk: str, caplog: Any) -> None:
    caplog.set_level("INFO", "perdure.store")
    async with World(clerk) as world:
        store = await opened(clerk, "auto")
        await indexed(world, "one", vectors=[vector(1, 0)])

        assert await found(store) == ["one"]
        assert "vectors are searched by this process: " in caplog.text
        assert "administrator" in caplog.text
        await store.close()
        with pytest.raises(SettingInvalid, match=r"administrator.*or set it to auto or numpy"):
            await opened(clerk)


async def test_who_may_not_write_the_table_keeps_it_in_step_all_the_same(
    clerk: str, postgres_url: str
) -> None:
    owner = open_store(postgres_url)
    owner.vectors_by = "auto"
    await owner.migrate()
    async with World(clerk) as world:
        await indexed(world, "one", vectors=[vector(1, 0)])
        blind = await opened(clerk, "auto")
        assert await found(blind) == ["one"]
        async with World(postgres_url) as owners:
            await agree(owners)
            await owners.execute(f"GRANT SELECT ON chunk_vector_whole TO {urlsplit(clerk).username}")

        seeing = await opened(clerk)
        assert await found(seeing) == ["one"]
        assert seeing._vectors is None
        await blind.close()
        await seeing.close()


async def test_a_server_without_pgvector_or_with_an_old_one(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "OFFERED", "SELECT 1 WHERE FALSE")
    with pytest.raises(SettingInvalid, match="does not have pgvector; install it"):
        await opened(postgres_url)
    monkeypatch.undo()
    monkeypatch.setattr(pgvector, "OLDEST", (99, 0))
    with pytest.raises(SettingInvalid, match=r"0\.5 is needed: ALTER EXTENSION"):
        await opened(postgres_url)
    store = await opened(postgres_url, "auto")
    assert store._server is None
    await store.close()


async def test_sqlite_has_none(sqlite_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingInvalid, match="SQLite does not have it"):
        await opened(sqlite_world.url)
    await (await opened(sqlite_world.url, "auto")).close()
    monkeypatch.setenv("PERDURE_VECTORS", "faiss")
    with pytest.raises(SettingInvalid, match="PERDURE_VECTORS"):
        Settings()


ASK = """
import asyncio, sys
from perdure.store.open import open_store

async def main():
    store = open_store(sys.argv[1])
    store.vectors_by = "pgvector"
    await store.open()
    hits = await store.search("acme", "", ("toy", bytes.fromhex(sys.argv[2])))
    await store.close()
    print([hit.snippet for hit in hits], "numpy" in sys.modules)

asyncio.run(main())
"""


async def test_a_process_that_lets_the_server_search_does_not_load_numpy(postgres_world: World) -> None:
    await indexed(postgres_world, "one", vectors=[vector(1, 0)])

    asked = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", ASK, postgres_world.url, vector(1, 0).hex()],
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert asked.stdout == "['one'] False\n"


async def test_vectors_of_a_large_document_are_ready_before_its_save_and_seen_after_it(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "LARGE_CHUNKS", 3)
    world = postgres_world
    seeing = await opened(world.url)
    await world.add(document())
    job = await world.take()
    made = [chunk(job.document_id, n, f"text {n}", vector(1, n / 10)) for n in range(4)]
    large = save(job, output=output(), chunks=chunk_set(*made))
    await staging.stage(world.store, large)
    assert await world.query("SELECT count(*), max(org) FROM chunk_vector") == [(4, "")]
    assert await found(seeing) == []

    changed = [
        *made[:3],
        chunk(job.document_id, 3, "text 3", vector(1, 0.9)),
    ]  # embedded again: not as it was staged
    assert await world.store.save(save(job, output=output(), chunks=chunk_set(*changed)))
    assert len(await found(seeing)) == 4
    wrong = (
        "SELECT count(*) FROM chunk c FULL JOIN chunk_vector v USING (num) "
        "WHERE v.org IS DISTINCT FROM c.org OR v.vector IS DISTINCT FROM chunk_unit(c.vector)"
    )
    assert await world.query(wrong) == [(0,)]
    await world.settle(job, dead())
    await world.store.purge([(ORG, job.document_id)])
    assert await world.query("SELECT count(*) FROM chunk_vector") == [(0,)]
    await seeing.close()
