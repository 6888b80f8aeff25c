"""The image pipeline: what is known of an image, what is to be seen on it, its variants, and how it is found.

    image                look at the file, spawn the jobs, and be done when they are
    generate-metadata    what a vision service sees; without one the fallback record, made good when there is one
    generate-variants    thumbnail, medium and large, in WebP and AVIF
    generate-embeddings  the searchable text becomes the chunk that the image is found by

Metadata and variants are made at the same time, embeddings as soon as there is a record. All of it is written under
natural keys, so a retry overwrites and never duplicates.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import Any

from perdure import Context, DependencyDown, Document, Gathered, Permanent, Pipeline, Result, Row
from perdure.core.chunk import Chunk, chunk_id
from perdure.core.frozen import frozen
from perdure.core.services import CONFIGURED
from perdure.pipelines.bounds import SERVICE_S, STAGE_S
from perdure.pipelines.embed import embedder, services, with_vectors
from perdure.pipelines.image.describe import Described, adescribe, fallback, searchable, vision
from perdure.pipelines.image.facts import Facts, facts
from perdure.pipelines.image.variants import Variant, preview, variants
from perdure.settings import current

QUEUE = "image-processing"
IMAGE_MB = 2_048
LOOK_S, VARIANTS_S = 300.0, 900.0
#: What each process would import anew.
MODULES = ("PIL.Image", "perdure.pipelines.image.facts", "perdure.pipelines.image.variants")

CONFIGURED["vision"] = lambda: vision(current()) is not None

generate_metadata = Pipeline("generate-metadata", queue=QUEUE, fetched=True)
generate_variants = Pipeline("generate-variants", queue=QUEUE, fetched=True)
generate_embeddings = Pipeline("generate-embeddings", queue=QUEUE, fetched=True)
generate_metadata.then = (generate_embeddings,)
images = Pipeline(
    "image",
    queue=QUEUE,
    concurrency=lambda: current().image_concurrency,
    then=[generate_metadata, generate_variants, generate_embeddings],
    fetched=True,
)


@frozen
class Known:
    """What the jobs of an image are given."""

    facts: Facts


@frozen
class Text:
    """What the image is to be found by."""

    text: str


# --- the image -------------------------------------------------------------------------------------


@images.stage(isolate=True, sandbox=True, memory_mb=IMAGE_MB, timeout=LOOK_S, preload=MODULES)
def look(doc: Document) -> Result[Facts]:
    """What can be known without any service; what is no image ends here."""
    found = facts(doc.path, private=current().image_private)
    known = {"facts": asdict(found)}
    jobs = [generate_metadata.job(doc, **known), generate_variants.job(doc)]
    return Result(found, rows=[Row("facts", data=asdict(found))], spawn=jobs)


@images.stage(timeout=STAGE_S)
def complete(look: Facts, gathered: Gathered) -> dict[str, str]:
    """Every job of it is done; if one is not, neither is the image."""
    ended = {job.name: gathered.jobs.get(job.name, "lost") for job in images.then}
    if failed := sorted(name for name, outcome in ended.items() if outcome != "done"):
        message = (
            f"{', '.join(failed)} failed; see the attempts of this document, mend the cause and requeue it"
        )
        if "lost" in ended.values():
            message += ' with from_stage="look"'
        raise Permanent("image_incomplete", message)
    return ended


# --- what is to be seen ------------------------------------------------------------------------------


def _shown() -> str | None:
    return "jpeg" if vision(current()) is not None else None


@generate_metadata.stage(
    isolate=True, sandbox=True, memory_mb=IMAGE_MB, timeout=LOOK_S, preload=MODULES, model=_shown
)
def show(doc: Document) -> bytes:
    """The picture that the service is shown; nothing while there is no service."""
    return preview(doc.path) if _shown() is not None else b""


@generate_metadata.stage(needs=("vision",), timeout=SERVICE_S, model=lambda: current().vision_model)
async def describe(doc: Document, show: bytes) -> Described:
    """What the service says of it."""
    if not show:
        raise DependencyDown(
            "vision", "no vision service is configured; set PERDURE_VISION_URL", unnamed=True
        )
    return await adescribe(show, current())


@describe.fallback
def pending() -> Described:
    return fallback()


@generate_metadata.stage(timeout=STAGE_S)
def record(doc: Document, describe: Described, input: Known) -> Result[dict[str, Any]]:
    """The record, and the text that it is found by."""
    found = describe.metadata.record()
    kept = {**found, "degraded": describe.degraded, "model": describe.model}
    text = searchable(describe.metadata, input.facts)
    return Result(found, rows=[Row("metadata", data=kept)], spawn=[generate_embeddings.job(doc, text=text)])


# --- its variants ------------------------------------------------------------------------------------


@generate_variants.stage(isolate=True, sandbox=True, memory_mb=IMAGE_MB, timeout=VARIANTS_S, preload=MODULES)
def make(doc: Document, ctx: Context) -> list[Variant]:
    """All sizes and formats; one decoding serves them all, so they are made in one go."""
    made = list(variants(doc.path))
    for one in made:
        digest = hashlib.sha256(one.content).hexdigest()
        size = {"width": one.width, "height": one.height, "bytes": len(one.content), "sha256": digest}
        ctx.emit(Row("variants", name=one.name, format=one.format, data=size))
    return made


# --- how it is found -----------------------------------------------------------------------------------


@generate_embeddings.stage(model=lambda: embedder().name, needs=services, timeout=SERVICE_S)
async def embed(doc: Document, input: Text) -> Result[int]:
    """One chunk: the searchable text with its vector."""
    model, text = embedder(), input.text.strip()
    if not text:
        return Result(0, chunks=[])
    vectors = await model.aembed([text])
    chunk = Chunk(chunk_id(doc.id, doc.content_hash, 0, text), 0, 0, len(text), text)
    return Result(1, chunks=with_vectors([chunk], vectors, model.name))
