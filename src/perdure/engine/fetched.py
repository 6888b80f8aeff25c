"""The content that was fetched for a document which is a URL, as the jobs that follow see it: the document's own.

Small content is in the output of the stage that fetched it, large content is a blob that the output names. The row of
that output has both, the output and the name of the blob, so the blob is kept as long as the row.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from perdure.core.frozen import frozen
from perdure.core.model import Job
from perdure.engine.intake import INLINE_BYTES_MAX, OUTPUT_INLINE_BYTES_MAX
from perdure.engine.pipeline import AnyStage, Pipeline
from perdure.errors import Permanent
from perdure.store.base import Store
from perdure.store.blobs import BlobCorrupt, BlobMissing, Blobs
from perdure.store.blobs.base import hash_file
from perdure.store.records import DocumentRecord, SavedStage


@frozen
class Attached:
    """The blob that an output names, and its size."""

    blob: str
    size: int


def fetches(stage: AnyStage) -> bool:
    """Whether the stage fetches the content of its pipeline's documents."""
    return stage.name == stage.pipeline.content_stage


def attached(stage: AnyStage, output: bytes) -> Attached | None:
    """The blob with the fetched content, if this is the output of the stage that fetches it."""
    if not fetches(stage) or len(output) > OUTPUT_INLINE_BYTES_MAX:
        return None
    found = stage.codec.decode(output)
    blob = getattr(found, "blob", None)
    return None if blob is None else Attached(blob, found.size)


async def saved_raw(save: SavedStage, blobs: Blobs) -> bytes | None:
    """A saved output. Raises: BlobMissing, BlobCorrupt."""
    return await blobs.get(save.blob) if save.inline is None and save.blob is not None else save.inline


async def conditional(save: SavedStage, stage: AnyStage, blobs: Blobs) -> bool:
    """Whether a stage may take up what it saved for an earlier generation. One that fetches may not ask whether content
    changed that is lost, and content that an older version saved in its output would have to be decoded."""
    return not fetches(stage) or (
        save.inline is not None and (save.blob is None or await _intact(save.blob, blobs))
    )


async def local(blob: str, blobs: Blobs, folder: Path) -> Path:
    """The blob as a file, a copy in `folder` if it is none. Raises: BlobMissing, BlobCorrupt."""
    path = await blobs.path(blob)
    if path is None:
        return await blobs.open_copy(blob, folder)
    if not await _is(blob, path):
        raise BlobCorrupt(f"the file of blob {blob} has other content")
    return path


async def _intact(blob: str, blobs: Blobs) -> bool:
    """Whether the blob is there, and the right one where that is cheap to say."""
    try:
        path = await blobs.path(blob)
        return await blobs.exists(blob) if path is None else await _is(blob, path)
    except BlobMissing:
        return False


async def _is(blob: str, path: Path) -> bool:
    try:
        return (await asyncio.to_thread(hash_file, path))[0] == blob
    except OSError:
        return False


def is_fetched(job: Job, record: DocumentRecord, pipelines: Mapping[str, Pipeline]) -> bool:
    """Whether the job works on what was fetched, and not on the URL."""
    found = pipelines.get(job.pipeline)
    return record.kind == "url" and "/" in job.key and found is not None and found.fetched


async def fetched_content(
    store: Store,
    blobs: Blobs,
    job: Job,
    record: DocumentRecord,
    pipelines: Mapping[str, Pipeline],
    folder: Path,
) -> tuple[DocumentRecord, Path | None]:
    """The record with the content that the document's pipeline fetched up to this generation; a large one is in a file
    in `folder`. Raises: Permanent, BlobMissing, BlobCorrupt."""
    main = pipelines.get(record.pipeline)
    stage = main.at(main.content_stage) if main is not None and main.content_stage is not None else None
    if stage is None:
        raise Permanent(
            "content_missing", f"pipeline {record.pipeline}, which fetched the document, is not known here"
        )
    which = (record.org, record.id, record.pipeline)
    # a job of an old generation that runs again, long after what was fetched for it was dropped, takes what there is
    every = [*await store.saves(*which, job.generation), *await store.saves(*which)]
    saves = [save for save in every if save.stage in (stage.name, stage.was)]
    saves = [save for save in saves if save.generation <= job.generation] or saves
    if not saves:
        raise Permanent("content_missing", "the document was not fetched; requeue it")
    newest = max(saves, key=lambda save: save.generation)
    raw = await saved_raw(newest, blobs)
    found = await asyncio.to_thread(stage.codec.decode, raw or b"null")
    if (blob := getattr(found, "blob", None)) is not None:
        kept = replace(record, kind="bytes", media_type=found.media_type, content_hash=blob, size=found.size)
        return replace(kept, inline=None, blob=blob), await local(blob, blobs, folder)
    content: bytes = found.content or b""
    digest, path = await asyncio.to_thread(_kept, content, folder)
    about = replace(record, kind="bytes", media_type=found.media_type, content_hash=digest, size=len(content))
    return replace(about, inline=content if path is None else None, blob=digest if path else None), path


def _kept(content: bytes, folder: Path) -> tuple[str, Path | None]:
    digest = hashlib.sha256(content).hexdigest()
    if len(content) <= INLINE_BYTES_MAX:
        return digest, None
    path = folder / "fetched"
    path.write_bytes(content)
    return digest, path
