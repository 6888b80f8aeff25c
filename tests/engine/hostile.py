"""A stage that is taken over by its document, as by a file that breaks a reader: it speaks to the worker itself."""

from __future__ import annotations

import os
import pickle
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from perdure import Document, Pipeline
from perdure.engine import cell_messages, wire
from perdure.engine.crossing import ANSWER, ASK, DONE, HEAD, RAISED, READY, receive, send
from perdure.engine.result import Produced

files = Pipeline("files", attempts=2, backoff_s=0)
held = Pipeline("held", attempts=2, backoff_s=0)


class Run:
    """Pickles to a command."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.system, (f"touch {self.marker}",)


def connection() -> int:
    """The descriptor on which this cell speaks to its worker."""
    for fd in range(3, 256):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                return fd
    raise AssertionError("no socket")


def error(named: str, **fields: Any) -> bytes:
    return wire.encode([named, named, "forged", "forged", None, "", fields])


def spawning(*spawned: list[Any]) -> bytes:
    return wire.encode([b"1", [], list(spawned), [], None, None, False, []])


DOWN = {"name": "openai", "confirmed": True, "heard": False, "unnamed": False}
FINE = cell_messages.answer(Produced(b'"forged"'), [])
SQL = cell_messages.answer(Produced(b'"forged"', sql=(("DELETE FROM document", ()),)), [])
OUTPUT = wire.decode(FINE)

#: What is sent, and what becomes of the document.
ATTACKS: dict[str, tuple[int, bytes, str]] = {
    "nesting": (DONE, b"l\0\0\0\1" * 1_000_000 + b"n", "crashed:malformed"),
    "count": (DONE, b"l\xff\xff\xff\xff", "crashed:malformed"),
    "nothing": (DONE, b"", "crashed:malformed"),
    "wrong types": (DONE, wire.encode([1, 2, 3, 4, 5, 6, 7]), "crashed:malformed"),
    "no JSON": (DONE, wire.encode([b"{", *OUTPUT[1:]]), "crashed:malformed"),
    "module": (DONE, spawning(["job", "os", "os", b"{}", "os"]), "crashed:malformed"),
    "verb": (ASK, cell_messages.ask("run", "os.system"), "crashed:malformed"),
    "item": (ASK, cell_messages.ask("item", ["a"], b"1", []), "crashed:malformed"),
    "report": (ASK, cell_messages.ask("calls", {}, None, {"calls": [["openai"] * 8]}), "crashed:malformed"),
    "counts": (
        ASK, cell_messages.ask("calls", {}, None, {"calls": [["openai", 1, 0, 1 << 60, 0, 0.0, 0, []]]}),
        "crashed:malformed",
    ),
    "kind": (READY, b"1", "crashed:malformed"),
    "other kind": (ANSWER, b"", "crashed:malformed"),
    "error": (RAISED, b"no error", "crashed:malformed"),
    "fields": (RAISED, error("Transient", retry_after_s="os"), "crashed:malformed"),
    "name": (RAISED, error("DependencyDown", **DOWN | {"name": "\ud800"}), "unexpected"),
    "no name": (RAISED, error("DependencyDown", **DOWN | {"name": "a\0b"}), "unexpected"),
    "system": (RAISED, error("os.system"), "unexpected"),
    "exit": (RAISED, error("SystemExit"), "unexpected"),
    "excused": (RAISED, error("NurseryLost"), "unexpected"),
    "lease": (RAISED, error("LeaseLost"), "unexpected"),
    "unreadable": (RAISED, error("SavedUnreadable", stage="read"), "unexpected"),
    "statement": (DONE, SQL, "statement_undeclared"),
    "pipeline": (DONE, spawning(["job", "os", "os", b"{}"]), "pipeline_unknown"),
}  # fmt: skip


def attack(doc: Document) -> str:
    """Do as the document says; what is sent is this process's last word."""
    name, _, marker = doc.text.partition(" on ")
    if name == "fine":
        return "fine"
    if name == "much":
        return "[," * 1_000
    fd = connection()
    if name.startswith("pickle"):
        kind = {"answer": DONE, "ask": ASK, "error": RAISED}[name.split()[1]]
        send(fd, kind, pickle.dumps(Run(marker)))
    elif name == "size":
        os.write(fd, HEAD.pack(DONE, 1 << 40))
    elif name == "down":
        send(fd, RAISED, error("DependencyDown", **DOWN))
    elif name == "failures":
        report = {"calls": [["openai", 500, 0, 500, 0, 0.0, 0, []]]}
        send(fd, ASK, cell_messages.ask("calls", {"openai": 1}, False, report))
        assert receive(fd)[0] == ANSWER
        return "reported"
    elif name == "services":
        for number in range(5):
            send(fd, ASK, cell_messages.ask("calls", {f"{number}-{n}": 1 for n in range(500)}, None, {}))
            receive(fd)
    elif name == "talk":
        for _ in range(150):
            send(fd, ASK, cell_messages.ask("progress"))
            assert receive(fd)[0] == ANSWER
        return "talked"
    else:
        kind, body, _ = ATTACKS[name]
        send(fd, kind, body)
    time.sleep(600)
    return "never"


@files.stage(isolate=True)
def read(doc: Document) -> str:
    return attack(doc)


@held.stage(isolate=True, sandbox=True, reuse=5)
def confined(doc: Document) -> str:
    """The same without rights, where one process serves several documents."""
    if doc.text.startswith("tree"):
        found = os.listdir(tempfile.gettempdir())
        deep(Path(tempfile.gettempdir()), 1_200)  # more than Python recurses
        return f"{os.getpid()} {found}"
    return attack(doc)


def deep(within: Path, levels: int) -> None:
    """Directories in directories."""
    fd = os.open(within, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
