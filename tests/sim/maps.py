"""Maps: documents that use what a pipeline can have, all of it in one: a cell, items, children, a follow-up, a remote
stage under a limit, a fallback with its repair, gathering, a hook.

Two releases of the pipeline run side by side, `maps_first` and `maps_second`. Here is what their stages do.
"""

from __future__ import annotations

import asyncio

from perdure.core.gathered import Gathered
from perdure.core.model import repairs
from perdure.engine.context import Context
from perdure.engine.document import Document
from perdure.engine.pipeline import Pipeline
from perdure.engine.result import Result, Spawn
from tests.sim.documents import ATTEMPTS, EFFECT, job_of, ledger_now, limit_of, notes, run
from tests.sim.ledger import FORMER
from tests.sim.world import LEASE_S

#: The stages whose output a repair makes again: the one that fell back, and the one that reads it.
REPAIRED = ("colour", "tint", "bind")

labels = Pipeline("labels", attempts=ATTEMPTS, lease_s=LEASE_S)


def new_maps() -> Pipeline:
    """A release, without its stages."""
    return Pipeline(
        "maps",
        attempts=ATTEMPTS,
        lease_s=LEASE_S,
        concurrency_key=limit_of,
        concurrency_until="engrave",
        then=[labels],
    )


@labels.stage
async def label(doc: Document, ctx: Context) -> Result[int]:
    return await result(doc, ctx, "label")


async def surveyed(doc: Document, ctx: Context, stage: str) -> Result[int]:
    """Items in a cell, then a child and a follow-up that `bind` waits for."""
    number = await run(ctx, stage)
    await _items(ctx, stage, number)
    spawn: list[Spawn] = [labels.job(doc)]
    if doc.meta.get("child"):
        text = f"child of generation {ctx.generation}"
        spawn.append(notes.child("inset", text=text, name="plain", refresh=True))
    return Result(number, spawn=spawn, sql=effect(doc, ctx, stage))


async def coloured(doc: Document, ctx: Context, stage: str) -> Result[int]:
    """Items first, so that a repair finds those of the stage that fell back."""
    await _items(ctx, stage, 7)
    return await result(doc, ctx, stage)


async def bound(doc: Document, ctx: Context, gathered: Gathered) -> Result[int]:
    """Everything that it spawned must have ended."""
    ledger_now.get().gathered(job_of(ctx), gathered)
    return await result(doc, ctx, "bind")


async def result(doc: Document, ctx: Context, stage: str) -> Result[int]:
    return Result(await run(ctx, stage, FORMER.get(stage)), sql=effect(doc, ctx, stage))


def effect(doc: Document, ctx: Context, stage: str) -> list[tuple[str, tuple[object, ...]]]:
    """What a stage does to the world; a repair does it once more, under a name of its own."""
    name = f"{stage} repaired" if repairs(job_of(ctx).key) else stage
    return [(EFFECT, (doc.id, name, ctx.generation))]


async def _items(ctx: Context, stage: str, number: int) -> None:
    async def each(item: str) -> int:
        ledger_now.get().item_ran(job_of(ctx), stage, item)
        await asyncio.sleep(0.05)
        return number

    async for _ in ctx.aitems([f"{FORMER.get(stage, stage)[0]}{n}" for n in range(2)], key=str, run=each):
        pass
