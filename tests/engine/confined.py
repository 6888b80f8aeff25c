"""Stages that try to get out of a sandbox, and report how each try ended."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure import Context, Document, Pipeline, Transient
from perdure.settings import current

escapes = Pipeline("escapes", attempts=1)
plain = Pipeline("plain", attempts=1)
shelf = Pipeline("confined-shelf", attempts=1)


def tried(do: Callable[[], Any]) -> str:
    try:
        do()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def system_call(number: int, *arguments: Any) -> Callable[[], None]:
    """A call on x86_64."""

    def do() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(number, *arguments) < 0:
            raise OSError(ctypes.get_errno(), "refused")

    return do


def connect(family: int, address: Any) -> None:
    with socket.socket(family) as made:
        made.settimeout(5)
        made.connect(address)


@escapes.stage(isolate=True, sandbox=True)
def escape(doc: Document) -> dict[str, str]:
    given = doc.meta
    worker, outside, store = given["worker"], Path(given["outside"]), Path(given["store"])
    tries: dict[str, Callable[[], Any]] = {
        "read the store": store.read_bytes,
        "open the store for writing": lambda: os.open(store, os.O_RDWR),
        "remove the store": store.unlink,
        "lock others out of the store": lambda: store.chmod(0),
        "cut the store off": lambda: os.truncate(store, 0),
        "read a file of the worker": outside.read_bytes,
        "write outside": lambda: (outside.parent / "written").write_text("x"),
        "make a directory outside": (outside.parent / "made").mkdir,
        "link from outside": lambda: os.link(outside, Path(tempfile.gettempdir()) / "linked"),
        "list outside": lambda: os.listdir(outside.parent),
        "connect to loopback": lambda: connect(socket.AF_INET, ("127.0.0.1", given["port"])),
        "connect by IPv6": lambda: connect(socket.AF_INET6, ("::1", given["port"])),
        "connect to a local socket": lambda: connect(socket.AF_UNIX, given["unix"]),
        "send to a local socket": lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b"x", given["unix"]),
        "read the environment of the worker": Path(f"/proc/{worker}/environ").read_bytes,
        "read the memory of the worker": lambda: os.open(f"/proc/{worker}/mem", os.O_RDONLY),
        "read the environment of the parent": Path(f"/proc/{os.getppid()}/environ").read_bytes,
        "signal the worker": lambda: os.kill(worker, 0),
        "signal the parent": lambda: os.kill(os.getppid(), signal.SIGTERM),
        "limit the worker": lambda: resource.prlimit(worker, resource.RLIMIT_CORE, (0, 0)),
        "slow the worker down": lambda: os.setpriority(os.PRIO_PROCESS, worker, 19),
        "trace the worker": system_call(101, 16, worker, 0, 0),
        "read memory by a call": system_call(310, worker, None, 0, None, 0, 0),
        "take a descriptor": system_call(438, 3, 3, 0),
        "a ring of requests": system_call(425, 1, ctypes.create_string_buffer(120)),
        "a namespace": system_call(272, 0x10000000),
        "a clone in a namespace": system_call(56, 0x10000000 | signal.SIGCHLD, None, None, None, None),
        "change attributes of a file": system_call(469, -100, bytes(store), ctypes.create_string_buffer(64), 24, 0),
        "leave the session": lambda: subprocess.run(["/bin/true"], start_new_session=True, check=True),
        "leave the group": lambda: subprocess.run(["/bin/true"], process_group=0, check=True),
        "shared memory": system_call(29, 0, 4096, 0o1600),
    }  # fmt: skip
    return {name: tried(do) for name, do in tries.items()}


@escapes.stage(isolate=True, sandbox=True)
def at_home(doc: Document) -> list[Any]:
    """What a reader needs still works."""
    scratch = Path(tempfile.mkdtemp())
    (scratch / "a").write_text("scratch")
    (scratch / "a").rename(scratch.parent / "b")
    said = subprocess.run(["/bin/sh", "-c", "cat b"], capture_output=True, cwd=scratch.parent, check=True)
    import xml.dom.minidom  # from the library, late

    async def soon() -> str:
        return await asyncio.to_thread(lambda: doc.path.read_bytes().decode()[:5])

    parsed = xml.dom.minidom.parseString("<a/>").documentElement
    return [
        said.stdout.decode(),
        asyncio.run(soon()),
        parsed.tagName if parsed is not None else "",
        len(doc.data),
    ]


def surroundings(doc: Document) -> dict[str, Any]:
    settings = current()
    names = json.loads(doc.text)
    seen = {name: os.environ.get(name) for name in names}
    own = {name: getattr(settings, name) for name in ("store", "blobs", "embed_key", "vision_url", "contact")}
    return {**seen, **own}


@plain.stage(isolate=True)
def bare(doc: Document) -> dict[str, Any]:
    return surroundings(doc)


@plain.stage(isolate=True, sandbox=True)
def boxed(doc: Document) -> dict[str, Any]:
    return surroundings(doc)


@shelf.stage(isolate=True, sandbox=True, reuse=10)
def both(doc: Document) -> tuple[int, str, list[str]]:
    """The file of this document, and all that is there beside it."""
    start, den = doc.path.read_bytes()[:5].decode(), Path(tempfile.gettempdir()).parent
    seen = sorted(path.name for path in den.rglob("*"))
    (Path(tempfile.gettempdir()) / start).write_text("left behind")
    return os.getpid(), start, seen


pages = Pipeline("confined-pages", attempts=2, backoff_s=0.0)
drawings = Pipeline("confined-drawings", attempts=1)


@pages.stage(isolate=True, sandbox=True)
def number(doc: Document, ctx: Context) -> list[list[int]]:
    """Each page with the attempt that read it; the first attempt breaks off at the third page."""

    def read(page: int) -> list[int]:
        if page == 2 and ctx.attempt == 1:
            raise Transient("the page stuck")
        return [page, ctx.attempt]

    return list(ctx.items(range(5), key=str, run=read))


@drawings.stage(isolate=True, sandbox=True, timeout=2)
def look(doc: Document) -> str:
    if doc.text == "endless":
        time.sleep(600)
    raise Transient("there is nothing to be seen yet")


@look.fallback
def instead(doc: Document) -> str:
    return f"not seen: {doc.text}"
