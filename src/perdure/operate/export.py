"""Documents written to a file, one JSON object per line, with all that it takes to bring them back in another store.

    {"perdure": 1, "id", "org", "state", "document": {…}, "job": {…}, "dead": {…}, "attempts": […], "acts": […],
     "content_error", "content_sha256", "content"}

`content` (what was handed in, base64) is always the last key: a document of any size is written and read a piece at a
time and takes no more memory than a small one. The file appears under its name only when it is complete.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, nullcontext, suppress
from dataclasses import field
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from perdure.core.frozen import frozen
from perdure.errors import InputInvalid
from perdure.store.archive import Archived
from perdure.store.blobs import BlobCorrupt, BlobMissing, Blobs
from perdure.store.blobs.base import hash_file
from perdure.store.dead import Key
from perdure.store.sql_store import SqlStore

FORMAT = 1
STANDARD = "-"
WHOLE_BYTES = 1024 * 1024  # of a blob that is read into memory
PIECE = 3 * 256 * 1024  # becomes base64 without a remainder
CONTENT = b',"content":"'
PAGE = 30  # with content of up to WHOLE_BYTES each: documents that are read at a time

#: What a file leaves out of each row: it is said once for the document, or is its content.
_SAID = {"org", "id", "document_id", "inline", "blob", "state", "error_code", "error_message", "error_meta"}
_SAID_OF_JOB = _SAID | {"key", "state", "pipeline", "generation"}
_SAID_OF_DEAD = {"org", "document_id", "pipeline", "collection", "generation"}


#: Where an export goes.
Target = str | Path
#: A line without its content, and that.
Entry = tuple[dict[str, Any], bytes | Path | None]


@frozen
class Page:
    """What became of a page: the generation in which each document was exported, and what was wrong with others."""

    exported: dict[Key, int] = field(default_factory=dict)
    failed: dict[Key, str] = field(default_factory=dict)


class Writer:
    """A file that is there only when it is complete (`-`: standard output); compressed if its name ends in .gz.

    InputInvalid where there is one already: nothing that was exported is ever overwritten.
    """

    def __init__(self, target: Target) -> None:
        named = str(target)
        self.target = named if named == STANDARD else str(Path(named).absolute())
        self.lines = 0
        self._path: Path | None = None
        self._raw: IO[bytes] = sys.stdout.buffer
        self._file: IO[bytes] = self._raw

    def __enter__(self) -> Writer:
        if self.target == STANDARD:
            return self
        path = Path(self.target)
        if path.exists():
            raise _exists(path)
        try:
            number, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        except OSError as error:
            raise InputInvalid(
                f"{path} cannot be written: {error.strerror}", code="file_unwritable"
            ) from None
        self._path, self._raw = Path(name), os.fdopen(number, "wb")
        zipped = path.suffix == ".gz"
        self._file = gzip.GzipFile("", "wb", 6, self._raw) if zipped else self._raw  # type: ignore[assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is None:
            self._file.flush()
            return
        try:
            if kind is None:
                self._complete(self._path)
        finally:
            if not self._raw.closed:
                self._raw.close()
            with suppress(FileNotFoundError):
                self._path.unlink()

    def _complete(self, written: Path) -> None:
        if self._file is not self._raw:
            self._file.close()
        self._raw.flush()
        os.fsync(self._raw.fileno())
        try:
            os.link(written, self.target)  # unlike a rename it overwrites nothing
        except FileExistsError:
            raise _exists(Path(self.target)) from None
        directory = os.open(Path(self.target).parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def write(self, entries: Sequence[Entry]) -> None:
        """Documents, a line for each."""
        for head, content in entries:
            self._file.write(_opened(head))
            if content is None:
                self._file.write(b',"content":null}\n')
            else:
                self._file.write(CONTENT)
                self._encode(content)
                self._file.write(b'"}\n')
            self.lines += 1

    def _encode(self, content: bytes | Path) -> None:
        if isinstance(content, bytes):
            self._file.write(base64.b64encode(content))
            return
        with content.open("rb") as file:
            while piece := file.read(PIECE):
                self._file.write(base64.b64encode(piece))


async def export(writer: Writer, store: SqlStore, blobs: Blobs, which: Sequence[Key]) -> Page:
    """Write these documents, those that are there. One whose content is gone is written without, and has failed."""
    page = Page()
    small: list[Entry] = []
    for one in await store.archived(which):
        with tempfile.TemporaryDirectory(prefix="perdure-export-") if large(one) else nullcontext("") as room:
            content, digest, problem = await _content(one, blobs, room)
            small.append((head(one, digest, problem), content))
            if room:
                await asyncio.to_thread(writer.write, small)
                small = []
        if problem is None:
            page.exported[one.key] = one.document["generation"]
        else:
            page.failed[one.key] = problem
    await asyncio.to_thread(writer.write, small)
    return page


async def line(one: Archived, blobs: Blobs) -> AsyncGenerator[bytes, None]:
    """A document's line, a piece at a time: content that is large is read twice and kept nowhere, because what is wrong
    with it is said before it. Raises: StoreError if it was right and no longer is."""
    content, problem, blob = one.document["inline"] or b"", None, one.document["blob"]
    try:
        if large(one):
            async with aclosing(blobs.stream(blob)) as pieces:
                async for _ in pieces:
                    pass
        elif blob is not None:
            content = await blobs.get(blob)
    except (BlobMissing, BlobCorrupt) as error:
        problem = str(error)
    digest = None if problem else blob or hashlib.sha256(content).hexdigest()
    yield await asyncio.to_thread(lambda: _opened(head(one, digest, problem)))
    if problem:
        yield b',"content":null}\n'
        return
    yield CONTENT
    if large(one):
        async with aclosing(blobs.stream(blob)) as pieces:
            async for text in encoded(pieces):
                yield text
    else:
        yield base64.b64encode(content)
    yield b'"}\n'


async def encoded(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The bytes in base64 as one text, a piece at a time: padding stands at its end alone."""
    rest = b""
    async for piece in pieces:
        rest += piece
        whole = len(rest) // 3 * 3
        if whole:
            yield base64.b64encode(rest[:whole])
        rest = rest[whole:]
    if rest:
        yield base64.b64encode(rest)


def _opened(head: dict[str, Any]) -> bytes:
    """A line's beginning, open for its content."""
    return json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()[:-1]


def large(one: Archived) -> bool:
    """Whether its content is not read into memory as a whole."""
    return one.document["blob"] is not None and one.document["size"] > WHOLE_BYTES


def head(one: Archived, digest: str | None, problem: str | None = None) -> dict[str, Any]:
    """A line without its content."""
    d = one.document
    document = _without(d, _SAID) | {"meta": json.loads(d["meta"])}
    job = one.job and _without(one.job, _SAID_OF_JOB) | {"policy": _loaded(one.job["policy"])}
    error = {"message": d["error_message"], "meta": _loaded(d["error_meta"])}
    return {
        "perdure": FORMAT, "id": d["id"], "org": d["org"], "state": d["state"], "document": document, "job": job,
        "dead": one.dead and _without(one.dead, _SAID_OF_DEAD) | error | {"exhausted": bool(one.dead["exhausted"])},
        "attempts": [
            _without(a, _SAID) | {"error_code": a["error_code"], "charged": bool(a["charged"]),
                                  "requests": _loaded(a["requests"])}
            for a in one.attempts
        ],
        "acts": [{name: a[name] for name in ("at_ms", "who", "verb", "reason")} for a in one.acts],
        "content_error": problem, "content_sha256": digest,
    }  # fmt: skip


async def _content(
    one: Archived, blobs: Blobs, room: str
) -> tuple[bytes | Path | None, str | None, str | None]:
    """What was handed in, its hash, and why it is not there."""
    inline, blob = one.document["inline"], one.document["blob"]
    if blob is None:
        return inline or b"", hashlib.sha256(inline or b"").hexdigest(), None
    try:
        if not room:
            return await blobs.get(blob), blob, None
        copy = await blobs.open_copy(blob, Path(room))
        return copy, (await asyncio.to_thread(hash_file, copy))[0], None
    except (BlobMissing, BlobCorrupt) as error:
        return None, None, str(error)


def _without(row: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def _loaded(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _exists(path: Path) -> InputInvalid:
    return InputInvalid(f"there is a file {path} already; name another", code="file_exists")
