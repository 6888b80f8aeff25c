"""Real trouble with the database: connections cut, rows and files locked by others, and what each error means."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import asyncpg
import pytest

from perdure.errors import SettingInvalid, StoreBusy, StoreError, StoreUnavailable
from perdure.store import postgres_errors, sqlite
from perdure.store.base import DataRefused
from tests.store.making import DONE, ORG, World, document, output, save

STATES = {
    "40001": StoreBusy, "40P01": StoreBusy, "55P03": StoreBusy, "57014": StoreBusy,
    "08006": StoreUnavailable, "53300": StoreUnavailable, "57P01": StoreUnavailable, "57P03": StoreUnavailable,
    "25P03": StoreUnavailable, "26000": StoreUnavailable, "42P05": StoreUnavailable, "58030": StoreUnavailable,
    "22021": DataRefused, "23505": DataRefused, "23514": DataRefused, "54000": DataRefused, "21000": DataRefused,
    "28P01": SettingInvalid, "3D000": SettingInvalid, "42P01": StoreError, "XX000": StoreError,
}  # fmt: skip


@pytest.mark.parametrize(("state", "kind"), STATES.items())
def test_each_state_of_postgresql_has_its_meaning(state: str, kind: type[Exception]) -> None:
    error = asyncpg.PostgresError.new({"C": state, "M": "told by the server"})

    with pytest.raises(kind) as caught, postgres_errors.mapped():
        raise error

    assert type(caught.value) is kind
    assert "told by the server" in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [asyncpg.InterfaceError("x"), asyncpg.InternalClientError("x"), ConnectionResetError(), TimeoutError()],
)
def test_a_connection_to_postgresql_that_breaks_is_unavailable(error: Exception) -> None:
    with pytest.raises(StoreUnavailable), postgres_errors.mapped():
        raise error


ERRORS: list[tuple[Exception, type[Exception]]] = [
    (apsw.BusyError("x"), StoreBusy), (apsw.LockedError("x"), StoreBusy), (apsw.FullError("x"), StoreUnavailable),
    (apsw.IOError("x"), StoreUnavailable), (apsw.CantOpenError("x"), StoreUnavailable),
    (apsw.ReadOnlyError("x"), StoreUnavailable), (apsw.ConstraintError("x"), DataRefused),
    (apsw.TooBigError("x"), DataRefused), (OverflowError("x"), DataRefused), (apsw.SQLError("x"), StoreError),
    (apsw.NotADBError("x"), StoreError), (apsw.CorruptError("x"), StoreError),
]  # fmt: skip


@pytest.mark.parametrize(("error", "kind"), ERRORS, ids=lambda e: getattr(e, "__name__", type(e).__name__))
def test_each_error_of_sqlite_has_its_meaning(error: Exception, kind: type[Exception]) -> None:
    with pytest.raises(kind) as caught, sqlite.mapped():
        raise error

    assert type(caught.value) is kind


async def test_connections_cut_again_and_again_lose_and_double_nothing(postgres_world: World) -> None:
    world, count = postgres_world, 40
    await world.add(*(document(f"n{n}") for n in range(count)))
    jobs = [c.job for c in await world.claim(count)]
    cutting = await asyncpg.connect(world.url)
    stages = [f"s{n}" for n in range(6)]

    async def work(number: int) -> list[bool]:
        job = jobs[number]
        kept = [await world.store.save(save(job, stage, output=output(stage))) for stage in stages]
        child = document(f"child{number}")
        return [*kept, await world.settle(job, DONE, save=save(job, documents=(child,)))]

    async def cut() -> None:
        while True:
            await cutting.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await asyncio.sleep(0.03)

    cutter = asyncio.create_task(cut())
    working = asyncio.gather(*(work(n) for n in range(count)))
    await asyncio.sleep(0.3)
    cutter.cancel()
    answers = await working
    await cutting.close()

    assert answers == [[True] * 7] * count
    assert (await world.store.tally()).fenced == 0
    assert len(await world.table("saved")) == count * len(stages)
    assert len(await world.table("attempt")) == count
    assert sorted(c.document.name for c in await world.claim(99)) == sorted(f"child{n}" for n in range(count))


async def test_a_row_locked_by_somebody_delays_and_does_not_fail(postgres_world: World) -> None:
    world = postgres_world
    (id_,) = await world.add(document())
    job = await world.take()
    other = await asyncpg.connect(world.url)
    locking = other.transaction()
    await locking.start()
    await other.execute("SELECT 1 FROM job WHERE id = $1 FOR UPDATE", job.id)

    saving = asyncio.create_task(world.store.save(save(job, output=output())))
    await asyncio.sleep(0.1)
    assert not saving.done()
    await locking.rollback()

    assert await saving
    await other.close()
    assert len(await world.store.saves(ORG, id_, "books")) == 1


async def test_a_file_locked_by_somebody_delays_and_does_not_fail(
    sqlite_world: World, tmp_path: Path
) -> None:
    world = sqlite_world
    await world.add(document())
    other = apsw.Connection(str(tmp_path / "perdure.db"))
    other.execute("BEGIN IMMEDIATE")

    adding = asyncio.create_task(world.store.add([document()]))
    await asyncio.sleep(0.1)
    assert not adding.done()
    assert len(await world.table("document")) == 1  # reading goes on
    other.execute("ROLLBACK")
    other.close()

    assert (await adding)[0].answer == "added"
