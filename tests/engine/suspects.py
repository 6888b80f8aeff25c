"""Pipelines whose stages run in processes of their own; apart from the tests, so that a fresh process imports little.

What happened is written to files in the directory that the document names: processes share nothing else.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from perdure import Context, Document, Pipeline


def note(doc: Document, what: str) -> None:
    with (Path(doc.meta["notes"]) / what).open("a") as file:
        file.write(f"{os.getpid()}\n")


def pids(directory: Path, what: str) -> list[int]:
    """The processes that noted this, in order."""
    file = directory / what
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


letters = Pipeline("letters", attempts=5)


@letters.stage
def read(doc: Document) -> str:
    note(doc, "read")
    if doc.text == "crash":
        crash()
    return doc.text


@letters.stage
async def file(doc: Document, read: str) -> str:
    note(doc, "file")
    return read.upper()


pages = Pipeline("pages")


def scan(page: int) -> int:
    return page * 10


@pages.stage(isolate=True)
def extract(doc: Document, ctx: Context) -> list[int]:
    found = []
    for page in ctx.items([1, 2, 3], run=scan):
        if not ctx.restored:
            note(doc, f"page-{page}")
        found.append(page)
        if page == 20 and ctx.attempt == 1:
            crash()
    return found


@pages.stage(isolate=True)
def total(doc: Document, extract: list[int]) -> int:
    note(doc, "total")
    return sum(extract)


once = Pipeline("once", attempts=1)


@once.stage(isolate=True)
def fall(doc: Document) -> None:
    note(doc, "fall")
    crash()


@once.stage(attempts=5)
def patient(doc: Document) -> None: ...


sized = Pipeline("sized")


@sized.stage
def take(doc: Document) -> str:
    return doc.text


@sized.stage(isolate_from=100)
def weigh(doc: Document, take: str) -> int:
    note(doc, "weigh")
    return len(take)
