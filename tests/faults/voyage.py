"""Documents that are under way while faults come: five stages that take the time their text says, and a child.

Each stage is of another kind, and what each leaves behind would show a loss as well as a duplicate: a row under a
natural key per stage and item, a row of a table without a key per stage, a child document.
"""

from __future__ import annotations

import asyncio
import time

from perdure import Context, Document, Pipeline, Result
from tests.faults.record import INSERT_EFFECT, Run

STAGES = ["fetch", "extract", "split", "embed", "index"]
LANDING = "land"
ITEMS = 3

voyage = Pipeline("voyage", backoff_s=0.1)
harbour = Pipeline("harbour", backoff_s=0.1)


def pace_s(doc: Document) -> float:
    """How long each of its stages takes."""
    return float(doc.text)


def child_of(name: str) -> str:
    """The name of the child of a document."""
    return f"child of {name}"


@voyage.stage
async def fetch(doc: Document, ctx: Context) -> Result[str]:
    run = Run(doc, "fetch")
    await asyncio.sleep(pace_s(doc))
    return run.finish(ctx, doc.text)


@voyage.stage
def extract(doc: Document, fetch: str, ctx: Context) -> Result[int]:
    run = Run(doc, "extract")
    time.sleep(pace_s(doc))
    return run.finish(ctx, len(fetch))


@voyage.stage(isolate=True, statements=[INSERT_EFFECT])
def split(doc: Document, extract: int, ctx: Context) -> Result[int]:
    run = Run(doc, "split")

    def one(number: int) -> int:
        run.note(f"item:{number}")
        time.sleep(pace_s(doc) / ITEMS)
        return number * extract

    total = 0
    for number, part in enumerate(ctx.items(range(ITEMS), run=one)):
        run.emit(ctx, f"split-{number}")
        total += part
    return run.finish(ctx, total)


@voyage.stage
async def embed(doc: Document, split: int, ctx: Context) -> Result[int]:
    run = Run(doc, "embed")

    async def one(number: int) -> int:
        run.note(f"item:{number}")
        await asyncio.sleep(pace_s(doc) / ITEMS)
        return number + split

    total, numbers = 0, iter(range(ITEMS))
    async for part in ctx.aitems(range(ITEMS), run=one):
        number = next(numbers)
        run.emit(ctx, f"embed-{number}")
        total += part
    return run.finish(ctx, total)


@voyage.stage
def index(doc: Document, embed: int, ctx: Context) -> Result[int]:
    run = Run(doc, "index")
    time.sleep(pace_s(doc))
    child = harbour.child("landing", text=doc.text, name=child_of(doc.name))
    return run.finish(ctx, embed, spawn=[child])


@harbour.stage
async def land(doc: Document, ctx: Context) -> Result[int]:
    run = Run(doc, LANDING)
    await asyncio.sleep(pace_s(doc))
    return run.finish(ctx, 1)


#: The same under a short lease, for workers that are frozen.
hasty = Pipeline("hasty", backoff_s=0.1, lease_s=3)
hasty.stage(fetch)
hasty.stage(extract)
hasty.stage(isolate=True, statements=[INSERT_EFFECT])(split)
hasty.stage(embed)
hasty.stage(index)

ALL = [voyage, harbour, hasty]
