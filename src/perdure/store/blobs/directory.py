"""Blobs as files of a directory: `root/ab/ab12…`, beside the SQLite file by default.

A blob appears under its name only complete and durable: temporary file, fsync, rename, fsync of the directory.
Leftovers of a killed process stay in `root/tmp` and are never taken for blobs. The `*_sync` verbs serve child
processes that have no event loop; the others run them in threads.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import os
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from perdure.errors import StoreError, StoreUnavailable
from perdure.store.blobs.base import CHUNK_BYTES, corrupt, hash_file, is_digest, missing, required, verified
from perdure.store.blobs.owning import MARK, Mark
from perdure.store.descriptors import close_unshared, open_unshared
from perdure.store.lock_holder import lock_within
from perdure.store.private import file_mode, make_directory, open_private

#: What file systems without hard links answer to one.
NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
#: A large blob is written to the disk in pieces: on many file systems a commit of the store waits for all data that
#: another process has not synced yet.
SYNC_BYTES = CHUNK_BYTES
_SHARDS = [f"{number:02x}" for number in range(256)]


class DirectoryBlobs:
    """Blobs in a local directory, shared by all processes of this host."""

    inside = False

    def __init__(self, root: Path, beside: bool = False) -> None:
        self.root, self._mode = root, file_mode()
        self.where, self.beside = str(root), beside
        self._marked = False  # once it is, it stays so: otherwise this is no longer the same disk
        self.temporary = root / "tmp"  # on the blobs' own file system; directories in it are somebody else's
        self._durable: set[Path] = set()  # directories that are known to survive a crash

    async def mark(self) -> Mark | None:
        return await asyncio.to_thread(self._mark)

    async def set_mark(self, mark: Mark, over: bool = False) -> Mark:
        return await asyncio.to_thread(self._set_mark, mark, over)

    async def put(self, data: bytes) -> str:
        return await asyncio.to_thread(self.put_sync, data)

    async def put_file(self, path: Path) -> tuple[str, int]:
        return await asyncio.to_thread(self.put_file_sync, path)

    async def get(self, digest: str) -> bytes:
        return await asyncio.to_thread(self.get_sync, digest)

    def stream(self, digest: str) -> AsyncGenerator[bytes, None]:
        return verified(self._pieces(digest), digest)

    async def _pieces(self, digest: str) -> AsyncGenerator[bytes, None]:
        with self._reported():
            try:
                file = await asyncio.to_thread(self._place(digest).open, "rb")
            except FileNotFoundError:
                raise missing(digest) from None
        with file:
            while True:
                with self._reported():
                    piece = await asyncio.to_thread(file.read, CHUNK_BYTES)
                if not piece:
                    return
                yield piece

    async def path(self, digest: str) -> Path | None:
        return await asyncio.to_thread(self.path_sync, digest)

    async def open_copy(self, digest: str, directory: Path) -> Path:
        return await asyncio.to_thread(self.open_copy_sync, digest, directory)

    async def exists(self, digest: str) -> bool:
        return await self.path(digest) is not None

    async def list(self, older_than_ms: int = 0) -> AsyncIterator[tuple[str, int]]:
        for shard in _SHARDS:
            for digest, age_ms in await asyncio.to_thread(_ages, self.root / shard, older_than_ms):
                if is_digest(digest):
                    yield digest, age_ms

    async def delete(self, digest: str, older_than_ms: int = 0) -> bool:
        return await asyncio.to_thread(self._delete, digest, older_than_ms)

    async def tidy(self, older_than_ms: int) -> int:
        leftovers = await asyncio.to_thread(_ages, self.temporary, older_than_ms)
        for name, _ in leftovers:
            (self.temporary / name).unlink(missing_ok=True)
        return len(leftovers)

    def put_sync(self, data: bytes) -> str:
        """`put` for code without an event loop."""
        digest = hashlib.sha256(data).hexdigest()
        with self._reported():
            if not self._renew(digest):
                with self._temporary_file() as file:
                    _write(data, file)
                    self._adopt(file, digest)
        return digest

    def put_file_sync(self, path: Path) -> tuple[str, int]:
        """`put_file` for code without an event loop."""
        with path.open("rb") as source, self._reported(), self._temporary_file() as file:
            digest, size = _copy(source, file)
            if not self._renew(digest):
                self._adopt(file, digest)
        return digest, size

    def get_sync(self, digest: str) -> bytes:
        """`get` for code without an event loop."""
        with self._reported():
            try:
                data = self._place(digest).read_bytes()
            except FileNotFoundError:
                raise missing(digest) from None
        found = hashlib.sha256(data).hexdigest()
        if found != digest:
            raise corrupt(digest, found)
        return data

    def path_sync(self, digest: str) -> Path | None:
        """`path` for code without an event loop."""
        place = self._place(digest) if is_digest(digest) else None
        return place if place is not None and place.is_file() else None

    def open_copy_sync(self, digest: str, directory: Path) -> Path:
        """`open_copy` for code without an event loop."""
        partial = directory / f".{required(digest)}.{uuid.uuid4().hex}"
        try:
            with self._place(digest).open("rb") as source, partial.open("xb") as file:
                found, _ = _copy(source, file)
            if found != digest:
                raise corrupt(digest, found)
            return partial.replace(directory / digest)
        except FileNotFoundError:
            if not directory.is_dir():
                raise
            raise missing(digest) from None
        finally:
            partial.unlink(missing_ok=True)

    def _mark(self) -> Mark | None:
        with self._reported():
            try:
                found = Mark.from_bytes((self.root / MARK).read_bytes(), self.where)
            except FileNotFoundError:
                return None
        self._marked = True
        return found

    def _set_mark(self, mark: Mark, over: bool) -> Mark:
        with self._reported():
            with self._temporary_file() as file:
                file.write(mark.to_bytes())
                file.flush()
                os.fsync(file.fileno())
                if over:
                    os.replace(file.name, self.root / MARK)
                else:
                    self._mark_first(file.name)
            _sync(self.root)
        return self._mark() or mark

    def _mark_first(self, name: str) -> None:
        """Give the file the name of the mark unless there is one."""
        try:
            os.link(name, self.root / MARK)  # unlike a rename it overwrites nothing
        except FileExistsError:
            return
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            with self._lock(fcntl.LOCK_EX):
                if not (self.root / MARK).exists():
                    os.replace(name, self.root / MARK)

    def _place(self, digest: str) -> Path:
        return self.root / required(digest)[:2] / digest

    def _renew(self, digest: str) -> bool:
        """Make an undamaged blob young again; False when there is none, so that it is written (anew)."""
        place = self._place(digest)
        try:
            if hash_file(place)[0] != digest:
                return False
            with self._lock(fcntl.LOCK_SH):
                os.utime(place)
        except (FileNotFoundError, PermissionError):  # another user's can only be replaced
            return False
        # Another process may have renamed it a moment ago and not have synced the directory yet.
        self._sync_directories(place)
        return True

    def _adopt(self, file: BinaryIO, digest: str) -> None:
        """Give the complete temporary file its name, durably."""
        place = self._place(digest)
        file.flush()
        os.fsync(file.fileno())
        make_directory(place.parent, self._mode)
        with self._lock(fcntl.LOCK_SH):
            os.replace(file.name, place)
        self._sync_directories(place)

    def _sync_directories(self, place: Path) -> None:
        """Make the name durable, and at first the directory that it is in."""
        _sync(place.parent)
        if place.parent not in self._durable:
            _sync(self.root)
            _sync(self.root.parent)
            self._durable.add(place.parent)

    def _delete(self, digest: str, older_than_ms: int) -> bool:
        place = self._place(digest)
        with self._reported():
            try:
                # Excludes every put between looking at the age and unlinking.
                with self._lock(fcntl.LOCK_EX):
                    if _age_ms(place.stat()) < older_than_ms:
                        return False
                    place.unlink()
            except FileNotFoundError:
                return False
        return True

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        descriptor = open_unshared(self.root / ".lock", os.O_RDWR | os.O_CREAT, self._mode)
        try:
            lock_within(descriptor, kind, self.root / ".lock")
            yield
        finally:
            close_unshared(descriptor)

    @contextmanager
    def _temporary_file(self) -> Iterator[BinaryIO]:
        """A new file on the blobs' own file system; removed again unless it was renamed."""
        if self._marked and not (self.root / MARK).exists():
            raise StoreUnavailable(f"blob directory {self.root}: {MARK} is gone; is its disk mounted?")
        make_directory(self.temporary, self._mode)
        name = self.temporary / uuid.uuid4().hex
        try:
            with open(name, "xb", opener=self._create_read_only) as file:
                yield file
        finally:
            name.unlink(missing_ok=True)

    def _create_read_only(self, name: str, flags: int) -> int:
        # A stage that reads the blob's own file cannot change it by mistake.
        return open_private(name, flags, self._mode & 0o444)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """A full, read-only or vanished disk is the store being away, not the document's fault."""
        try:
            yield
        except OSError as error:
            advice = "check PERDURE_BLOBS, its disk and its rights"
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM):
                raise StoreUnavailable(f"blob directory {self.root}: {error.strerror}; {advice}") from error
            raise StoreError(f"blob directory {self.root}: {error}; {advice}") from error


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy(source: BinaryIO, target: BinaryIO) -> tuple[str, int]:
    """Copy a piece at a time; hash and size of what was copied."""
    digest, size = hashlib.sha256(), 0
    while piece := source.read(CHUNK_BYTES):
        digest.update(piece)
        target.write(piece)
        size += len(piece)
        if size % SYNC_BYTES == 0:
            _sync_data(target)
    return digest.hexdigest(), size


def _write(data: bytes, target: BinaryIO) -> None:
    """Write it a piece at a time."""
    for start in range(0, len(data), SYNC_BYTES):
        target.write(memoryview(data)[start : start + SYNC_BYTES])
        if len(data) > SYNC_BYTES:
            _sync_data(target)


def _sync_data(file: BinaryIO) -> None:
    file.flush()
    os.fdatasync(file.fileno())


def _age_ms(status: os.stat_result) -> int:
    return max(0, (time.time_ns() - status.st_mtime_ns) // 1_000_000)


def _ages(directory: Path, older_than_ms: int) -> list[tuple[str, int]]:
    """Name and age of the files in a directory that are at least that old."""
    found = []
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                age_ms = _age_ms(entry.stat(follow_symlinks=False))
                if age_ms >= older_than_ms and entry.is_file(follow_symlinks=False):
                    found.append((entry.name, age_ms))
    return found
