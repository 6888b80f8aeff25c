"""The way in: check what was handed over, hash it, keep large content as a blob, and describe the document and its job.

The blob is written before the row that names it; the row and the job are one transaction, and the caller gets the id
only after its COMMIT.
"""

from __future__ import annotations

import hashlib
import json
import mimetypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import MAXYEAR, datetime
from pathlib import Path
from typing import Any

from uuid_utils import uuid7

from perdure.core.frozen import frozen
from perdure.core.limit_key import DEPENDENCY, ORG, is_gate
from perdure.core.model import ORG_DEFAULT, Policy
from perdure.engine.document import Document
from perdure.engine.pipeline import Pipeline
from perdure.errors import InputInvalid, InputTooLarge, UsageError
from perdure.store.blobs import Blobs
from perdure.store.operations import NewDocument, NewJob
from perdure.store.records import DocumentRecord
from perdure.store.text import checked

INLINE_BYTES_MAX = 32 * 1024
#: Outputs are read only where they are wanted, and a file of its own takes longer than the rest of the save.
OUTPUT_INLINE_BYTES_MAX = 128 * 1024
META_BYTES_MAX = 64 * 1024
CONTENT_BYTES_MAX = 512 * 1024 * 1024
PRIORITY_BOUND = 100
ATTEMPTS_MAX = 10_000
SECONDS_MAX = 10 * 366 * 86_400.0
#: What is part of an index must fit into it, whatever its characters: PostgreSQL allows 2,704 bytes in all.
ORG_MAX = 100
INDEXED_MAX = 500
NAME_MAX = 300  # of what is called by its URL


@frozen
class Content:
    """Content as it is stored: text, bytes or json, and its bytes or the file that has them."""

    kind: str
    data: bytes | Path

    @property
    def is_file(self) -> bool:
        return isinstance(self.data, Path)

    def read(self) -> bytes:
        """The bytes, wherever they are."""
        return self.data.read_bytes() if isinstance(self.data, Path) else self.data


@frozen
class Entry:
    """What a caller hands in: exactly one of text, url, data, json, path and content, and how to treat it."""

    text: str | None = None
    url: str | None = None  # checked by whoever hands it in
    data: bytes | None = None
    json: Any = None
    path: str | Path | None = None
    content: Content | None = None  # what a door has encoded already
    name: str = ""
    meta: dict[str, Any] | None = None
    meta_json: bytes | None = None  # the same, encoded by `meta_bytes`
    org: str = ORG_DEFAULT
    collection: str = "documents"
    media_type: str = ""
    priority: int = 0
    run_at: datetime | None = None
    delay_s: float = 0.0
    attempts: int | None = None
    backoff_s: float | None = None
    key: str | None = None  # the document's identity for deduplication; by default its content
    dedupe: bool = True


async def receive(
    entry: Entry, pipeline: Pipeline, blobs: Blobs, bytes_max: int = CONTENT_BYTES_MAX
) -> NewDocument:
    """The document ready to be added; UsageError tells what is wrong with it, and then nothing was written."""
    pipeline.check()
    content = content_of(entry)
    own = Path(entry.path).name if entry.path is not None else (entry.url or "")[:NAME_MAX]
    name = checked(entry.name or own, "the name")
    org = checked(entry.org, "the organisation", ORG_MAX)
    collection = checked(entry.collection, "the collection")
    media_type = checked(entry.media_type, "the media type")
    key = checked(entry.key, "the key") if entry.key is not None else None
    meta = entry.meta_json if entry.meta_json is not None else meta_bytes(entry.meta)
    if not org:
        raise InputInvalid("the organisation must not be empty")
    job = _job(entry, pipeline)
    inline, blob, content_hash, size = await _keep(content.data, blobs, bytes_max)
    dedupe = None
    if entry.dedupe:
        dedupe = _key_dedupe(key) if key is not None else f"{content.kind}:{content_hash}"
    document = NewDocument(
        id=str(uuid7()), org=org, job=job, collection=collection, kind=content.kind, name=name,
        media_type=media_type or mimetypes.guess_type(name)[0] or "", content_hash=content_hash, size=size,
        inline=inline, blob=blob, meta=meta, dedupe=dedupe,
    )  # fmt: skip
    return with_limit(document, pipeline)


@contextmanager
def naming(entry: str) -> Iterator[None]:
    """Let a UsageError say of which of several entries it is."""
    try:
        yield
    except UsageError as error:
        if entry:
            error.args = (f"{entry}: {error}",)
        raise


def is_named(document: NewDocument) -> bool:
    """Whether somebody gave a URL another name than itself."""
    return (
        document.kind == "url"
        and document.inline is not None
        and document.name != document.inline.decode()[:NAME_MAX]
    )


def first_job(pipeline: Pipeline, policy: Policy | None = None) -> NewJob:
    """A job that starts at the pipeline's first stage."""
    stage = pipeline.stages[0]
    return NewJob(
        pipeline.name,
        pipeline.queue,
        stage.name,
        stage.lane,
        policy=policy or pipeline.policy,
        lease_ms=stage.lease_ms,
    )


def with_limit(document: NewDocument, pipeline: Pipeline) -> NewDocument:
    """The document with the concurrency key that its pipeline gives it."""
    d = document
    record = DocumentRecord(
        d.id, d.org, d.collection, d.job.pipeline, d.kind, d.name, d.media_type, d.content_hash, d.size, d.inline,
        d.blob, d.meta, d.parent_id, 0,
    )  # fmt: skip
    key = limit_key(record, pipeline)
    if key is None:
        return document
    return replace(d, job=replace(d.job, limit_key=key, limit_each=pipeline.concurrency_per_key))


def limit_key(record: DocumentRecord, pipeline: Pipeline) -> str | None:
    """What the document shares a concurrency limit with."""
    key = pipeline.concurrency_key(Document(record)) if pipeline.concurrency_key is not None else None
    if key is not None and is_gate(key):
        reserved = f"a concurrency key must not begin with {ORG} or {DEPENDENCY}, as {key!r} does"
        message = f"{reserved}: limits of those hold in every pipeline without a key"
        raise InputInvalid(message, code="limit_key_reserved")
    return None if key is None else checked(key, "the concurrency key", INDEXED_MAX)


async def keep(
    content: bytes, blobs: Blobs, inline_max: int = INLINE_BYTES_MAX
) -> tuple[bytes | None, str | None]:
    """Small content stays in its row, large content becomes a blob: (inline, blob)."""
    if len(content) <= inline_max:
        return content, None
    return None, await blobs.put(content)


def _key_dedupe(key: str) -> str:
    hashed = hashlib.sha256(key.encode()).hexdigest()
    return f"key:{key}" if len(key) <= INDEXED_MAX else f"key-sha256:{hashed}"


def meta_bytes(meta: object) -> bytes:
    """The metadata as it is stored. Raises: InputInvalid, InputTooLarge."""
    if not isinstance(meta, dict | None):
        raise InputInvalid(f"meta takes a dict, not {type(meta).__name__}")
    encoded = _json(meta or {}, "meta")
    if len(encoded) > META_BYTES_MAX:
        message = f"meta has {len(encoded)} bytes, the most allowed is {META_BYTES_MAX}"
        raise InputTooLarge(message, code="meta_too_large")
    return encoded


def content_of(entry: Entry) -> Content:
    """The content of the entry as it is stored. Raises: InputInvalid."""
    if entry.content is not None:
        return entry.content
    given = [n for n in ("text", "url", "data", "json", "path") if getattr(entry, n) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "nothing"
        raise InputInvalid(f"hand in exactly one of text, url, data, json and path; got {found}")
    if entry.url is not None:
        return Content("url", entry.url.encode())
    if entry.text is not None:
        return Content("text", _text(entry.text))
    if entry.data is not None:
        if not isinstance(entry.data, bytes | bytearray | memoryview):
            raise InputInvalid(f"data takes bytes, not {type(entry.data).__name__}; use text= for str")
        return Content("bytes", bytes(entry.data))
    if entry.json is not None:
        return Content("json", _json(entry.json, "json"))
    path = Path(str(entry.path)).absolute()
    if path.is_dir():
        raise InputInvalid(f"{path} is a directory; name a file in it", code="file_missing")
    if not path.is_file():
        raise InputInvalid(f"there is no file {path}; check the path", code="file_missing")
    return Content("bytes", path)


def _text(text: object) -> bytes:
    if not isinstance(text, str):
        raise InputInvalid(f"text takes str, not {type(text).__name__}; use data= for bytes")
    try:
        encoded = text.encode()
    except UnicodeEncodeError:
        raise InputInvalid(
            "the text is not valid Unicode (lone surrogate); repair it first", code="text_broken"
        ) from None
    if b"\0" in encoded:
        raise InputInvalid("the text contains a NUL character; remove it", code="text_nul")
    return encoded


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputInvalid(f"{path} cannot be read: {error.strerror}", code="file_unreadable") from error


def _json(value: Any, what: str) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputInvalid(f"{what} cannot be stored as JSON: {error}", code="not_serialisable") from None


async def _keep(
    content: bytes | Path, blobs: Blobs, bytes_max: int
) -> tuple[bytes | None, str | None, str, int]:
    size = content.stat().st_size if isinstance(content, Path) else len(content)
    if size > bytes_max:
        raise InputTooLarge(f"the document has {size} bytes, the most allowed is {bytes_max}")
    if isinstance(content, Path):
        if size > INLINE_BYTES_MAX:
            digest, size = await blobs.put_file(content)
            return None, digest, digest, size
        content = _read(content)
    inline, blob = await keep(content, blobs)
    return inline, blob, blob or hashlib.sha256(content).hexdigest(), len(content)


def _job(entry: Entry, pipeline: Pipeline) -> NewJob:
    _whole("priority", entry.priority, -PRIORITY_BOUND, PRIORITY_BOUND)
    _seconds("delay_s", entry.delay_s)
    if entry.attempts is not None:
        _whole("attempts", entry.attempts, 1, ATTEMPTS_MAX)
    if entry.backoff_s is not None:
        _seconds("backoff_s", entry.backoff_s)
    if not isinstance(entry.run_at, datetime | None):
        raise InputInvalid(f"run_at takes a datetime, not {type(entry.run_at).__name__}")
    if entry.run_at is not None and entry.run_at.tzinfo is None:
        raise InputInvalid("run_at has no time zone; use datetime.now(timezone.utc) or the like")
    policy = pipeline.policy_of(entry.collection)
    if entry.attempts is not None or entry.backoff_s is not None:
        policy = replace(
            policy,
            attempts=entry.attempts if entry.attempts is not None else policy.attempts,
            base_ms=int(entry.backoff_s * 1000) if entry.backoff_s is not None else policy.base_ms,
            pinned=True,
        )
    return replace(
        first_job(pipeline, policy),
        priority=entry.priority,
        run_at_ms=moment_ms(entry.run_at),
        delay_ms=int(entry.delay_s * 1000),
    )


def _whole(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or not least <= value <= most:
        raise InputInvalid(f"{name} must be a whole number from {least} to {most}, not {value!r}")


def _seconds(name: str, value: object) -> None:
    if not isinstance(value, int | float) or not 0 <= value <= SECONDS_MAX:
        raise InputInvalid(f"{name} must be from 0 to {SECONDS_MAX:.0f} seconds, not {value!r}")


def moment_ms(at: datetime | None) -> int | None:
    """A time to wait for, in milliseconds since 1970; InputInvalid where it lies so far ahead that in another time zone
    it could not be written."""
    if at is None:
        return None
    if at.year >= MAXYEAR:
        raise InputInvalid(f"a time before the year {MAXYEAR} is wanted, not {at.isoformat()}")
    return max(0, int(at.timestamp() * 1000))
