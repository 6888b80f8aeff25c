"""What is processed: documents with a character of their own, and the stages that play it out.

The ledger is told of every run by the stage code itself, so that the checks do not rest on the engine's own counters.
Outputs carry a number that differs from run to run: a stage that is saved twice shows. A character is the name of the
document, `flaky@two` for one that is flaky in stage two only.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from perdure.core.chunk import Chunk, Connection
from perdure.core.model import Job, repairs
from perdure.core.outcome import Failure
from perdure.engine.context import Context
from perdure.engine.document import Document
from perdure.engine.isolate import CellCrashed
from perdure.engine.pipeline import Pipeline
from perdure.engine.result import Result, Row
from perdure.errors import DependencyDown, Permanent, RetryLater, Transient
from tests.sim.world import LEASE_S, here

if TYPE_CHECKING:
    from tests.sim.ledger import Ledger

#: The accounts of the world that is being played, and whether this code runs alone in a cell.
ledger_now: ContextVar[Ledger] = ContextVar("ledger_now")
in_cell: ContextVar[bool] = ContextVar("in_cell", default=False)

ATTEMPTS = 3
POSTPONES_MAX = 5
MODEL = "simulated"
EFFECT = "INSERT INTO effect (document_id, stage, generation) VALUES ($1, $2, $3)"


def limit_of(doc: Document) -> str | None:
    key: str | None = doc.meta.get("key")
    return key


books = Pipeline(
    "books", attempts=ATTEMPTS, lease_s=LEASE_S, concurrency_key=limit_of, concurrency_until="two"
)
after = Pipeline("after", attempts=ATTEMPTS, lease_s=LEASE_S)
notes = Pipeline("notes", attempts=ATTEMPTS, lease_s=LEASE_S, queue="notes")
scans = Pipeline("scans", attempts=ATTEMPTS, lease_s=LEASE_S, queue="notes", postpones_max=POSTPONES_MAX)
errands = Pipeline("errands", attempts=ATTEMPTS, lease_s=LEASE_S)
leaflets = Pipeline("leaflets", attempts=ATTEMPTS, lease_s=LEASE_S, queue="notes")
cards = Pipeline("cards", attempts=ATTEMPTS, lease_s=LEASE_S, queue="notes")
#: The pipelines that are the same in both releases, see `releases`.
ALIKE = (books, after, notes, scans, errands, leaflets, cards)

#: Pipeline → characters of its documents. The last ones of each always end badly.
CHARACTERS = {
    "books": (
        "plain", "plain", "parent", "parent", "slow@one", "flaky@one", "flaky@two",
        "rude@two", "late@one", "needy@three", "shaky@two", "shaky@three", "failing@one", "failing@two", "broken@one",
        "broken@three", "poison@one", "poison@two", "poison@three",
    ),
    "notes": ("plain", "plain", "plain", "flaky", "late", "shaky", "failing", "broken", "hanging", "blocking"),
    "scans": ("plain", "plain", "shaky", "poison", "hanging", "eternal", "gloomy"),
    "leaflets": ("broken@tear",),
    "errands": ("plain", "plain", "plain", "flaky@pack", "shaky@unpack", "unwelcome"),
    "maps": (
        "plain", "pale@colour", "pale@colour", "fading@colour", "needy@colour", "needy@bind", "flaky@survey",
        "shaky@survey", "shaky@colour", "late@bind", "broken@bind", "broken@bind", "unwelcome",
    ),
}  # fmt: skip
#: How a document of this character must end: the code it dies of, None for done.
ENDS = {
    "plain": None, "parent": None, "slow": None, "flaky": None, "rude": None, "late": None, "needy": None,
    "shaky": None, "gloomy": None, "pale": None, "fading": None, "failing": "unexpected", "broken": "torn",
    "poison": "crashed:SIGKILL", "hanging": "stage_timeout", "blocking": "stage_timeout",
    "eternal": "postpones_exhausted", "unwelcome": "busy",
}  # fmt: skip


async def run(ctx: Context, stage: str, former: str | None = None) -> int:
    """Take some time, behave as the document's character says, and note the run."""
    ledger, job = ledger_now.get(), job_of(ctx)
    number = ledger.began(job, stage, in_cell.get())
    await asyncio.sleep(ledger.world.rng.choice((0.01, 0.01, 0.1, 0.5, 2.0)))
    character, _, at = ctx.document.name.partition("@")
    if at in ("", stage, former):
        await _act(character, ledger, job, ledger.runs[job.key, former or stage, job.generation])
    return number


async def _act(character: str, ledger: Ledger, job: Job, runs: int) -> None:
    match character:
        case "slow":
            await asyncio.sleep(LEASE_S * 1.5)
        case "flaky" if runs <= 2:
            ledger.fails(job)
            raise Transient("not yet")
        case "rude" if runs == 1:
            ledger.fails(job, 5.0)
            raise Transient("come back", retry_after_s=5.0)
        case "failing":
            ledger.fails(job)
            raise ValueError("never")
        case "broken":
            ledger.fails(job)
            raise Permanent("torn")
        case "late" if runs <= 2:
            ledger.postpones(job, 3.0)
            raise RetryLater(delay_s=3.0)
        case "eternal":
            ledger.postpones(job, 2.0)
            raise RetryLater(delay_s=2.0)
        case "poison" | "shaky" if character == "poison" or runs == 1:
            await _crash(ledger, job)
        case "hanging":
            ledger.fails(job)
            await asyncio.sleep(1e6)
        case "blocking":
            ledger.fails(job)
            await _block()
        case _:
            _do_without(character, ledger, job, runs)


def _do_without(character: str, ledger: Ledger, job: Job, runs: int) -> None:
    """What a stage needs is down, or it says so."""
    match character:
        case "needy" if ledger.world.dependency_down:
            ledger.fails(job, 0.0)
            raise DependencyDown("dep", confirmed=ledger.world.rng.random() < 0.5)
        case "gloomy" if runs <= POSTPONES_MAX + 2:
            ledger.postpones(job, 0.0)
            raise DependencyDown("dep")
        case "pale" if not repairs(job.key):
            ledger.fails(job, 0.0)
            raise DependencyDown("dep")
        case "fading" if not repairs(job.key):
            ledger.fails(job)
            raise Transient("not today")


async def _crash(ledger: Ledger, job: Job) -> None:
    """A document takes down what it runs in: its cell, or the whole worker."""
    ledger.crashed(job, alone=in_cell.get())
    if in_cell.get():
        raise CellCrashed("SIGKILL")
    ledger.world.kill(here(), "crashed by a document")
    await ledger.world.forever()


async def _block() -> None:
    """Hold the interpreter, with a breath now and then; alone in a cell nobody else is held up."""
    while True:
        if not in_cell.get():
            here().world.freeze(here(), LEASE_S + 2.0)
        await asyncio.sleep(0.05)


def job_of(ctx: Context) -> Job:
    """The claim that this run belongs to."""
    port: Any = ctx._port
    job: Job = port.job
    return job


def chunks_of(document_id: str, generation: int) -> list[Chunk]:
    """Those of a generation: others than the one before had, or the very same."""
    revision = (generation + sum(document_id.encode())) // 2
    ids = [f"{document_id}-{revision}-{number}" for number in range(1 + revision % 3)]
    return [
        Chunk(id_, number, number, number + 1, "x", model=MODEL, vector=b"1234")
        for number, id_ in enumerate(ids)
    ]


def _effect(doc: Document, ctx: Context, stage: str) -> list[tuple[str, tuple[Any, ...]]]:
    return [(EFFECT, (doc.id, stage, ctx.generation))]


@books.stage
async def one(doc: Document, ctx: Context) -> int:
    return await run(ctx, "one")


@books.stage
async def two(doc: Document, one: int, ctx: Context) -> Result[list[int]]:
    number = await run(ctx, "two")
    done: list[int] = []

    async def each(item: int) -> int:
        ledger_now.get().item_ran(job_of(ctx), "two", str(item))
        await asyncio.sleep(0.3)
        return number * 10 + item

    async for value in ctx.aitems(range(3), run=each):
        ctx.emit(Row("part", item=len(done), data=value))
        done.append(value)
    # two saves of one job at the same time: both must be kept
    await asyncio.gather(*(ctx._port.save_item(name, b"1", []) for name in ("left", "right")))
    return Result([number, *done], sql=_effect(doc, ctx, "two"))


@books.stage(needs=["dep"])
async def three(doc: Document, two: list[int], ctx: Context) -> Result[int]:
    number = await run(ctx, "three")
    spawn: list[Any] = [after.job(doc)]
    if doc.name == "parent":
        text = f"child of generation {ctx.generation}"
        spawn.append(books.child("child", text=text, name="plain", refresh=True))
    return Result(
        number, spawn=spawn, sql=_effect(doc, ctx, "three"), chunks=chunks_of(doc.id, ctx.generation)
    )


@books.on_done
async def tell_done(doc: Document, ctx: Context) -> Result[int]:
    return Result(await run(ctx, "tell_done"), sql=_effect(doc, ctx, "tell_done"))


@books.on_dead
async def tell_dead(doc: Document, failure: Failure, ctx: Context) -> Result[int]:
    return await told_of_death(doc, failure, ctx, "tell_dead")


async def told_of_death(doc: Document, failure: Failure, ctx: Context, stage: str) -> Result[int]:
    ledger_now.get().told_of_death(job_of(ctx), failure.code)
    return Result(await run(ctx, stage), sql=_effect(doc, ctx, stage))


@after.stage
async def follow(doc: Document, ctx: Context) -> Result[int]:
    """Its connections lead from the chunks that were there when it began; their score is the number of the run."""
    found = sorted(ledger_now.get().book.shelf.chunks[doc.id])
    number = await run(ctx, "follow")
    await asyncio.sleep(ledger_now.get().world.rng.choice((0.0, 5.0, 20.0)))
    connections = [Connection(id_, doc.id, id_, float(number), MODEL) for id_ in found]
    return Result(number, sql=_effect(doc, ctx, "follow"), connections=connections)


@notes.stage(timeout=4.0)
async def jot(doc: Document, ctx: Context) -> Result[int]:
    return Result(await run(ctx, "jot"), sql=_effect(doc, ctx, "jot"))


@leaflets.stage
async def cut(doc: Document, ctx: Context) -> Result[int]:
    """Has chunks although it may die, unlike a book."""
    number = await run(ctx, "cut")
    return Result(number, sql=_effect(doc, ctx, "cut"), chunks=chunks_of(doc.id, ctx.generation))


@leaflets.stage
async def tear(doc: Document, cut: int, ctx: Context) -> Result[int]:
    return Result(await run(ctx, "tear"), sql=_effect(doc, ctx, "tear"))


@scans.stage(isolate=True, timeout=4.0, statements=[EFFECT])
async def scan(doc: Document, ctx: Context) -> Result[int]:
    return Result(await run(ctx, "scan"), sql=_effect(doc, ctx, "scan"))


@cards.stage(needs=["dep"])
async def stamp(doc: Document, ctx: Context) -> Result[int]:
    return Result(await run(ctx, "stamp"), sql=_effect(doc, ctx, "stamp"))


@errands.stage
async def pack(doc: Document, ctx: Context) -> Result[int]:
    return Result(await run(ctx, "pack"), sql=_effect(doc, ctx, "pack"))


errands.remote_stage(
    "carry",
    event="Packed",
    done="Carried",
    failed="CarryFailed",
    output=int,
    lease=LEASE_S,
    wait=20,
    backoff_s=2,
)


@errands.stage
async def unpack(doc: Document, carry: int, ctx: Context) -> Result[int]:
    return Result(await run(ctx, "unpack"), sql=_effect(doc, ctx, "unpack"))
