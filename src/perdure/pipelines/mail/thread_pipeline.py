"""The pipeline of one thread: what it is about, in short, and how it is found.

Its document is JSON, a `Talk`: the nodes, and of each message the beginning of what was sent. That is decoded here and
not in the archive, so that a message which cannot be decoded costs its thread something, and the archive nothing.
"""

from __future__ import annotations

import hashlib
from typing import Any

from perdure import Context, Document, Pipeline, Result, Row
from perdure.core.chunk import Chunk
from perdure.core.frozen import frozen
from perdure.engine.codec import Codec
from perdure.errors import Permanent
from perdure.pipelines import chunk as cutting
from perdure.pipelines.bounds import SERVICE_S, STAGE_S
from perdure.pipelines.indexing import index_chunks
from perdure.pipelines.mail.message import Message, decode
from perdure.pipelines.mail.message_pipeline import QUEUE, READ_MB, REUSE
from perdure.pipelines.mail.summary import Outline, chat_endpoint, extractive
from perdure.pipelines.mail.threads import Node
from perdure.settings import current

#: What each process would import anew.
MODULES = ("perdure.pipelines.mail.summary", "pydantic")

threads = Pipeline(
    "mail-thread",
    queue=QUEUE,
    attempts=lambda: current().retry_job_max_attempts_threads,
    backoff_s=lambda: current().retry_job_base_delay_seconds,
    backoff_cap_s=lambda: current().retry_job_max_delay_seconds,
)


@frozen
class Sent:
    """A message of a thread: its identity and the first bytes of it."""

    identity: str
    head: bytes


@frozen
class Talk:
    """A thread as its document has it; `superseded_by` names those that took its messages over, if it is no more."""

    id: str
    subject: str = ""
    nodes: tuple[Node, ...] = ()
    messages: tuple[Sent, ...] = ()
    superseded_by: tuple[str, ...] | None = None


_TALK = Codec(Talk, "a thread")


def talk_of(content: bytes) -> Talk:
    """The thread that a document has; InputInvalid if it has none."""
    talk: Talk = _TALK.decode(content)
    return talk


def services() -> tuple[str, ...]:
    """What summaries need: the policy of the service, if the settings name one."""
    return ("openai",) if current().summary_url else ()


def _model() -> str:
    return current().summary_model if current().summary_url else "extractive"


@threads.stage(
    model=_model,
    needs=services,
    isolate_from=0,
    memory_mb=READ_MB,
    timeout=SERVICE_S,
    reuse=REUSE,
    preload=MODULES,
)
async def summarise(doc: Document, ctx: Context) -> Result[Outline]:
    """In the words of the model that the settings name, or of the thread itself. Messages are decoded here, so it runs
    in a cell; one that is trusted, because it needs the key of the service."""
    talk, said = _opened(doc)
    service = chat_endpoint(current())
    if service is None or not said:
        return _extracted(talk, said)
    key = ctx.idempotency_key()
    return _told(talk, said, await service.asummarise(said, idempotency_key=key))


@summarise.fallback
def in_its_own_words(doc: Document) -> Result[Outline]:
    """Until the service is back."""
    return _extracted(*_opened(doc), degraded=True)


def _opened(doc: Document) -> tuple[Talk, list[Message]]:
    """The thread, and those of its messages that can be decoded."""
    talk = talk_of(doc.data)
    said = []
    for one in talk.messages:
        try:
            said.append(decode(one.head))
        except Permanent:
            continue  # its own document says why
    return talk, said


def _extracted(talk: Talk, said: list[Message], degraded: bool = False) -> Result[Outline]:
    return _told(talk, said, extractive(said), degraded)


def _told(talk: Talk, said: list[Message], outline: Outline, degraded: bool = False) -> Result[Outline]:
    row: dict[str, Any] = {
        "thread": talk.id,
        "subject": talk.subject,
        "method": outline.method,
        "model": outline.model,
        "text": outline.text,
        "participants": outline.participants,
        "messages": len(talk.messages),
        "unread": len(talk.messages) - len(said),
        "missing": sum(not node.messages for node in talk.nodes),
        "first": outline.first,
        "last": outline.last,
        "degraded": degraded,
        "superseded_by": talk.superseded_by,
    }
    return Result(outline, rows=[Row("summary", data=row)])


@threads.stage(version=cutting.VERSION, timeout=STAGE_S)
def chunk(doc: Document, summarise: Outline) -> list[Chunk]:
    """Subject and summary, a few thousand characters; nothing of a thread that is no more."""
    talk = talk_of(doc.data)
    if talk.superseded_by is not None:
        return []
    blocks = (f"# {talk.subject}" if talk.subject else "", summarise.text)
    text = "\n\n".join(block for block in blocks if block)
    return cutting.chunks(text, doc.id, hashlib.sha256(text.encode()).hexdigest())


index_chunks(threads, attempts=lambda: current().retry_job_max_attempts_chunks)
