"""The content that was fetched for a document which is a URL, as the jobs that follow see it: the document's own."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from perdure.core.model import Job
from perdure.engine.intake import INLINE_BYTES_MAX
from perdure.engine.pipeline import Pipeline
from perdure.errors import Permanent
from perdure.store.base import Store
from perdure.store.blobs import Blobs
from perdure.store.records import DocumentRecord


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
    saves = [
        save
        for save in await store.saves(record.org, record.id, record.pipeline)
        if save.stage in (stage.name, stage.was) and save.generation <= job.generation
    ]
    if not saves:
        raise Permanent("content_missing", "the document was not fetched; requeue it")
    newest = max(saves, key=lambda save: save.generation)
    raw = newest.inline if newest.blob is None else await blobs.get(newest.blob)
    found = await asyncio.to_thread(stage.codec.decode, raw or b"null")
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
