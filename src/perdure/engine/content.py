"""The content of a document within reach of code that has no event loop: in memory, or in a file of the blob's."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.engine import rooms
from perdure.engine.document import Document
from perdure.engine.fetched import attached, fetched_content, fetches, is_fetched, local
from perdure.engine.journey import Journey
from perdure.engine.pipeline import AnyStage, Pipeline
from perdure.engine.stage_cell import LocalFile
from perdure.errors import Permanent
from perdure.store.base import Store
from perdure.store.blobs import BlobCorrupt, BlobMissing, Blobs
from perdure.store.records import DocumentRecord


async def open_content(
    journey: Journey, record: DocumentRecord, store: Store, blobs: Blobs, pipelines: Mapping[str, Pipeline]
) -> None:
    """Give the journey its document, with the file of its content if there is one. Raises: Permanent."""
    if is_fetched(journey.job, record, pipelines):
        journey.folder = rooms.new_room()
        try:
            record, journey.file = await fetched_content(
                store, blobs, journey.job, record, pipelines, journey.folder
            )
        except (BlobMissing, BlobCorrupt) as error:
            raise _missing("what was fetched", error) from error
    elif record.blob is not None:
        try:
            journey.file = await blobs.path(record.blob)
            if journey.file is None:
                # a folder for each: two documents may have one content, and the first to end removes its copy
                journey.folder = rooms.new_room()
                journey.file = await blobs.open_copy(record.blob, journey.folder)
        except (BlobMissing, BlobCorrupt) as error:
            raise _missing("what was handed in", error) from error
    journey.document = Document(record, LocalFile(journey.file))


def _missing(which: str, error: Exception) -> Permanent:
    return Permanent("content_missing", f"{which} cannot be read any more: {error}")


def source_of(stage: AnyStage) -> AnyStage | None:
    """The stage that fetches the document's content, if this one reads what it gave."""
    return next((s for s in stage.pipeline.stages if s.name in stage.reads and fetches(s)), None)


async def bring_fetched(journey: Journey, source: AnyStage, raw: bytes, blobs: Blobs) -> None:
    """Bring the blob that `source` fetched within reach of the next stage. Raises: BlobMissing, BlobCorrupt,
    InputInvalid."""
    found = attached(source, raw)
    if found is None or found.blob == journey.fetched_blob:
        return
    if journey.folder is None:
        journey.folder = rooms.new_room()
    journey.file = await local(found.blob, blobs, journey.folder)
    journey.fetched_bytes, journey.fetched_blob = found.size, found.blob
    journey.document = journey.document.beside(LocalFile(journey.file))
