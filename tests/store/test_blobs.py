"""Blobs: one suite over the directory, the table and the bucket, then what is special about each."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from perdure.errors import SettingInvalid, StoreError, StoreUnavailable
from perdure.store.blobs import (
    BlobCorrupt,
    BlobMissing,
    Blobs,
    DirectoryBlobs,
    S3Blobs,
    TableBlobs,
    open_blobs,
)
from perdure.store.blobs.table import REST_MAX_S
from tests.store.s3_server import BUCKET, S3Object, S3Server, s3_server

MIB = 1024 * 1024
DAY_MS = 86_400_000

TABLES = """
CREATE TABLE IF NOT EXISTS blob_head (hash text PRIMARY KEY, size bigint NOT NULL, touched_ms bigint NOT NULL);
CREATE TABLE IF NOT EXISTS blob_part (hash text NOT NULL, part int NOT NULL, data bytea NOT NULL,
                                      PRIMARY KEY (hash, part))"""


@dataclass
class Place:
    """A blob store under test, with the ways to tamper with what it stored."""

    blobs: Blobs
    damage: Callable[[str], Awaitable[None]]  # flip a byte of the stored blob
    age: Callable[[str, int], Awaitable[None]]  # make it this many ms old


Opener = Callable[[], AbstractAsyncContextManager[Place]]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@asynccontextmanager
async def directory_place(root: Path) -> AsyncIterator[Place]:
    blobs = DirectoryBlobs(root)

    async def damage(digest: str) -> None:
        path = blobs.path_sync(digest)
        assert path is not None
        path.chmod(0o644)
        path.write_bytes(flipped(path.read_bytes()))

    async def age(digest: str, ms: int) -> None:
        path = blobs.path_sync(digest)
        assert path is not None
        os.utime(path, times=(time.time() - ms / 1000,) * 2)

    yield Place(blobs, damage, age)


@asynccontextmanager
async def table_place(url: str) -> AsyncIterator[Place]:
    async with asyncpg.create_pool(url, min_size=1, max_size=4) as pool:
        await pool.execute(TABLES)

        async def damage(digest: str) -> None:
            data = await pool.fetchval("SELECT data FROM blob_part WHERE hash = $1 AND part = 0", digest)
            await pool.execute(
                "UPDATE blob_part SET data = $2 WHERE hash = $1 AND part = 0", digest, flipped(data)
            )

        async def age(digest: str, ms: int) -> None:
            await pool.execute(
                "UPDATE blob_head SET touched_ms = touched_ms - $2 WHERE hash = $1", digest, ms
            )

        yield Place(TableBlobs(pool.acquire), damage, age)


@asynccontextmanager
async def bucket_place(server: S3Server) -> AsyncIterator[Place]:
    async def damage(digest: str) -> None:
        server.find(digest).data = flipped(server.find(digest).data)

    async def age(digest: str, ms: int) -> None:
        server.find(digest).modified_s = time.time() - ms / 1000

    yield Place(S3Blobs.from_url(server.blobs_url()), damage, age)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with s3_server() as server:
        yield server


@pytest.fixture(params=["directory", "table", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    if request.param == "directory":
        return lambda: directory_place(tmp_path / "blobs")
    if request.param == "table":
        url = request.getfixturevalue("postgres_url")
        return lambda: table_place(url)
    server = request.getfixturevalue("bucket")
    return lambda: bucket_place(server)


async def _collect(pieces: AsyncIterator[bytes], into: list[bytes]) -> None:
    async for piece in pieces:
        into.append(piece)


async def listed(blobs: Blobs, older_than_ms: int = 0) -> dict[str, int]:
    return {digest: age_ms async for digest, age_ms in blobs.list(older_than_ms)}


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB, MIB + 1, 9 * MIB + 7])
def test_what_was_put_comes_back(opened: Opener, size: int) -> None:
    async def story() -> None:
        data = os.urandom(size)
        async with opened() as place:
            digest = await place.blobs.put(data)
            assert digest == sha256(data)
            assert await place.blobs.get(digest) == data
            assert await place.blobs.exists(digest)

    asyncio.run(story())


@pytest.mark.parametrize("size", [0, 1, MIB, MIB + 1, 9 * MIB + 7])
def test_it_comes_in_pieces_and_is_hashed_beside_the_event_loop(
    opened: Opener, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.current_thread()

    def hashed(data: bytes = b"") -> Any:
        assert len(data) < MIB // 2 or threading.current_thread() is not here
        return original(data)

    original = hashlib.sha256

    async def story() -> None:
        data = os.urandom(size)
        async with opened() as place:
            digest = await place.blobs.put(data)
            monkeypatch.setattr(hashlib, "sha256", hashed)
            assert await place.blobs.get(digest) == data
            pieces = [piece async for piece in place.blobs.stream(digest)]
            assert b"".join(pieces) == data
            assert all(0 < len(piece) <= 2 * MIB for piece in pieces)

    asyncio.run(story())


def test_a_stream_goes_on_where_the_blob_is_set_aside(bucket: S3Server) -> None:
    async def story() -> None:
        data = os.urandom(5 * MIB)
        async with bucket_place(bucket) as place:
            digest = await place.blobs.put(data)
            async with aclosing(place.blobs.stream(digest)) as pieces:
                found = await anext(pieces)
                await place.age(digest, 5000)
                assert await place.blobs.delete(digest, 1000)
                assert b"".join([found, *[piece async for piece in pieces]]) == data

    asyncio.run(story())


def test_putting_again_is_one_blob(opened: Opener) -> None:
    async def story() -> None:
        async with opened() as place:
            digests = {await place.blobs.put(b"the same") for _ in range(3)}
            assert digests == {sha256(b"the same")} == (await listed(place.blobs)).keys()

    asyncio.run(story())


def test_twenty_puts_at_once_are_one_blob(opened: Opener) -> None:
    async def story() -> None:
        data = os.urandom(2 * MIB + 3)
        async with opened() as place:
            digests = await asyncio.gather(*(place.blobs.put(data) for _ in range(20)))
            assert set(digests) == {sha256(data)} == (await listed(place.blobs)).keys()
            assert await place.blobs.get(digests[0]) == data

    asyncio.run(story())


@pytest.mark.parametrize("digest", [sha256(b"never put"), "", "../../etc/passwd", "A" * 64, "é" * 64])
def test_a_missing_blob_says_so(opened: Opener, digest: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened() as place:
            with pytest.raises(BlobMissing) as caught:
                await place.blobs.get(digest)
            assert caught.value.code == "blob_missing"
            with pytest.raises(BlobMissing):
                await anext(place.blobs.stream(digest))
            with pytest.raises(BlobMissing):
                await place.blobs.open_copy(digest, tmp_path)
            assert not await place.blobs.exists(digest)
            assert await place.blobs.path(digest) is None

    asyncio.run(story())


def test_a_damaged_blob_is_never_returned_and_a_put_repairs_it(opened: Opener, tmp_path: Path) -> None:
    async def story() -> None:
        data = os.urandom(MIB + 100)
        copies = tmp_path / "copies"
        copies.mkdir()
        async with opened() as place:
            digest = await place.blobs.put(data)
            await place.damage(digest)
            with pytest.raises(BlobCorrupt) as caught:
                await place.blobs.get(digest)
            assert caught.value.code == "blob_corrupt"
            streamed: list[bytes] = []
            with pytest.raises(BlobCorrupt):
                await _collect(place.blobs.stream(digest), streamed)
            assert sum(map(len, streamed)) < len(data)
            with pytest.raises(BlobCorrupt):
                await place.blobs.open_copy(digest, copies)
            assert list(copies.iterdir()) == []

            assert await place.blobs.put(data) == digest
            assert await place.blobs.get(digest) == data

    asyncio.run(story())


STREAM = """
import asyncio, resource, sys
from pathlib import Path
from typing import Any
import asyncpg
from perdure.store.blobs import DirectoryBlobs, S3Blobs, TableBlobs

async def stream(kind, place, source, directory):
    pool = await asyncpg.create_pool(place, min_size=1, max_size=1) if kind == "table" else None
    blobs = S3Blobs.from_url(place) if kind == "s3" else DirectoryBlobs(Path(place))
    blobs = TableBlobs(pool.acquire) if pool else blobs
    await blobs.get(await blobs.put(b"warm"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    digest, size = await blobs.put_file(Path(source))
    copy = await blobs.open_copy(digest, Path(directory))
    print(digest, size, copy, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

asyncio.run(stream(*sys.argv[1:]))
"""


@pytest.mark.full
@pytest.mark.parametrize("kind", ["directory", "table", "s3"])
def test_a_file_is_stored_and_copied_out_without_being_loaded(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source, size = tmp_path / "large", 150 * MIB
    with source.open("wb") as file:
        piece = os.urandom(3 * MIB)
        for _ in range(size // len(piece)):
            file.write(piece)
    address = str(tmp_path / "blobs")
    if kind == "table":
        address = request.getfixturevalue("postgres_url")
        asyncio.run(create_tables(address))
    elif kind == "s3":
        address = request.getfixturevalue("bucket").blobs_url()

    # In a process of its own, whose memory is only the client's.
    command = [sys.executable, "-c", STREAM, kind, address, str(source), str(tmp_path)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    digest, stored, copy, grown_kib = answer.split()
    assert int(stored) == size
    with source.open("rb") as file, open(copy, "rb") as other:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest
        assert hashlib.file_digest(other, "sha256").hexdigest() == digest
    assert int(grown_kib) * 1024 < size / 2


async def create_tables(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(TABLES)
    await connection.close()


def test_a_copy_may_be_changed(opened: Opener, tmp_path: Path) -> None:
    async def story() -> None:
        async with opened() as place:
            digest = await place.blobs.put(b"original")
            for _ in range(2):
                copy = await place.blobs.open_copy(digest, tmp_path)
                assert copy.read_bytes() == b"original"
                copy.write_bytes(b"changed")
            assert await place.blobs.get(digest) == b"original"

    asyncio.run(story())


def test_a_small_file_and_its_bytes_are_the_same_blob(opened: Opener, tmp_path: Path) -> None:
    async def story() -> None:
        source = tmp_path / "small"
        source.write_bytes(b"small")
        async with opened() as place:
            assert await place.blobs.put_file(source) == (sha256(b"small"), 5)
            assert await place.blobs.put(b"small") == sha256(b"small")
            assert len(await listed(place.blobs)) == 1
            with pytest.raises(FileNotFoundError):
                await place.blobs.put_file(tmp_path / "absent")

    asyncio.run(story())


def test_old_blobs_are_listed_and_deleted(opened: Opener) -> None:
    async def story() -> None:
        async with opened() as place:
            digests = [await place.blobs.put(f"blob {number}".encode()) for number in range(10)]
            old = set(digests[:4])
            for digest in old:
                await place.age(digest, 2 * DAY_MS)

            assert (await listed(place.blobs)).keys() == set(digests)
            ages = await listed(place.blobs, DAY_MS)
            assert ages.keys() == old
            assert all(abs(age_ms - 2 * DAY_MS) < 60_000 for age_ms in ages.values())

            async for digest, _ in place.blobs.list(DAY_MS):
                assert await place.blobs.delete(digest, DAY_MS)
            assert await listed(place.blobs, DAY_MS) == {}
            for digest in (await listed(place.blobs)).keys() & old:  # a bucket has only set them aside
                assert not await place.blobs.delete(digest, DAY_MS)
                await place.age(digest, 2 * DAY_MS)
                assert await place.blobs.delete(digest, DAY_MS)
            assert (await listed(place.blobs)).keys() == set(digests) - old
            assert not await place.blobs.delete(digests[0])
            with pytest.raises(BlobMissing):
                await place.blobs.get(digests[0])

    asyncio.run(story())


@pytest.mark.parametrize("way", ["bytes", "file"])
def test_a_blob_put_again_is_young_again_and_not_collected(opened: Opener, way: str, tmp_path: Path) -> None:
    source = tmp_path / "file"
    source.write_bytes(b"needed again")

    async def story() -> None:
        async with opened() as place:
            digest = await place.blobs.put(b"needed again")
            await place.age(digest, 2 * DAY_MS)
            assert digest in await listed(place.blobs, DAY_MS)

            await (place.blobs.put(b"needed again") if way == "bytes" else place.blobs.put_file(source))
            assert digest not in await listed(place.blobs, DAY_MS)
            # a collector that had read its list before the put
            assert not await place.blobs.delete(digest, DAY_MS)
            assert await place.blobs.exists(digest)

    asyncio.run(story())


def test_puts_and_collection_race_without_losing_a_blob(tmp_path: Path, postgres_url: str) -> None:
    async def race(place: Place) -> None:
        for _ in range(25):
            digest = await place.blobs.put(b"contended")
            await place.age(digest, 2 * DAY_MS)
            put = [place.blobs.put(b"contended") for _ in range(3)]
            collect = [place.blobs.delete(digest, DAY_MS) for _ in range(3)]
            await asyncio.gather(*(call for pair in zip(collect, put, strict=True) for call in pair))
            assert await place.blobs.get(digest) == b"contended"

    async def story() -> None:
        async with directory_place(tmp_path / "blobs") as place:
            await race(place)
        async with table_place(postgres_url) as place:
            await race(place)

    asyncio.run(story())


# --- the directory -----------------------------------------------------------------------------


def test_a_killed_put_leaves_nothing_that_looks_like_a_blob(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from typing import Any
from perdure.store.blobs import DirectoryBlobs
os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
DirectoryBlobs(Path(sys.argv[1])).put_sync(b"never finished")
"""
    root = tmp_path / "blobs"
    killed = subprocess.run([sys.executable, "-c", program, str(root)], check=False)
    assert killed.returncode == -signal.SIGKILL
    leftovers = list((root / "tmp").iterdir())
    assert len(leftovers) == 1

    async def story() -> None:
        blobs = DirectoryBlobs(root)
        assert await listed(blobs) == {}
        assert not await blobs.exists(sha256(b"never finished"))
        assert await blobs.tidy(DAY_MS) == 0
        os.utime(leftovers[0], times=(0, 0))
        assert await blobs.tidy(DAY_MS) == 1
        assert await blobs.put(b"never finished") == sha256(b"never finished")
        assert len(await listed(blobs)) == 1

    asyncio.run(story())


def test_a_put_leaves_no_temporary_file(tmp_path: Path) -> None:
    blobs = DirectoryBlobs(tmp_path / "blobs")
    source = tmp_path / "source"
    source.write_bytes(b"one")
    for _ in range(2):
        blobs.put_sync(b"one")
        blobs.put_file_sync(source)
    assert list((tmp_path / "blobs" / "tmp").iterdir()) == []


def test_file_and_directories_are_synced_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).parent.name}")
        fsync(descriptor)

    def note_replace(source: str, target: str) -> None:
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    root = tmp_path / "blobs"
    DirectoryBlobs(root).put_sync(b"durable")
    assert done == [
        "sync tmp",
        "rename",
        "sync blobs",
        f"sync {tmp_path.name}",
        f"sync {tmp_path.parent.name}",
    ]


def test_the_blob_s_own_file_is_there_to_read(tmp_path: Path) -> None:
    async def story() -> None:
        blobs = DirectoryBlobs(tmp_path / "blobs")
        digest = await blobs.put(b"readable")
        path = await blobs.path(digest)
        assert path == tmp_path / "blobs" / digest[:2] / digest
        assert path.read_bytes() == blobs.get_sync(digest) == b"readable"
        assert path.stat().st_mode & 0o222 == 0

    asyncio.run(story())


def test_foreign_files_are_not_blobs(tmp_path: Path) -> None:
    async def story() -> None:
        blobs = DirectoryBlobs(tmp_path)
        digest = await blobs.put(b"mine")
        (tmp_path / digest[:2] / "README").write_text("not a blob")
        (tmp_path / digest[:2] / sha256(b"a directory")).mkdir()
        assert (await listed(blobs)).keys() == {digest}

    asyncio.run(story())


def test_a_full_disk_is_the_store_being_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    blobs = DirectoryBlobs(tmp_path / "blobs")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreUnavailable, match=r"No space left.*check PERDURE_BLOBS"):
        blobs.put_sync(b"too much")
    assert list((tmp_path / "blobs" / "tmp").iterdir()) == []


# --- the table and the bucket ------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 20 * MIB])
@pytest.mark.parametrize("kind", ["table", "s3"])
def test_a_file_that_changes_while_it_is_stored_is_refused(
    kind: str, size: int, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "changing"
    source.write_bytes(os.urandom(size))
    monkeypatch.setattr(f"perdure.store.blobs.{kind}.hash_file", lambda path: (sha256(b"before"), size))
    postgres_url, bucket = request.getfixturevalue("postgres_url"), request.getfixturevalue("bucket")

    async def story() -> None:
        async with table_place(postgres_url) if kind == "table" else bucket_place(bucket) as place:
            with pytest.raises(StoreError, match="changed while it was being stored"):
                await place.blobs.put_file(source)
            assert await listed(place.blobs) == {}
        assert bucket.uploads == {}

    asyncio.run(story())


def test_a_put_whose_connection_is_cut_stores_nothing(postgres_url: str) -> None:
    async def story() -> None:
        async with asyncpg.create_pool(postgres_url, min_size=2, max_size=2) as pool:
            await pool.execute(TABLES)
            blobs = TableBlobs(pool.acquire)
            await pool.execute("""
                CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN IF NEW.part = 8 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; RETURN NEW; END';
                CREATE TRIGGER cut BEFORE INSERT ON blob_part FOR EACH ROW EXECUTE FUNCTION cut()""")
            with pytest.raises(StoreUnavailable):
                await blobs.put(os.urandom(10 * MIB))
            assert await listed(blobs) == {}
            assert await pool.fetchval("SELECT count(*) FROM blob_part") == 0

            digest = await blobs.put(b"the next one")
            assert await blobs.get(digest) == b"the next one"

    asyncio.run(story())


def test_large_puts_rest_beside_others_and_keep_no_small_one_waiting(postgres_url: str) -> None:
    """A small put waited for large ones in their rests, and a second put of a large blob for five seconds at most."""

    async def story() -> None:
        async with asyncpg.create_pool(postgres_url, min_size=1, max_size=5) as pool:
            await pool.execute(TABLES)
            await pool.execute("""
                CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN IF NEW.part > 0 THEN PERFORM pg_sleep(0.2); END IF; RETURN NEW; END';
                CREATE TRIGGER slow BEFORE INSERT ON blob_part FOR EACH ROW EXECUTE FUNCTION slow()""")
            hurried, resting = TableBlobs(pool.acquire), TableBlobs(pool.acquire, lambda: True)
            took_s = []
            for blobs in (hurried, resting):
                began_s = time.monotonic()
                data = os.urandom(6 * MIB)
                large = [asyncio.create_task(blobs.put(data)) for _ in range(2)]
                await asyncio.sleep(0.3)
                await asyncio.wait_for(blobs.put(b"small"), 20)
                assert not any(put.done() for put in large)
                assert len(set(await asyncio.gather(*large))) == 1
                took_s.append(time.monotonic() - began_s)
            assert took_s[1] - took_s[0] > REST_MAX_S / 2

    asyncio.run(story())


def test_an_equal_put_waits_for_one_that_takes_long(postgres_url: str) -> None:
    async def story() -> None:
        async with asyncpg.create_pool(
            postgres_url, min_size=1, max_size=3, server_settings={"lock_timeout": "500ms"}
        ) as pool:
            await pool.execute(TABLES)
            await pool.execute("""
                CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
                'BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END';
                CREATE TRIGGER slow BEFORE INSERT ON blob_part FOR EACH ROW EXECUTE FUNCTION slow()""")
            blobs, data = TableBlobs(pool.acquire), os.urandom(3 * MIB)
            assert len(set(await asyncio.gather(blobs.put(data), blobs.put(data)))) == 1

    asyncio.run(story())


def test_a_database_without_the_tables_says_so(postgres_url: str) -> None:
    async def story() -> None:
        async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
            with pytest.raises(StoreError, match="blob_head"):
                await TableBlobs(pool.acquire).put(b"nowhere to go")

    asyncio.run(story())


def test_a_bucket_that_hiccups_is_asked_again(bucket: S3Server) -> None:
    async def story() -> None:
        blobs = S3Blobs(BUCKET, endpoint=bucket.url, backoff_base_s=0.01)
        bucket.failures = [503, 500]
        digest = await blobs.put(b"patience")
        bucket.failures = [503]
        assert await blobs.get(digest) == b"patience"

    asyncio.run(story())


def test_a_bucket_that_stays_away_is_unavailable(bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        blobs = S3Blobs(BUCKET, endpoint=bucket.url, retries_max=1, backoff_base_s=0.01)
        for call in (blobs.put(b"x"), blobs.get(sha256(b"x")), blobs.exists(sha256(b"x")), listed(blobs)):
            bucket.failures = [503, 503]
            with pytest.raises(StoreUnavailable):
                await call
        for place in (
            S3Blobs("no-such-bucket", endpoint=bucket.url),
            S3Blobs(BUCKET, endpoint="http://127.0.0.1:9", retries_max=0),
        ):
            with pytest.raises(StoreUnavailable):
                await place.put(b"x")
        monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
        with pytest.raises(StoreUnavailable):
            await S3Blobs(BUCKET, endpoint=bucket.url).put(b"x")

    asyncio.run(story())


def test_blobs_of_another_prefix_are_left_alone(bucket: S3Server) -> None:
    async def story() -> None:
        mine, other, top = (S3Blobs.from_url(bucket.blobs_url(prefix)) for prefix in ("a", "ab", ""))
        digests = [
            await blobs.put(name) for blobs, name in ((mine, b"mine"), (other, b"other"), (top, b"top"))
        ]
        for blobs, digest in zip((mine, other, top), digests, strict=True):
            assert (await listed(blobs)).keys() == {digest}

    asyncio.run(story())


# --- addresses ---------------------------------------------------------------------------------


def test_addresses(tmp_path: Path, bucket: S3Server) -> None:
    default = DirectoryBlobs(tmp_path)
    assert open_blobs(None, lambda: default) is default
    assert open_blobs("", lambda: default) is default
    for url, root in [
        (f"file://{tmp_path}/a%20b", tmp_path / "a b"),
        (str(tmp_path / "c"), tmp_path / "c"),
        ("relative", Path.cwd() / "relative"),
    ]:
        opened = open_blobs(url, lambda: default)
        assert isinstance(opened, DirectoryBlobs)
        assert opened.root == root
    assert isinstance(open_blobs(bucket.blobs_url(), lambda: default), S3Blobs)


@pytest.mark.parametrize(
    "url",
    [
        "gs://bucket",
        "s3://",
        "s3:///prefix",
        "s3://bucket?colour=blue",
        "s3://key:secret@bucket",
        "file://host/x",
    ],
)
def test_a_wrong_address_is_refused(url: str, tmp_path: Path) -> None:
    with pytest.raises(SettingInvalid):
        open_blobs(url, lambda: DirectoryBlobs(tmp_path))


def test_s3_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(SettingInvalid, match=r"pip install 'perdure\[s3\]'"):
        open_blobs("s3://bucket", lambda: DirectoryBlobs(tmp_path))


def test_half_of_the_credentials_are_refused_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2canary")
    with pytest.raises(SettingInvalid, match="AWS_ACCESS_KEY_ID") as refused:
        S3Blobs.from_url("s3://bucket?endpoint=http://127.0.0.1:9")
    assert "hunter2canary" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_put_between_the_look_and_the_delete_of_a_bucket_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    data = b"wanted again"

    async def story(server: S3Server) -> None:
        blobs = S3Blobs.from_url(server.blobs_url())
        digest = await blobs.put(data)
        server.find(digest).modified_s -= 2 * DAY_MS / 1000
        (name,) = server.objects
        puts: list[str] = []

        def put_first(method: str, key: str) -> None:
            if method in ("DELETE", "POST") and not puts:  # one or many
                server.objects[name] = S3Object(data)
                puts.append(name)

        server.before = put_first
        await blobs.delete(digest, DAY_MS)
        assert len(puts) == 1
        assert await blobs.exists(digest)
        assert await blobs.get(digest) == data
        assert not await blobs.delete(digest, DAY_MS)  # it is young again
        server.find(digest).modified_s -= 2 * DAY_MS / 1000
        assert await blobs.delete(digest, DAY_MS)
        with pytest.raises(BlobMissing):
            await blobs.get(digest)

    with s3_server() as server:
        asyncio.run(story(server))
