"""What is processed: documents with a character of their own, and the stages that play it out.

The ledger is told of every run by the stage code itself, so that the checks do not rest on the engine's own counters.
Outputs carry a number that differs from run to run: a stage that is saved twice shows.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from perdure.engine.context import Context
from perdure.engine.document import Document
from perdure.engine.pipeline import Pipeline
from perdure.engine.result import Result, Row
from perdure.errors import DependencyDown, Permanent, RetryLater, Transient

if TYPE_CHECKING:
    from tests.sim.world import Process, World

#: Who runs this code, and whether alone in a cell.
process_now: ContextVar[Process] = ContextVar("process_now")
in_cell: ContextVar[bool] = ContextVar("in_cell", default=False)

LEASE_S = 6.0
ATTEMPTS = 3
EFFECT = "INSERT INTO effect (document_id, stage, generation) VALUES ($1, $2, $3)"

books = Pipeline("books", attempts=ATTEMPTS, lease_s=LEASE_S)
after = Pipeline("after", attempts=ATTEMPTS, lease_s=LEASE_S)


async def _run(doc: Document, ctx: Context, stage: str) -> int:
    """Take some time, behave as the document's character says, and note the run."""
    process = process_now.get()
    world = process.world
    await process.present()
    number = world.ledger.began(doc.id, stage, ctx.generation, process)
    await process.pause(world.rng.choice((0.01, 0.1, 0.5, 2.0)))
    character, _, at = doc.name.partition("@")
    if at in ("", stage):
        await _act(character, doc, ctx, stage, process)
    return number


async def _act(character: str, doc: Document, ctx: Context, stage: str, process: Process) -> None:
    world: World = process.world
    runs = world.ledger.runs(doc.id, stage, ctx.generation)
    match character:
        case "flaky" if runs <= 2:
            world.ledger.failed(doc.id, ctx.generation)
            raise Transient("not yet")
        case "failing":
            world.ledger.failed(doc.id, ctx.generation)
            raise ValueError("never")
        case "broken":
            raise Permanent("broken")
        case "late" if runs <= 2:
            raise RetryLater(delay_s=3.0)
        case "needy" if world.dependency_down:
            raise DependencyDown("dep")
        case "poison":
            await process.crash(doc.id)


@books.stage
async def one(doc: Document, ctx: Context) -> int:
    return await _run(doc, ctx, "one")


@books.stage
async def two(doc: Document, one: int, ctx: Context) -> Result[list[int]]:
    process = process_now.get()
    number = await _run(doc, ctx, "two")
    done = []

    async def each(item: int) -> int:
        process.world.ledger.item_ran(doc.id, item, ctx.generation)
        await process.pause(0.3)
        return item * 10

    async for item, value in ctx.aitems(range(3), run=each):
        ctx.emit(Row("part", item=item, data=value))
        done.append(value)
    # two saves of one job at the same time: both must be kept
    await asyncio.gather(*(ctx._port.save_item(name, b"1", []) for name in ("left", "right")))
    return Result([number, *done], sql=[(EFFECT, (doc.id, "two", ctx.generation))])


@books.stage(needs=["dep"])
async def three(doc: Document, two: list[int], ctx: Context) -> Result[int]:
    number = await _run(doc, ctx, "three")
    spawn: list[Any] = [after.job(doc)]
    if doc.parent_id is None and doc.name == "parent":
        spawn.append(books.child("child", text="child", name="plain"))
    return Result(number, spawn=spawn, sql=[(EFFECT, (doc.id, "three", ctx.generation))])


@after.stage
async def follow(doc: Document, ctx: Context) -> Result[int]:
    process = process_now.get()
    await process.pause(0.05)
    return Result(1, sql=[(EFFECT, (doc.id, "follow", ctx.generation))])


CHARACTERS = (
    "plain", "plain", "plain", "parent", "flaky@one", "flaky@two", "failing@two", "failing@one", "broken@three",
    "late@one", "needy@three", "poison@one", "poison@two", "poison@three",
)  # fmt: skip
