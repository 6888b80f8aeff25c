"""SQLite: files that are deleted or replaced while they are open are noticed before anything is lost."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.errors import StoreError
from perdure.store.open import open_store
from tests.store.making import ORG, document

#: Adds documents, then looks after the store as a worker does.
ADDING = """
import asyncio, sys
from perdure.errors import StoreError
from perdure.store.open import open_store
from tests.store.making import document

async def main():
    store = open_store(sys.argv[1])
    await store.open()
    for _ in range(5):
        print((await store.add([document()]))[0].id, flush=True)
    for _ in range(200):
        await asyncio.sleep(0.05)
        try:
            await store.driver.tend()
        except StoreError as error:
            print(error.code, flush=True)
            await asyncio.sleep(60)
    print("unnoticed", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""

#: Another process that opens the store.
OPENING = """
import asyncio, sys
from perdure.errors import StoreError
from perdure.store.open import open_store

try:
    asyncio.run(open_store(sys.argv[1]).open())
except StoreError as error:
    print(error.code)
"""


async def test_a_deleted_log_costs_no_document(tmp_path: Path) -> None:
    """It is deleted, noticed, and everybody is killed: what was acknowledged is there."""
    url = f"sqlite:///{tmp_path}/perdure.db"
    added = await asyncio.to_thread(_add_delete_and_kill, url, tmp_path / "perdure.db-wal")
    store = open_store(url)
    await store.open()
    for id_ in added:
        assert await store.status(ORG, id_) is not None
    await store.close()


def _add_delete_and_kill(url: str, log: Path) -> list[str]:
    """Have documents added by a process that is killed when it has noticed that its log was deleted."""
    arguments, root = [sys.executable, "-c", ADDING, url], Path(__file__).parents[2]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        added = [process.stdout.readline().strip() for _ in range(5)]
        log.unlink()
        noticed = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert noticed == "wal_deleted\n"
    return added


@pytest.mark.parametrize(("name", "code"), [("-wal", "wal_deleted"), ("", "database_replaced")])
async def test_nothing_is_written_to_files_without_a_name(tmp_path: Path, name: str, code: str) -> None:
    store = open_store(f"sqlite:///{tmp_path}/perdure.db")
    await store.open()
    await store.add([document()])
    (tmp_path / f"perdure.db{name}").unlink()
    for work in (store.add([document()]), store.workers(), store.tend()):
        with pytest.raises(StoreError) as caught:
            await work
        assert caught.value.code == code
    assert store.lost is not None
    assert store.lost.code == code
    with pytest.raises(StoreError):
        await store.close()


async def test_a_second_log_is_not_begun_beside_a_deleted_one(tmp_path: Path) -> None:
    """A process that opens the store then would destroy it for those that have it open."""
    store = open_store(f"sqlite:///{tmp_path}/perdure.db")
    await store.open()
    added = await store.add([document()])
    (tmp_path / "perdure.db-wal").unlink()
    command = [sys.executable, "-c", OPENING, f"sqlite:///{tmp_path}/perdure.db"]
    other = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert other.stdout == "wal_deleted\n"
    assert not (tmp_path / "perdure.db-wal").exists()
    with pytest.raises(StoreError):
        await store.close()
    again = open_store(f"sqlite:///{tmp_path}/perdure.db")
    await again.open()
    assert await again.status(ORG, added[0].id) is not None
    await again.close()
