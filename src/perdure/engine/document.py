"""The document as stage code sees it: what came in, read when asked for.

Built by the runner from a DocumentRecord; `to_payload` and `from_payload` carry it into a process of its own.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from perdure.engine import rooms
from perdure.errors import Permanent
from perdure.store.records import DocumentRecord

_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,16}")


class BlobReader(Protocol):
    """Reads blobs from code without an event loop."""

    def get_sync(self, digest: str) -> bytes:
        """The blob's bytes, verified."""
        ...

    def path_sync(self, digest: str) -> Path | None:
        """The blob as a local file for reading only, where there is one."""
        ...


class Document:
    """What was handed in. Attributes are at hand; `data`, `text`, `json` and `path` read the content at first use."""

    __slots__ = ("_blobs", "_data", "_meta", "_record", "_temporary")

    def __init__(self, record: DocumentRecord, blobs: BlobReader | None = None) -> None:
        self._record = record
        self._blobs = blobs
        self._data = record.inline
        self._meta: dict[str, Any] | None = None
        self._temporary: Path | None = None

    def __repr__(self) -> str:
        return f"<Document {self.id} {self.name!r} {self.size} bytes>"

    @property
    def id(self) -> str:
        return self._record.id

    @property
    def org(self) -> str:
        """The organisation it belongs to."""
        return self._record.org

    @property
    def name(self) -> str:
        """The name it came with, often a file name; may be empty."""
        return self._record.name

    @property
    def collection(self) -> str:
        return self._record.collection

    @property
    def media_type(self) -> str:
        """As given or guessed at intake; may be empty."""
        return self._record.media_type

    @property
    def kind(self) -> str:
        """How it was handed in: text, url, bytes or json."""
        return self._record.kind

    @property
    def url(self) -> str | None:
        """Where it is to be fetched from, if it was handed in as a URL."""
        return self.text if self.kind == "url" else None

    @property
    def size(self) -> int:
        """Bytes of the content."""
        return self._record.size

    @property
    def content_hash(self) -> str:
        return self._record.content_hash

    @property
    def blob(self) -> str | None:
        """The name of the blob that has the content; None where that is small and in its row."""
        return self._record.blob

    @property
    def parent_id(self) -> str | None:
        """The document whose stage made this one."""
        return self._record.parent_id

    @property
    def meta(self) -> dict[str, Any]:
        """What was handed in beside the content. Changes to this dict are not kept."""
        if self._meta is None:
            self._meta = json.loads(self._record.meta or b"{}")
        return self._meta

    @property
    def data(self) -> bytes:
        """The content as bytes."""
        if self._data is None:
            blob, blobs = self._blob()
            self._data = blobs.get_sync(blob)
        return self._data

    @property
    def text(self) -> str:
        """The content as UTF-8 text; Permanent(text_broken) if it is not."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            message = f"{self._title()} is not UTF-8 text: {error.reason} at byte {error.start}"
            raise Permanent("text_broken", message) from error

    @property
    def json(self) -> Any:
        """The content parsed as JSON; Permanent(json_broken) if it is not."""
        try:
            return json.loads(self.text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise Permanent("json_broken", f"{self._title()} is not JSON: {error}") from error

    @property
    def path(self) -> Path:
        """The content as a local file, for reading only; gone after the stage."""
        if self._temporary is not None:
            return self._temporary
        if self._record.blob is not None:
            blob, blobs = self._blob()
            stored = blobs.path_sync(blob)
            if stored is not None:
                return stored
        suffix = Path(self.name).suffix
        name = f"document{suffix if _SUFFIX.fullmatch(suffix) else ''}"
        self._temporary = rooms.new_room() / name
        self._temporary.write_bytes(self.data)
        return self._temporary

    def file_of(self, blob: str) -> Path:
        """What was fetched for the document, as a local file, for reading only. `blob`: as the output of the stage that
        fetched it names it."""
        path = self._blobs.path_sync(blob) if self._blobs is not None else None
        if path is None:
            raise Permanent("content_missing", f"what was fetched for {self._title()} is not here")
        return path

    def close(self) -> None:
        """Remove the temporary file, if `path` made one, and forget content that was read from a blob."""
        if self._temporary is not None:
            rooms.remove(self._temporary.parent)
        self._temporary = None
        self._data = self._record.inline

    def beside(self, blobs: BlobReader) -> Document:
        """The same document with another reader of blobs."""
        return Document(self._record, blobs)

    def to_payload(self) -> dict[str, Any]:
        """Everything but the blob, as JSON values."""
        payload = asdict(self._record)
        inline = self._record.inline
        payload["inline"] = None if inline is None else base64.b64encode(inline).decode()
        payload["meta"] = self._record.meta.decode()
        return payload

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any], blobs: BlobReader | None = None) -> Document:
        """The same document in another process."""
        record = DocumentRecord(**payload)
        inline = payload["inline"]
        return cls(
            replace(
                record,
                inline=None if inline is None else base64.b64decode(inline),
                meta=payload["meta"].encode(),
            ),
            blobs,
        )

    def _blob(self) -> tuple[str, BlobReader]:
        if self._record.blob is None or self._blobs is None:
            raise Permanent("content_missing", f"{self._title()} has no content here")
        return self._record.blob, self._blobs

    def _title(self) -> str:
        return f"document {self.id} ({self.name})" if self.name else f"document {self.id}"
