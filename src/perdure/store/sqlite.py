"""SQLite through apsw: one writer thread, WAL with synchronous=FULL, and a `flock` turn among processes.

Processes queue for their turn to write on a lock file, see turn.py. A worker's sign of life is a
`flock` of its own: the kernel frees it the moment the process dies. Idle workers are woken through FIFOs.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import re
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import apsw

from perdure.errors import SettingInvalid, StoreBusy, StoreError, StoreUnavailable
from perdure.store.base import DataRefused, OldestWriter, Row, Steps
from perdure.store.descriptors import close_unshared, open_unshared
from perdure.store.lock_holder import SAY_S, is_taken, say_locked
from perdure.store.private import exposed, file_mode, make_directory, make_file
from perdure.store.sqlite_clock import Mark, SteadyWall
from perdure.store.sqlite_dialect import SqliteDialect
from perdure.store.sqlite_files import OpenFiles, refuse_half_deleted, writer_of
from perdure.store.sqlite_look import look, only_readable, read_only
from perdure.store.turn import Turn
from perdure.store.walks import READERS

T = TypeVar("T")
NETWORK_FILESYSTEMS = frozenset(
    "nfs nfs4 cifs smb3 smbfs 9p afs ceph lustre glusterfs fuse.sshfs fuse.glusterfs".split()
)
BUSY_MS = 10_000
STATEMENT_S = 30.0  # that a single statement may take, as on PostgreSQL
STEPS = 1_000_000  # of SQLite's machine, some 20 ms, between two notes of progress: each takes the interpreter's lock
WRITER = "perdure-writer"
WRITER_CACHE_KB = 16_384
READER_CACHE_KB = 8_192


@lru_cache(maxsize=1024)
def numbered(sql: str) -> str:
    """`$1` → `?1`."""
    return re.sub(r"\$(\d+)", r"?\1", sql)


class SqliteDriver:
    """The database file at `path`, and beside it a directory for locks, wake-ups and blobs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mode = file_mode()
        self.dialect = SqliteDialect()
        self.directory = path.with_name(path.name + ".d")
        self._writer: ThreadPoolExecutor | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._local = threading.local()
        self._connections: list[apsw.Connection] = []
        self._turn: Turn
        self.only_looks = False  # this user can read the files and not write them
        self._closing: list[Callable[[], None]] = []  # what was opened beside the database
        self._clock: SteadyWall
        self._files: OpenFiles
        self.lost: StoreError | None = None
        self._end_statement_s = math.inf
        self._locks: dict[tuple[str, int], int] = {}

    async def open(self) -> None:
        refuse_network_filesystem(self.path)
        self._writer = ThreadPoolExecutor(1, WRITER)
        self._readers = ThreadPoolExecutor(READERS, "perdure-reader")
        self.only_looks = only_readable(self.path)
        if self.only_looks:
            self._clock = SteadyWall()
        else:
            await self._in(self._writer, self._prepare)

    def _prepare(self) -> None:
        try:
            for name in ("locks", "wake"):
                make_directory(self.directory / name, self.mode)
            self._turn = Turn(self.directory / "turn", self.mode)
            self._closing.append(self._turn.close)
            mark = Mark(self.directory / "clock", mode=self.mode)
            self._closing.append(mark.close)
            self._clock = SteadyWall(mark=mark)
            with self._turn.taken():
                refuse_half_deleted(self.path)
                make_file(self.path, self.mode)  # its log and index get the same mode
                connection = self._connection()
                connection.execute("PRAGMA schema_version").fetchall()  # opens the log
                connection.set_progress_handler(self._progressed, STEPS)
                self._files = OpenFiles(self.path)
        except OSError as error:
            raise StoreUnavailable(
                f"cannot open {error.filename or self.path}: {error.strerror}; check the path and its rights"
            ) from error

    async def close(self) -> None:
        def shut() -> None:
            for connection in self._connections:
                with suppress(apsw.Error):
                    connection.close()
            self._connections.clear()

        if self._writer is not None and self._readers is not None:
            self._readers.shutdown()
            await self._in(self._writer, shut)
            self._writer.shutdown()
            while self._closing:
                self._closing.pop()()
            self._writer = self._readers = None
        for name, number in list(self._locks):
            await self.unlock(name, number)

    # --- transactions ----------------------------------------------------------------------------

    async def write(self, steps: Callable[[], Steps[T]]) -> T:
        def run() -> T:
            self.refuse_if_only_looking()
            with mapped(self.path), self._turn.taken():
                connection = self._connection()
                self._check(connection)
                connection.execute("BEGIN IMMEDIATE")
                try:
                    answer = drive(connection, steps(), self._begins)
                    self._end_statement_s = math.inf
                    connection.execute("COMMIT")
                except BaseException:
                    self._end_statement_s = math.inf
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
                self._check(connection)
                return answer

        return await self._in(self._writer, run)

    async def write_aside(self, steps: Callable[[], Steps[T]]) -> T:
        return await self.write(steps)  # one at a time, whoever writes

    async def read(self, steps: Callable[[], Steps[T]]) -> T:
        given_up = threading.Event()

        def run() -> T:
            self._local.given_up = given_up
            with mapped():
                if not self.only_looks:
                    self._files.check()
                connection = self._connection()
                connection.execute("BEGIN")
                try:
                    return drive(connection, steps(), self._read_begins)
                finally:
                    self._local.end_s = math.inf
                    connection.execute("ROLLBACK")

        try:
            return await self._in(self._readers, run)
        except asyncio.CancelledError:
            given_up.set()  # the thread reads on, and must not for long
            raise

    async def snapshot(self, steps: Callable[[], Steps[T]]) -> T:
        return await self.read(steps)

    async def script(self, text: str) -> None:
        def run() -> None:
            self.refuse_if_only_looking()
            with mapped(self.path), self._turn.taken():
                connection = self._connection()
                self._check(connection)
                with connection:
                    connection.execute(text)

        await self._in(self._writer, run)

    def refuse_if_only_looking(self) -> None:
        """Raises: StoreReadOnly if this user cannot write the files."""
        if self.only_looks:
            raise read_only(self.path)

    def _begins(self, many: bool) -> None:
        """A statement begins: those who wait hear of it, and a single one must end in time."""
        self._turn.advance()
        self._end_statement_s = math.inf if many else time.monotonic() + STATEMENT_S

    def _read_begins(self, many: bool) -> None:
        """A statement of a read begins, and must end in time, too."""
        self._local.end_s = math.inf if many else time.monotonic() + STATEMENT_S

    def _read_progressed(self) -> bool:
        """Called by SQLite in the thread that reads; True ends the statement."""
        given_up: threading.Event = self._local.given_up
        return given_up.is_set() or time.monotonic() > float(self._local.end_s)

    def _progressed(self) -> bool:
        """Called by SQLite while a statement runs; True ends it."""
        self._turn.advance()
        return time.monotonic() > self._end_statement_s

    def _check(self, connection: apsw.Connection) -> None:
        """Make sure that the files which are open are those that others find; if not, rescue what can be rescued."""
        try:
            self._files.check()
        except StoreError as error:
            self.lost = error
            self._files.rescue(connection)
            raise

    def _connection(self) -> apsw.Connection:
        """This thread's connection."""
        found: apsw.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            writes = threading.current_thread().name.startswith(WRITER)
            cache_kb = WRITER_CACHE_KB if writes else READER_CACHE_KB
            found = look(self.path) if self.only_looks else connect(self.path, cache_kb)
            found.create_scalar_function("perdure_now", lambda *_: self._clock.now_ms(), 0)
            if not writes:
                self._local.end_s = math.inf
                found.set_progress_handler(self._read_progressed, STEPS)
            self._local.connection = found
            self._connections.append(found)
        return found

    @staticmethod
    async def _in(pool: ThreadPoolExecutor | None, work: Callable[[], T]) -> T:
        if pool is None:
            raise StoreError("the store is closed; open it first", code="store_closed")
        return await asyncio.get_running_loop().run_in_executor(pool, work)

    # --- locks that die with their process -------------------------------------------------------

    def _lock_path(self, name: str, number: int) -> Path:
        return self.directory / "locks" / f"{name}-{number}"

    async def lock(self, name: str, number: int) -> bool:
        if (name, number) in self._locks:
            return True
        if self._writer is None:
            raise StoreError("the store is closed; open it first", code="store_closed")
        self.refuse_if_only_looking()
        fd = open_unshared(self._lock_path(name, number), os.O_RDWR | os.O_CREAT, self.mode)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            close_unshared(fd)
            return False
        self._locks[name, number] = fd
        return True

    async def unlock(self, name: str, number: int) -> None:
        fd = self._locks.pop((name, number), None)
        if name == "worker":  # its number is never given again
            self._lock_path(name, number).unlink(missing_ok=True)
        if fd is not None:
            close_unshared(fd)

    async def locked(self, name: str, numbers: Sequence[int]) -> set[int]:
        return {number for number in numbers if self._is_locked(name, number)}

    def _is_locked(self, name: str, number: int) -> bool:
        try:
            fd = open_unshared(self._lock_path(name, number), os.O_RDONLY)
        except FileNotFoundError:
            return False
        except PermissionError:  # another user's; the kernel's list tells
            return is_taken(self._lock_path(name, number))
        try:
            # shared, so that two who look at the same time do not see each other
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            close_unshared(fd)

    async def tend(self) -> None:
        """Look after the files; a file lock cannot be lost while its process lives."""
        if self.only_looks:
            return
        try:
            self._files.check()
        except StoreError:
            await self.write(_nothing)  # to rescue what can be rescued
            raise

    def exposed(self) -> str | None:
        """Return the command that keeps other users out of the files; None if they are kept out."""
        beside = [self.path.with_name(self.path.name + end) for end in ("", "-wal", "-shm", ".d")]
        return exposed(beside, self.mode)

    async def location(self) -> str:
        status = self.path.stat()
        return f"{self.path.resolve()}#{status.st_dev}:{status.st_ino}"

    async def oldest_writer(self) -> OldestWriter | None:
        return None  # one writes at a time, and the feed waits for nobody

    async def durability(self) -> dict[str, str]:
        return {"synchronous": "full"}

    async def up_for_s(self) -> float:
        return math.inf

    # --- wake-ups --------------------------------------------------------------------------------

    async def wake(self) -> None:
        for fifo in list((self.directory / "wake").iterdir()):
            try:
                fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # its reader is gone
                fifo.unlink(missing_ok=True)
                continue
            try:
                os.write(fd, b"!")
            except BlockingIOError:
                pass  # it has wake-ups enough
            finally:
                os.close(fd)

    async def listen(self, heard: Callable[[], None]) -> Callable[[], Awaitable[None]]:
        loop = asyncio.get_running_loop()
        name = f"{os.getpid()}-{secrets.token_hex(8)}"
        making, fifo = self.directory / f"wake-{name}", self.directory / "wake" / name
        os.mkfifo(making, self.mode)
        making.chmod(self.mode)
        fd = open_unshared(making, os.O_RDWR | os.O_NONBLOCK)
        making.rename(fifo)  # seen once it has a reader: others remove what nobody reads

        def readable() -> None:
            os.read(fd, 4096)
            heard()

        loop.add_reader(fd, readable)

        async def stop() -> None:
            loop.remove_reader(fd)
            fifo.unlink(missing_ok=True)
            close_unshared(fd)

        return stop


def connect(path: Path, cache_kb: int = WRITER_CACHE_KB) -> apsw.Connection:
    """A connection as every one of ours is set up."""
    with mapped():
        connection = apsw.Connection(str(path))
        connection.set_busy_handler(Busy(path))
        # without it each run with new parameters plans the statement anew: 40 us instead of 5 for a claim
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "wal_autocheckpoint=4000",
                       f"cache_size=-{cache_kb}", "temp_store=MEMORY"):  # fmt: skip
            connection.execute(f"PRAGMA {pragma}")
    return connection


class Busy:
    """Waits while SQLite's own lock is taken, up to `BUSY_MS`, and says after two seconds who has it."""

    def __init__(self, path: Path) -> None:
        self._path, self._since_s, self._said = path, 0.0, False

    def __call__(self, times: int) -> bool:
        """Called by SQLite before it tries again; False: it gives up."""
        now_s = time.monotonic()
        if times == 0:
            self._since_s, self._said = now_s, False
        waited_s = now_s - self._since_s
        if waited_s >= SAY_S and not self._said:
            self._said = True
            say_locked(writer_of(self._path) or "another program")
        time.sleep(min(0.001 * 2 ** min(times, 6), 0.1))
        return waited_s < BUSY_MS / 1000


def _nothing() -> Steps[None]:
    return
    yield


def drive(
    connection: apsw.Connection, steps: Steps[T], begins: Callable[[bool], None] = lambda many: None
) -> T:
    """Run the steps on this connection; `begins` is told of each, and whether it is run for many rows."""
    rows: list[Row] = []
    try:
        query = next(steps)
        while True:
            sql = numbered(query.sql)
            begins(query.rows is not None)
            if query.rows is None:
                rows = list(connection.execute(sql, tuple(query.params)))
            else:
                scalars = tuple(query.params)
                bound: Any = [scalars + tuple(row) for row in query.rows] if scalars else query.rows
                rows = list(connection.executemany(sql, bound))
            query = steps.send(rows)
    except StopIteration as stop:
        answer: T = stop.value
        return answer


@contextmanager
def mapped(path: Path | None = None) -> Iterator[None]:
    """SQLite's errors as ours; the process that has the database at `path` locked is named."""
    try:
        yield
    except (apsw.BusyError, apsw.LockedError, apsw.ProtocolError) as error:
        who = writer_of(path) if path is not None else ""
        raise StoreBusy(f"the database is locked{f' by {who}' if who else ''}: {error}") from error
    except (
        apsw.ConstraintError,
        apsw.TooBigError,
        apsw.MismatchError,
        OverflowError,
        UnicodeEncodeError,
        TypeError,
    ) as error:
        code = getattr(error, "extendedresult", None)
        raise DataRefused(str(error), code == apsw.SQLITE_CONSTRAINT_FOREIGNKEY) from error
    except apsw.InterruptError as error:
        raise StoreBusy(
            f"a statement took longer than {STATEMENT_S:g} s; ask for less at a time", code="lock_timeout"
        ) from error
    except apsw.FullError as error:
        raise StoreUnavailable("the disk is full; free some space") from error
    except apsw.NotADBError as error:
        raise StoreError(
            "the file is not a SQLite database; name another path", code="store_invalid"
        ) from error
    except (apsw.CantOpenError, apsw.IOError, apsw.ReadOnlyError) as error:
        raise StoreUnavailable(
            f"cannot use the database file: {error}; check the path and its rights"
        ) from error
    except apsw.Error as error:
        raise StoreError(f"{type(error).__name__}: {error}") from error
    except OSError as error:
        raise StoreUnavailable(
            f"cannot use the files of the database: {error}; check disk and rights"
        ) from error


def refuse_network_filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> None:
    """WAL and flock cannot be trusted on a network file system."""
    if not path.parent.is_dir():
        raise StoreUnavailable(f"the directory {path.parent} does not exist; create it first")
    if not mounts.exists():
        return
    target, best = str(path.parent.resolve()), ("", "")
    for line in mounts.read_text().splitlines():
        _, mount, kind, *_ = line.split(" ")
        mount = mount.encode().decode("unicode_escape")
        inside = target == mount or target.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, kind)
    if best[1] in NETWORK_FILESYSTEMS:
        raise SettingInvalid(
            f"{path} is on a network file system ({best[1]}), where SQLite can lose data; "
            "use a local disk, or PostgreSQL for a fleet",
            code="filesystem_unsafe",
        )
