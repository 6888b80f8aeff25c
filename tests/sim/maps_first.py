"""The first release of the pipeline `maps`."""

from __future__ import annotations

from perdure.core.gathered import Gathered
from perdure.core.outcome import Failure
from perdure.engine.context import Context
from perdure.engine.document import Document
from perdure.engine.result import Result
from tests.sim.documents import EFFECT, told_of_death
from tests.sim.maps import bound, coloured, new_maps, surveyed
from tests.sim.world import LEASE_S

maps = new_maps()


@maps.stage(isolate=True, statements=[EFFECT])
async def survey(doc: Document, ctx: Context) -> Result[int]:
    return await surveyed(doc, ctx, "survey")


maps.remote_stage(
    "engrave", event="Surveyed", done="Engraved", failed="EngraveFailed", reads=["survey"], output=int, lease=LEASE_S,
    wait=20, backoff_s=2,
)  # fmt: skip


@maps.stage(needs=["dep"])
async def colour(doc: Document, engrave: int, ctx: Context) -> Result[int]:
    return await coloured(doc, ctx, "colour")


@colour.fallback
async def grey(doc: Document) -> int:
    return 0


@maps.stage(needs=["dep"])
async def bind(doc: Document, colour: int, gathered: Gathered, ctx: Context) -> Result[int]:
    return await bound(doc, ctx, gathered)


@maps.on_dead
async def lost(doc: Document, failure: Failure, ctx: Context) -> Result[int]:
    return await told_of_death(doc, failure, ctx, "lost")
