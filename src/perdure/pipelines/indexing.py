"""The end that pipelines of text share: chunks get vectors, and from one commit on the document is found by them.

    index_chunks(documents)         # after a stage `chunk` that gives list[Chunk]

embed     a vector for each, batch by batch
index     from this commit on it is found; what it is like is found out by a job of its own
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure import Context, Document, Pipeline, Result, batched
from perdure.core.chunk import Chunk
from perdure.core.frozen import frozen
from perdure.pipelines.bounds import CELL_BYTES, CHUNK_MB, EMBED_S, EMBED_STALL_S, STAGE_S
from perdure.pipelines.connect import asked, detect_connections
from perdure.pipelines.embed import embedder, services, with_vectors

#: Documents of an organisation that a process embeds or indexes: to load a model takes half a second.
REUSE = 25


@frozen
class Embedded:
    """A vector for each chunk, in their order, and the model that made them."""

    model: str
    vectors: list[bytes]


async def embed(chunk: list[Chunk], ctx: Context) -> Embedded:
    """Each batch is saved as it comes, so no attempt pays for it twice."""
    model = embedder()
    if not chunk:
        return Embedded(model.name, [])

    async def ask(batch: Sequence[Chunk]) -> list[bytes]:
        return await model.aembed([one.read for one in batch])

    if len(chunk) <= model.batch:  # what there is to lose is saved with the stage
        return Embedded(model.name, await ask(chunk))
    vectors: list[bytes] = []
    async for found in ctx.aitems(batched(chunk, model.batch), run=ask):
        vectors += found
    return Embedded(model.name, vectors)


def index(doc: Document, chunk: list[Chunk], embed: Embedded) -> Result[int]:
    """From this commit on the document is found by these chunks, and by no others."""
    if not chunk and doc.url is not None:  # another pipeline has indexed what was fetched
        return Result(0)
    found = with_vectors(chunk, embed.vectors, embed.model)
    spawn = [detect_connections.job(doc, **asked(doc, len(found)))]
    return Result(len(chunk), chunks=found, spawn=spawn)


def all_embedded(chunk: list[Chunk], embed: Embedded, index: int) -> bool:
    return len(chunk) == len(embed.vectors) == index


def embedded_in_cells() -> int | None:
    """From which size on a cell embeds; a service is asked from the worker, where the fleet's calls are controlled."""
    return None if services() else CELL_BYTES


def index_chunks(pipeline: Pipeline, *, attempts: Callable[[], int] | None = None) -> None:
    """Add the stages `embed` and `index` after a stage `chunk`; `attempts` of theirs, if not the pipeline's."""
    pipeline.stage(
        model=lambda: embedder().name, needs=services, attempts=attempts, timeout=EMBED_S, stall=EMBED_STALL_S,
        isolate_from=embedded_in_cells, memory_mb=CHUNK_MB, reuse=REUSE,
    )(embed)  # fmt: skip
    pipeline.stage(
        attempts=attempts, timeout=STAGE_S, isolate_from=CELL_BYTES, memory_mb=CHUNK_MB, reuse=REUSE
    )(index).ensure(all_embedded)
    if detect_connections not in pipeline.then:
        pipeline.then += (detect_connections,)
