"""What tests run in cells. Light on imports, so that a nursery that loads it is warm at once."""

from __future__ import annotations

import ctypes
import enum
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.errors import DependencyDown, Permanent, RateLimited, Transient

Ask = Callable[[bytes], bytes]
MIB = 1 << 20


class Empty(enum.StrEnum):
    PAGES = "no_pages"


class Torn(Permanent):
    """A user's own error whose parameters are not those of its base."""

    def __init__(self, page: int) -> None:
        super().__init__("torn", f"page {page} is torn")
        self.page = page
        self.reader = lambda: None  # does not pickle


class Picky(Exception):
    """Pickles, but cannot be built again from what it pickles to."""

    def __init__(self, *, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


def raise_local(payload: bytes, ask: Ask) -> bytes:
    class Local(Permanent):
        pass

    raise Local("local_code", "from within")


def cancelled() -> BaseException:
    import asyncio

    return asyncio.CancelledError("user code")


RAISES: dict[str, Callable[[], BaseException]] = {
    "value": lambda: ValueError("wrong", 7),
    "os": lambda: FileNotFoundError(2, "No such file", "/nowhere"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "group": lambda: ExceptionGroup("two", [ValueError("a"), KeyError("b")]),
    "permanent": lambda: Permanent("empty_document", "nothing in it"),
    "enum": lambda: Permanent(Empty.PAGES),
    "transient": lambda: Transient("later", retry_after_s=12.5, code="http_503"),
    "rate": lambda: RateLimited("slow down", delay_s=33),
    "dependency": lambda: DependencyDown("openai"),
    "torn": lambda: Torn(7),
    "picky": lambda: Picky(status_code=503),
    "exit": lambda: SystemExit(3),
    "interrupt": lambda: KeyboardInterrupt(),
    "cancelled": cancelled,
    "stop": lambda: StopIteration(1),
    "memory": lambda: MemoryError(),
}


def raising(payload: bytes, ask: Ask) -> bytes:
    raise RAISES[payload.decode()]()


def echo(payload: bytes, ask: Ask) -> bytes:
    return payload


def asking(payload: bytes, ask: Ask) -> bytes:
    return b",".join(ask(str(n).encode()) for n in range(int(payload)))


def catching(payload: bytes, ask: Ask) -> bytes:
    try:
        return ask(payload)
    except Exception as error:
        return f"{type(error).__name__}|{error}|{getattr(error, 'code', '')}".encode()


class Tools:
    @staticmethod
    def shout(payload: bytes, ask: Ask) -> bytes:
        return payload.upper()


def wrong_type(payload: bytes, ask: Ask) -> Any:
    return {"not": "bytes"}


def segfault(payload: bytes, ask: Ask) -> bytes:
    ctypes.string_at(0)
    return b""


def killing(payload: bytes, ask: Ask) -> bytes:
    os.kill(os.getpid(), int(payload))
    time.sleep(0.2)
    return b"survived"


def exiting(payload: bytes, ask: Ask) -> bytes:
    os._exit(int(payload))


def hog(payload: bytes, ask: Ask) -> bytes:
    held = []
    while True:
        held.append(b"x" * (4 * MIB))
        time.sleep(0.005)


def hog_in_child(payload: bytes, ask: Ask) -> bytes:
    code = "import time\nx = [b'x' * 4194304 for _ in range(100)]\ntime.sleep(1000)"
    subprocess.run([sys.executable, "-c", code], check=True)
    return b""


def wide(payload: bytes, ask: Ask) -> bytes:
    return bytes(int(payload))


def fork_many(payload: bytes, ask: Ask) -> bytes:
    """Forks processes that share the memory of the cell, and waits until they were looked at a few times."""
    shared = os.urandom(40 << 20)
    forked = []
    for _ in range(int(payload)):
        if (pid := os.fork()) == 0:
            time.sleep(1000)
        forked.append(pid)
    time.sleep(2)
    for pid in forked:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return str(len(shared)).encode()


def fork_storm(payload: bytes, ask: Ask) -> bytes:
    while True:
        if os.fork() == 0:
            time.sleep(1000)
        time.sleep(0.002)


def spin(payload: bytes, ask: Ask) -> bytes:
    if payload == b"deaf":
        signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while True:
        pass


def large_file(payload: bytes, ask: Ask) -> bytes:
    Path(payload.decode()).write_bytes(bytes(2 * MIB))
    return b""


def sleeping(payload: bytes, ask: Ask) -> bytes:
    time.sleep(float(payload))
    return b"awake"


def ticking(payload: bytes, ask: Ask) -> bytes:
    for _ in range(20):
        ask(b"tick")
        time.sleep(0.1)
    return b"done"


def leaving(payload: bytes, ask: Ask) -> bytes:
    """Leaves two processes behind, one of them in a session of its own, then ends as told."""
    pids = [subprocess.Popen(["sleep", "1000"], start_new_session=apart).pid for apart in (False, True)]
    ask(json.dumps(pids).encode())
    if payload == b"crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if payload == b"hang":
        time.sleep(1000)
    return json.dumps(pids).encode()


def daemonizing(payload: bytes, ask: Ask) -> bytes:
    """Leaves a process behind that has neither its group nor its parent, then crashes."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        pid = subprocess.Popen(["sleep", "1000"], start_new_session=True).pid
        os.write(writing, str(pid).encode())
        os._exit(0)
    ask(os.read(reading, 20))
    os.kill(os.getpid(), signal.SIGSEGV)
    return b""


def forking(payload: bytes, ask: Ask) -> bytes:
    """The child comes back from the call as well; only the cell may answer."""
    if os.fork() == 0:
        return b"child"
    time.sleep(0.2)
    return b"cell"


def closing(payload: bytes, ask: Ask) -> bytes:
    os.closerange(3, 256)
    time.sleep(1000)
    return b""


def unblocks(payload: bytes, ask: Ask) -> bytes:
    """Change the flags of what it writes to, and say what it is."""
    for fd in (1, 2):
        os.set_blocking(fd, False)
    return os.readlink("/proc/self/fd/2").encode()


def surroundings(payload: bytes, ask: Ask) -> bytes:
    return json.dumps(
        {
            "stdin": os.readlink("/proc/self/fd/0"),
            "leader": os.getsid(0) == os.getpid(),
            "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
            "blas": os.environ["OPENBLAS_NUM_THREADS"],
            "behind": os.nice(0),
            "sockets": sum(
                os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
                for fd in os.listdir("/proc/self/fd")
                if int(fd) > 2 and os.path.lexists(f"/proc/self/fd/{fd}")
            ),
        }
    ).encode()
