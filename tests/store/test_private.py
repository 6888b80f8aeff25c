"""Nobody but the owner (or, if set so, the group) can open a file of the store, whatever the umask says."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from perdure.engine import rooms
from perdure.errors import StoreBusy, StoreUnavailable
from perdure.operate import retention
from perdure.operate.status import overview
from perdure.service import AsyncPerdure
from perdure.settings import Settings, using
from perdure.store import lock_holder, sqlite
from perdure.store.blobs import DirectoryBlobs
from perdure.store.lock_holder import holder_told, lock_within
from perdure.store.open import open_store
from perdure.store.private import make_directory
from perdure.store.turn import await_turn
from tests.store.making import document


@contextmanager
def umask(number: int) -> Iterator[None]:
    before = os.umask(number)
    try:
        yield
    finally:
        os.umask(before)


async def _use(directory: Path, settings: Settings) -> dict[str, int]:
    """The modes of all that an app makes: the store, its log and locks, a wake-up, blobs, an archive."""
    app = AsyncPerdure(f"sqlite:///{directory}/perdure.db", settings=settings)
    await app.start()
    try:
        worker = await app.store.register("worker", "w", ("documents",))
        await app.store.driver.lock("worker", worker)
        stop = await app.store.driver.listen(lambda: None)
        await app.store.add([document()])
        await app.blobs.put(b"x" * 100_000)
        retention._target(app.keeping, "documents", 0)
        with using(settings):
            rooms.remove(rooms.new_room(directory / "perdure.db.d" / "rooms"))
        found = {
            str(path.relative_to(directory)): stat.S_IMODE(path.stat().st_mode)
            for path in directory.rglob("*")
        }
        await stop()
        return found
    finally:
        await app.close()


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize(
    ("mode", "file", "folder", "blob"), [("0600", 0o600, 0o700, 0o400), ("0660", 0o660, 0o770, 0o440)]
)
async def test_all_files_have_the_mode_that_is_set(
    tmp_path: Path, mask: int, mode: str, file: int, folder: int, blob: int
) -> None:
    with umask(mask):
        found = await _use(tmp_path, Settings(file_mode=mode, archive=f"{tmp_path}/archive/deep"))
    blobs = {name for name in found if "/blobs/" in name and not name.endswith("/.lock")}
    expected = {
        name: folder if (tmp_path / name).is_dir() else blob if name in blobs else file for name in found
    }
    # the files that are deleted at the end were files
    gone = {name for name in found if not (tmp_path / name).exists()}
    assert found == {**expected, **dict.fromkeys(gone, file)}
    assert {"perdure.db", "perdure.db.d/turn", "perdure.db.d/clock", "archive/deep"} <= found.keys()
    assert {"perdure.db-wal", "perdure.db-shm", "perdure.db.d/blobs/.lock"} <= found.keys()
    assert any("/wake/" in name for name in found)
    assert any("/locks/worker" in name for name in found)


async def test_a_store_that_others_can_use_is_reported_and_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    url, path = f"sqlite:///{tmp_path}/perdure.db", tmp_path / "perdure.db"
    await _opened_overview(url)
    assert "other users" not in caplog.text
    path.chmod(0o644)
    (tmp_path / "perdure.db.d").chmod(0o755)
    told = (await _opened_overview(url))["problems"]
    command = f"chmod -R go-rwx {path} {path}-wal {path}-shm {path}.d"
    assert [one["press"] for one in told] == [command]
    assert command in caplog.text
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    await asyncio.to_thread(subprocess.run, ["/bin/sh", "-c", command], check=False)
    assert (await _opened_overview(url))["problems"] == []


async def test_the_group_is_let_in_if_it_is_set_and_others_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_FILE_MODE", "0660")
    url, path = f"sqlite:///{tmp_path}/perdure.db", tmp_path / "perdure.db"
    assert (await _opened_overview(url))["problems"] == []
    path.chmod(0o664)
    assert [one["press"] for one in (await _opened_overview(url))["problems"]] == [
        f"chmod -R o-rwx {path} {path}-wal {path}-shm"
    ]


def test_a_group_that_a_directory_passes_on_is_passed_on(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    made = tmp_path / "a" / "b"
    make_directory(made, 0o660)
    assert stat.S_IMODE(made.stat().st_mode) == 0o2770


def test_processes_that_make_the_same_directories_at_once_all_succeed(tmp_path: Path) -> None:
    deep = [tmp_path / str(n) / "a" / "b" / "c" for n in range(300)]
    start = threading.Barrier(4)

    def make_all() -> None:
        start.wait()
        for path in deep:
            make_directory(path, 0o600)

    with ThreadPoolExecutor(4) as pool:
        for made in [pool.submit(make_all) for _ in range(4)]:
            made.result()
    assert {stat.S_IMODE(path.stat().st_mode) for path in deep} == {0o700}


async def test_a_store_that_this_user_cannot_use_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "perdure.db.d").touch()  # what cannot be entered, for root too
    with pytest.raises(StoreUnavailable, match="check the path and its rights"):
        await open_store(f"sqlite:///{tmp_path}/perdure.db").open()


async def _opened_overview(url: str) -> dict:
    app = AsyncPerdure(url)
    await app.start()
    try:
        return await overview(app.store)
    finally:
        await app.close()


def test_a_blob_of_another_user_of_the_group_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time can only be changed by its owner."""
    blobs = DirectoryBlobs(tmp_path / "blobs")
    digest = blobs.put_sync(b"ours")

    def denied(path: Path) -> None:
        raise PermissionError

    before = blobs._place(digest).stat().st_ino
    monkeypatch.setattr(os, "utime", denied)
    assert blobs.put_sync(b"ours") == digest
    assert blobs._place(digest).stat().st_ino != before


# --- waiting for a lock --------------------------------------------------------------------------

READER = """
import fcntl, os, sys, time
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_SH)
print("locked", flush=True)
time.sleep(60)
"""


WRITER = """
import apsw, sys, time
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
time.sleep(60)
"""


@contextmanager
def holding(program: str, path: Path) -> Iterator[int]:
    """A process that keeps a lock: READER, who may only read the file, a shared one; WRITER that of SQLite."""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        try:
            yield process.pid
        finally:
            process.kill()


def test_a_shared_lock_on_the_turn_is_named(tmp_path: Path) -> None:
    path = tmp_path / "turn"
    path.touch()
    with (
        holding(READER, path) as pid,
        pytest.raises(StoreBusy, match=f"^process {pid} has held the database"),
    ):
        await_turn(path, patience_s=0.2)


def test_another_users_process_is_named_by_the_kernels_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its descriptors cannot be looked at."""
    path = tmp_path / "turn"
    path.touch()
    monkeypatch.setattr(lock_holder, "_has_lock", lambda *_: False)
    with holding(READER, path) as pid:
        assert holder_told(path) == f"process {pid}"
    assert holder_told(path) == lock_holder.NOBODY


def test_the_lock_of_blobs_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs")
    digest = blobs.put_sync(b"x")
    monkeypatch.setattr(
        "perdure.store.blobs.directory.lock_within", lambda fd, kind, path: lock_within(fd, kind, path, 0.2)
    )
    with (
        holding(READER, tmp_path / "blobs" / ".lock") as pid,
        pytest.raises(StoreBusy, match=f"process {pid} .*blobs/.lock"),
    ):
        asyncio.run(blobs.delete(digest))
    assert asyncio.run(blobs.delete(digest))


async def test_the_holder_of_sqlites_own_lock_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_MS", 100)
    path = tmp_path / "perdure.db"
    store = open_store(f"sqlite:///{path}")
    await store.open()
    try:
        with (
            holding(WRITER, path) as pid,
            pytest.raises(StoreBusy, match=f"locked by process {pid}"),
        ):
            await store.driver.write(sqlite._nothing)
    finally:
        await store.close()


def test_a_link_to_a_file_that_is_not_there_creates_it(tmp_path: Path) -> None:
    link, target = tmp_path / "link", tmp_path / "target"
    link.symlink_to(target)
    code = (
        f"import os; from perdure.store.private import open_private as o; o({str(link)!r}, os.O_CREAT, 0o660)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert stat.S_IMODE(target.stat().st_mode) == 0o660
