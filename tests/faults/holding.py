"""Pipelines whose stages hold their worker: the interpreter from a thread, or the event loop; `perdure worker
tests.faults.holding:app`. The text of a document says what it does."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

from perdure import Context, Document, Perdure, Pipeline, Result
from tests.faults.record import INSERT_EFFECT, Run, directory

STORE_VARIABLE = "FAULTS_STORE"
#: Backtracking for hours, and the interpreter is not released meanwhile.
HOPELESS = re.compile(r"(a+)+$")
TIMEOUT_S = 3.0
ITEMS = 4

if seconds := os.environ.get("FAULTS_SLOW_IMPORT"):
    time.sleep(float(seconds))


def hold_interpreter() -> None:
    """Run C code that lets nobody else run."""
    HOPELESS.match("a" * 64 + "b")


def first(run: Run) -> bool:
    """Whether this document comes by for the first time."""
    path = directory() / f"came by {run.document}"
    known = path.exists()
    path.touch()
    return not known


def act(run: Run, text: str) -> None:
    """`holds`: the interpreter; `once`: the same, the first time only; else sleep that many seconds."""
    run.note("holding")
    if text == "holds" or (text == "once" and first(run)):
        hold_interpreter()
    if text not in ("holds", "once"):
        time.sleep(float(text))


threaded = Pipeline("threaded", backoff_s=0.1, attempts=5)


@threaded.stage(timeout=TIMEOUT_S)
def grind(doc: Document, ctx: Context) -> Result[int]:
    run = Run(doc, "grind")
    run.at("begin")
    act(run, doc.text)
    return run.finish(ctx, 1)


looped = Pipeline("looped", backoff_s=0.1, attempts=5)


@looped.stage(timeout=TIMEOUT_S)
async def block(doc: Document, ctx: Context) -> Result[int]:
    run = Run(doc, "block")
    await run.at_async("begin")
    act(run, doc.text)
    return run.finish(ctx, 1)


waiting = Pipeline("waiting", backoff_s=0.1, attempts=5)


@waiting.stage
async def wait(doc: Document, ctx: Context) -> Result[int]:
    run = Run(doc, "wait")
    await run.at_async("begin")
    act(run, doc.text)
    return run.finish(ctx, 1)


celled = Pipeline("celled", backoff_s=0.1, attempts=5)


@celled.stage(isolate=True, statements=[INSERT_EFFECT])
def apart(doc: Document, ctx: Context) -> Result[int]:
    run = Run(doc, "apart")
    run.at("begin")
    return run.finish(ctx, 1)


untimed = Pipeline("untimed", backoff_s=0.1, attempts=5)


@untimed.stage
def endless(doc: Document, ctx: Context) -> Result[int]:
    run = Run(doc, "endless")
    run.at("begin")
    act(run, doc.text)
    return run.finish(ctx, 1)


itemised = Pipeline("itemised", backoff_s=0.1, attempts=5)


@itemised.stage(timeout=30)
def several(doc: Document, ctx: Context) -> Result[int]:
    run = Run(doc, "several")

    def one(number: int) -> int:
        run.note(f"item-{number}")
        if number == 2:
            act(run, doc.text)
        return number

    total = sum(ctx.items(range(ITEMS), run=one))
    return run.finish(ctx, total)


def made_elsewhere() -> Pipeline:
    """A pipeline that no other process can find: it is not at the top of its module."""
    hidden = Pipeline("hidden", backoff_s=0.1, attempts=5)

    @hidden.stage
    def unseen(doc: Document, ctx: Context) -> Result[int]:
        run = Run(doc, "unseen")
        run.at("begin")
        act(run, doc.text)
        return run.finish(ctx, 1)

    return hidden


ALL = [threaded, looped, waiting, celled, untimed, itemised]
hidden = [made_elsewhere()] if Path(sys.argv[0]).name == "child.py" else []  # not in a nursery
app = Perdure(os.environ.get(STORE_VARIABLE, "sqlite:///not-opened.db"), pipelines=[*ALL, *hidden])
