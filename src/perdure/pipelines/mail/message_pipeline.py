"""The pipeline of one message: decoded, its attachments handed on, its text cut, embedded and found.

Its document is the message as it was sent. Messages are decoded in a process that serves many of them: one for each
would cost more than all the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from perdure import Context, Document, Pipeline, Row
from perdure.core.chunk import Chunk
from perdure.pipelines import chunk as cutting
from perdure.pipelines.bounds import CELL_BYTES, CHUNK_MB, STAGE_S
from perdure.pipelines.document import documents
from perdure.pipelines.extract import MODULES
from perdure.pipelines.extract.sniff import DOCX, EPUB, HTML, MAIL, MARKDOWN, PDF, TEXT, XML, sniff
from perdure.pipelines.indexing import index_chunks
from perdure.pipelines.installed import image_pipeline
from perdure.pipelines.mail.chunks import message_chunks
from perdure.pipelines.mail.message import Attachment, Message, decode
from perdure.pipelines.routing import COLLECTIONS
from perdure.settings import current

QUEUE = "mail"
READ_MB, READ_S = 1_024, 300.0
REUSE = 100  # messages that a process decodes

_READABLE = {PDF, EPUB, DOCX, HTML, MARKDOWN, TEXT, XML, MAIL}

images = image_pipeline()

messages = Pipeline(
    "mail-message",
    queue=QUEUE,
    attempts=lambda: current().retry_job_max_attempts_messages,
    backoff_s=lambda: current().retry_job_base_delay_seconds,
    backoff_cap_s=lambda: current().retry_job_max_delay_seconds,
    then=[documents] if images is None else [documents, images],
)


@messages.stage(isolate=True, sandbox=True, memory_mb=READ_MB, timeout=READ_S, reuse=REUSE, preload=MODULES)
def read(doc: Document, ctx: Context) -> Message:
    """The message without the content of its attachments: what can be read of those become documents of their own."""
    found = decode(doc.data)
    listed = [_handed_on(ctx, number, one) for number, one in enumerate(found.attachments, 1)]
    ctx.emit(Row("message", data=_record(found, listed)))
    return replace(found, attachments=())


def _handed_on(ctx: Context, number: int, attachment: Attachment) -> dict[str, Any]:
    """Spawn a document for the attachment if there is a pipeline for it; what the record says of it."""
    pipeline, kind = _pipeline_of(attachment)
    if pipeline is not None and attachment.data is not None:
        about = {"attachment": number, "media_type": attachment.media_type, "inline": attachment.inline}
        child = pipeline.child(
            f"attachment-{number}",
            data=attachment.data,
            name=attachment.name,
            meta=about,
            collection=COLLECTIONS.get(pipeline.name, "documents"),
        )
        ctx.emit(child)
    facts = {name: getattr(attachment, name) for name in ("name", "media_type", "size", "inline")}
    return {**facts, "kind": kind, "pipeline": pipeline.name if pipeline else None}


def _pipeline_of(attachment: Attachment) -> tuple[Pipeline | None, str]:
    """What takes it, told by its content; what that is."""
    if not attachment.data:
        return None, ""
    kind = sniff(attachment.data, attachment.name, attachment.media_type)
    if kind.startswith("image/"):
        return images, kind
    return (documents if kind in _READABLE else None), kind


def _record(message: Message, attachments: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        **dict(_headers(message)),
        "text_chars": len(message.text),
        "own_chars": len(message.own),
        "attachments": attachments,
        "problems": message.problems,
    }


def _headers(message: Message) -> Iterator[tuple[str, Any]]:
    for name in ("message_id", "in_reply_to", "references", "subject", "date_raw", "list_id", "date"):
        yield name, getattr(message, name)
    for name in ("sender", "to", "cc"):
        yield name, [asdict(one) for one in getattr(message, name)]


@messages.stage(version=cutting.VERSION, timeout=STAGE_S, isolate_from=CELL_BYTES, memory_mb=CHUNK_MB)
def chunk(doc: Document, read: Message) -> list[Chunk]:
    """Passages of headers and text."""
    return message_chunks(read, doc.id, doc.content_hash)


index_chunks(messages, attempts=lambda: current().retry_job_max_attempts_chunks)
