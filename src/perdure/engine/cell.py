"""What runs in a cell: a process becomes one, takes its limits, makes calls of user code and answers."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import resource
import signal
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from perdure.engine.address import load_module
from perdure.engine.behind import BEHIND
from perdure.engine.crossing import (
    ASK,
    BODY_MAX,
    DONE,
    OUT_OF_MEMORY,
    RAISED,
    READY,
    SCRIPT,
    decode_error,
    encode_error,
    receive,
    send,
)

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4

#: Of a cell that is to be in a sandbox: the directory that the worker keeps for it, "" for any other.
den = ""
DOCUMENT, TEMPORARY = (
    "document",
    "tmp",
)  # in a den: the file that it is to read, and a place for temporary ones


def prctl(option: int, value: int) -> None:
    """Linux process control; elsewhere nothing happens."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)


def _own_description(fd: int) -> None:
    """Open a pipe or terminal again: flags such as O_NONBLOCK belong to the description that the worker writes to, too.
    They mean nothing for files, and sockets cannot be opened again."""
    with suppress(OSError):
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
            again = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
            os.dup2(again, fd)
            os.close(again)


def settle(nursery: int) -> None:
    """Make this process a cell: a session of its own, no handlers of its parent, dead when the nursery is dead."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != nursery:
        os._exit(1)
    prctl(PR_SET_DUMPABLE, 1)  # the worker looks at its memory
    for fd in (1, 2):
        _own_description(fd)
    signal.set_wakeup_fd(-1)
    python_ignores = {signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - python_ignores:
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    itself = os.getpid()

    def stay(number: int, _frame: FrameType | None) -> None:
        # An init that stops a service signals every process of it; the worker decides what becomes of its cells.
        # Processes that user code forks off get what they would get without us.
        if os.getpid() != itself:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stay)
    if "numpy.random" in sys.modules:
        sys.modules[
            "numpy.random"
        ].seed()  # else every cell draws the same numbers; `random` sees to it itself
    with suppress(OSError):
        os.nice(BEHIND)  # a loop that serves all organisations goes before the file of one
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("500")  # when the machine runs out of memory, a cell goes before the worker


def confine(memory_bytes: int, cpu_s: int, file_bytes: int) -> None:
    """Set the limits that the kernel keeps; -1 is none. Address space is a wide backstop, the parent watches memory."""
    held = 0
    with suppress(OSError), open("/proc/self/statm") as statm:
        held = int(statm.read().split()[0]) * resource.getpagesize()
    _limit(resource.RLIMIT_CORE, 0, 0)
    if memory_bytes >= 0:
        _limit(resource.RLIMIT_AS, held + 4 * memory_bytes + (2 << 30))
    if file_bytes >= 0:
        _limit(resource.RLIMIT_FSIZE, file_bytes)
    if cpu_s >= 0:
        _limit(resource.RLIMIT_CPU, cpu_s, cpu_s + 5)


def _limit(which: int, soft: int, hard: int = resource.RLIM_INFINITY) -> None:
    allowed = resource.getrlimit(which)[1]
    if allowed != resource.RLIM_INFINITY:
        soft, hard = min(soft, allowed), allowed if hard == resource.RLIM_INFINITY else min(hard, allowed)
    resource.setrlimit(which, (soft, hard))


def preload(names: Sequence[str]) -> None:
    """Import these modules; a name that ends in .py is a script, which then is `__main__` here as it is there."""
    for name in names:
        try:
            if name.endswith(".py"):
                spec = importlib.util.spec_from_file_location(SCRIPT, name)
                assert spec is not None
                assert spec.loader is not None
                script = importlib.util.module_from_spec(spec)
                sys.modules["__main__"] = sys.modules[SCRIPT] = script
                spec.loader.exec_module(script)
            else:
                load_module(name)  # what it starts unguarded would start a nursery, which would import it
        except BaseException as error:
            raise ImportError(f"cannot import {name}: {type(error).__name__}: {error}") from error


def live(fd: int) -> NoReturn:
    """Take a call from `fd`, run it, answer, and wait for another one or to be killed. Never returns."""
    global den  # noqa: PLW0603
    cell = os.getpid()
    turn = threading.Lock()

    def ask(message: bytes) -> bytes:
        if os.getpid() != cell:
            raise RuntimeError("a process forked by stage code cannot ask; do it in the stage itself")
        with turn:
            send(fd, ASK, message)
            try:
                kind, body = receive(fd)
            except EOFError:
                os._exit(1)
        if kind == RAISED:
            raise decode_error(body)
        return body

    try:
        send(fd, READY, str(cell).encode())
        den = os.fsdecode(receive(fd)[1])
        while os.getpid() == cell:  # else user code forked and its child came back to here
            try:
                kind, body = _run(fd, ask)
            except MemoryError as error:
                error.__traceback__ = None  # lets go of what filled the memory
                kind, body = OUT_OF_MEMORY, b""
            except BaseException as error:
                kind, body = RAISED, encode_error(error)
            if os.getpid() == cell:
                with suppress(Exception):
                    sys.stdout.flush()
                    sys.stderr.flush()
                send(fd, kind, body)
    finally:
        os._exit(0)


def _run(fd: int, ask: Callable[[bytes], bytes]) -> tuple[int, bytes]:
    try:
        _, target = receive(fd)
        _, payload = receive(fd)
    except (EOFError, OSError):
        os._exit(1)
    module, _, path = target.decode().partition(":")
    function: Any = importlib.import_module(module)
    for name in path.split("."):
        function = getattr(function, name)
    result = function(payload, ask)
    if not isinstance(result, bytes):
        raise TypeError(f"{target.decode()} returned {type(result).__name__}, not bytes")
    if len(result) > BODY_MAX:
        raise ValueError(f"{target.decode()} returned {len(result)} bytes, more than {BODY_MAX}")
    return DONE, result
