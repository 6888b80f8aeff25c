"""The pipelines that the fault tests run in real workers, and their apps: `perdure worker tests.faults.stages:five`.

What a document does is told by its text; where it waits, by gates (see `record`).
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time

from perdure import Context, Document, Perdure, Pipeline, Result
from tests.faults import forking, haunting, voyage
from tests.faults.record import INSERT_EFFECT, Run

STORE_VARIABLE = "FAULTS_STORE"
ITEMS = 4
#: Backtracking for hours, and the interpreter is not released meanwhile.
HOPELESS = re.compile(r"(a+)+$")


def hold_interpreter() -> None:
    """Run C code that lets nobody else run."""
    HOPELESS.match("a" * 64 + "b")


# --- five stages: async, plain, isolated with items, async with items, plain -----------------------

steps = Pipeline("steps", backoff_s=0.1)


@steps.stage
async def fetch(doc: Document, ctx: Context) -> Result[str]:
    run = Run(doc, "fetch")
    await run.at_async("fetch:begin")
    await run.at_async("fetch:half")
    return run.finish(ctx, doc.text)


@steps.stage
def extract(doc: Document, fetch: str, ctx: Context) -> Result[str]:
    run = Run(doc, "extract")
    run.at("extract:begin")
    run.at("extract:half")
    return run.finish(ctx, fetch.upper())


@steps.stage(isolate=True, statements=[INSERT_EFFECT])
def split(doc: Document, extract: str, ctx: Context) -> Result[list[int]]:
    run = Run(doc, "split")
    run.at("split:begin")

    def one(number: int) -> int:
        run.at(f"split:item-{number}")
        return number * len(extract)

    parts = []
    for number, part in enumerate(ctx.items(range(ITEMS), run=one)):
        run.emit(ctx, f"split-{number}")
        run.at(f"split:body-{number}")
        parts.append(part)
    run.at("split:end")
    return run.finish(ctx, parts)


@steps.stage
async def embed(doc: Document, split: list[int], ctx: Context) -> Result[int]:
    run = Run(doc, "embed")
    await run.at_async("embed:begin")

    async def one(number: int) -> int:
        await run.at_async(f"embed:item-{number}")
        return split[number] + 1

    total, numbers = 0, iter(range(ITEMS))
    async for vector in ctx.aitems(range(ITEMS), run=one):
        number = next(numbers)
        run.emit(ctx, f"embed-{number}")
        await run.at_async(f"embed:body-{number}")
        total += vector
    await run.at_async("embed:end")
    return run.finish(ctx, total)


@steps.stage
def index(doc: Document, embed: int, ctx: Context) -> Result[int]:
    run = Run(doc, "index")
    run.at("index:begin")
    run.at("index:half")
    return run.finish(ctx, embed)


# --- one stage ---------------------------------------------------------------------------------------

second = Pipeline("second")


@second.stage
def work(doc: Document, ctx: Context) -> Result[int]:
    run = Run(doc, "work")
    run.at("begin")
    time.sleep(float(doc.text))
    return run.finish(ctx, 1)


# --- documents that kill their process ---------------------------------------------------------------

deadly = Pipeline("deadly", backoff_s=0.1, attempts=5)


@deadly.stage
def provoke(doc: Document, ctx: Context) -> Result[int]:
    run = Run(doc, "provoke")
    run.at("begin")
    if doc.text in signal.Signals.__members__:
        os.kill(os.getpid(), signal.Signals[doc.text])
        time.sleep(60)
    time.sleep(float(doc.text))
    return run.finish(ctx, 1)


greedy = Pipeline("greedy", backoff_s=0.1, attempts=5)


@greedy.stage(isolate=True, memory_mb=150, statements=[INSERT_EFFECT])
def hoard(doc: Document, ctx: Context) -> Result[int]:
    run = Run(doc, "hoard")
    hoarded = []
    for _ in range(int(doc.text)):
        hoarded.append(bytearray(os.urandom(1 << 20)))
        time.sleep(0.002)
    time.sleep(0.3)
    return run.finish(ctx, len(hoarded))


# --- stages that take too long -----------------------------------------------------------------------

slow = Pipeline("slow", backoff_s=0.1, attempts=2)


@slow.stage(timeout=1.0)
def think(doc: Document, ctx: Context) -> Result[int]:
    """Holds the interpreter, hangs in its thread, or takes the seconds that the text says."""
    run = Run(doc, "think")
    run.at("begin")
    match doc.text:
        case "holds":
            run.note("holding")
            hold_interpreter()
        case "hangs":
            time.sleep(600)
        case seconds:
            time.sleep(float(seconds))
    return run.finish(ctx, 1)


drowsy = Pipeline("drowsy", backoff_s=0.1, attempts=2)


@drowsy.stage(timeout=1.0)
async def doze(doc: Document, ctx: Context) -> Result[int]:
    """The same in the event loop; a stubborn one does not even let itself be cancelled."""
    run = Run(doc, "doze")
    await run.at_async("begin")
    match doc.text:
        case "hangs":
            await asyncio.Event().wait()
        case "stubborn":
            while True:
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    run.note("not cancelled")
        case seconds:
            await asyncio.sleep(float(seconds))
    return run.finish(ctx, 1)


stalling = Pipeline("stalling", backoff_s=0.1, attempts=2)


@stalling.stage(stall=1.0)
async def crawl(doc: Document, ctx: Context) -> Result[int]:
    """Longer than its no-progress limit, with progress; then, if the text says so, without."""
    run = Run(doc, "crawl")
    for done in range(8):
        await asyncio.sleep(0.25)
        ctx.progress(done, 8)
    if doc.text == "stalls":
        await asyncio.sleep(600)
    return run.finish(ctx, 1)


pausing = Pipeline("pausing", backoff_s=0.1, attempts=1)


@pausing.stage
async def block(doc: Document, ctx: Context) -> Result[int]:
    """Keeps everything else from running, for as long as the text says or for ever."""
    run = Run(doc, "block")
    await run.at_async("begin")
    run.note("holding")
    if doc.text == "holds":
        hold_interpreter()
    time.sleep(float(doc.text))  # noqa: ASYNC251 - that is what it is for
    return run.finish(ctx, 1)


# --- short leases ------------------------------------------------------------------------------------

brief = Pipeline("brief", lease_s=2)


@brief.stage
async def lone(doc: Document, ctx: Context) -> Result[int]:
    run = Run(doc, "lone")
    await run.at_async("begin")
    return run.finish(ctx, 1)


@brief.stage
def several(doc: Document, lone: int, ctx: Context) -> Result[int]:
    run = Run(doc, "several")

    def one(number: int) -> int:
        run.at(f"item-{number}")
        return number

    for number in ctx.items(range(ITEMS), run=one):
        run.emit(ctx, f"several-{number}")
    return run.finish(ctx, lone)


ALL = [
    steps,
    second,
    deadly,
    greedy,
    slow,
    drowsy,
    stalling,
    pausing,
    brief,
    *voyage.ALL,
    *haunting.ALL,
    *forking.ALL,
]


def _app(*pipelines: Pipeline) -> Perdure:
    return Perdure(os.environ.get(STORE_VARIABLE, "sqlite:///not-opened.db"), pipelines=pipelines)


five = _app(steps)
mixed = _app(steps, second)
seconds = _app(second)
crashing = _app(deadly, greedy)
late = _app(slow, drowsy, stalling, pausing)
leased = _app(brief)
travelling = _app(*voyage.ALL)
haunted = _app(second, *haunting.ALL)
forks = _app(*forking.ALL)
