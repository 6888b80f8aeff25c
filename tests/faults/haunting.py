"""Pipelines for workers that are frozen: under a short lease, at gates in their stages or inside a transaction."""

from __future__ import annotations

from perdure import Context, Document, Pipeline, Result
from tests.faults.record import INSERT_EFFECT, Run

LEASE_S = 2
ITEMS = 3
#: Where a worker may be frozen: in the event loop, in the cell of a stage with items, in the thread of the last stage.
PLACES = ["drift:half", "moan:item-1", "vanish:half"]

haunt = Pipeline("haunt", lease_s=LEASE_S, backoff_s=0.1)
entrance = Pipeline("entrance", lease_s=LEASE_S, backoff_s=0.1)


@haunt.stage
async def drift(doc: Document, ctx: Context) -> Result[int]:
    run = Run(doc, "drift")
    await run.at_async("drift:half")
    return run.finish(ctx, 1)


@haunt.stage(isolate=True, statements=[INSERT_EFFECT])
def moan(doc: Document, drift: int, ctx: Context) -> Result[int]:
    run = Run(doc, "moan")

    def one(number: int) -> int:
        run.at(f"moan:item-{number}")
        return number + drift

    for number, _ in enumerate(ctx.items(range(ITEMS), run=one)):
        run.emit(ctx, f"moan-{number}")
    return run.finish(ctx, drift)


@haunt.stage
def vanish(doc: Document, moan: int, ctx: Context) -> Result[int]:
    run = Run(doc, "vanish")
    run.at("vanish:half")
    return run.finish(ctx, moan)


@entrance.stage
async def linger(doc: Document, ctx: Context) -> Result[int]:
    """Its own statement, the document's text, keeps the transaction that saves it open for a while."""
    run = Run(doc, "linger")
    await run.at_async("begin")
    return run.finish(ctx, 1, sql=[doc.text] if run.shut("commit") else [])


ALL = [haunt, entrance]
