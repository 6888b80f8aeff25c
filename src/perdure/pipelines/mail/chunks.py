"""Messages and threads as Markdown, and cut into chunks. Each message of a thread is a part: `message=N`, from 1."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.chunk import Chunk
from perdure.pipelines import chunk
from perdure.pipelines.chunk import PartStart
from perdure.pipelines.mail.headers import Address
from perdure.pipelines.mail.message import Message


def message_markdown(message: Message, *, own: bool = False) -> str:
    """A message to be read: subject, who, when, the text; with `own` only what its sender wrote, if that is known."""
    facts = [
        ("From", shown(message.sender)),
        ("To", shown(message.to)),
        ("Cc", shown(message.cc)),
        ("Date", message.date.isoformat(" ", "minutes") if message.date else message.date_raw),
    ]
    lines = "\n".join(f"- {name}: {value}" for name, value in facts if value)
    text = (message.own or message.text) if own else message.text
    blocks = (f"# {message.subject}" if message.subject else "", lines, text)
    return "\n\n".join(block for block in blocks if block)


def thread_markdown(messages: Sequence[Message]) -> tuple[str, list[PartStart]]:
    """The messages of a thread one after the other, quoted replies left out, and where each begins."""
    blocks: list[str] = []
    parts: list[PartStart] = []
    at = 0
    for number, message in enumerate(messages, 1):
        parts.append((at, f"message={number}", None))
        blocks.append(message_markdown(message, own=True) + "\n\n")
        at += len(blocks[-1])
    return "".join(blocks), parts


def message_chunks(message: Message, document_id: str, content_hash: str) -> list[Chunk]:
    """The chunks of one message."""
    return chunk.chunks(message_markdown(message), document_id, content_hash, [(0, "message=1", None)])


def thread_chunks(messages: Sequence[Message], document_id: str, content_hash: str) -> list[Chunk]:
    """The chunks of a thread; each knows in which message it begins."""
    text, parts = thread_markdown(messages)
    return chunk.chunks(text, document_id, content_hash, parts)


def shown(people: Sequence[Address]) -> str:
    """Names with addresses, as in a header."""
    return ", ".join(f"{one.name} <{one.address}>" if one.name else one.address for one in people)
