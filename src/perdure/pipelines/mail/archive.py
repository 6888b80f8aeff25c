"""An archive of mail as a stream of messages: an mbox, a single message, a Maildir, a directory of .eml files.

    with open_archive(path, known=mark) as archive:
        for entry in archive:               # nothing but the message in hand is in memory
            ...
    archive.mark                            # kept, and handed in the next time

The identity of a message follows from itself alone: Message-ID, date, sender and body, or all of its bytes if it has no
Message-ID. So copies that came by different ways are one message, two messages that share a Message-ID are two, and
whoever lists an archive again finds the same identities, in any order.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from perdure.core.fingerprint import digest
from perdure.core.frozen import frozen
from perdure.errors import Permanent, Transient
from perdure.pipelines.extract.sniff import HEAD_BYTES, MAIL, sniff
from perdure.pipelines.mail.headers import message_ids, raw_headers
from perdure.pipelines.mail.mbox import File, Memory, first, spans

MESSAGE_BYTES_MAX = 64 << 20
TOO_LARGE = "document_bomb"

_QUOTED_FROM = re.compile(rb"^>(>*From )", re.M)
_PIECE = 1 << 20


@frozen
class Entry:
    """A message as it lies in the archive: `length` bytes at `offset` of the file `name` ("": the archive itself).

    `data` is the message without what the archive added to it. `problem` is the code of why it cannot be taken
    (`document_bomb`: too large); then there is no data, and the identity is that of the place.
    """

    identity: str
    message_id: str
    offset: int
    length: int
    data: bytes
    name: str = ""
    problem: str = ""


@frozen
class Mark:
    """How far an mbox was listed: `sha256` names the bytes before `offset`, where its last message begins."""

    offset: int
    sha256: str


def open_archive(
    source: Path | str | bytes, known: Mark | None = None, *, bytes_max: int = MESSAGE_BYTES_MAX
) -> Archive:
    """Open an archive: a path, or the bytes of an mbox or a message. With `known`, an mbox that only grew is listed
    from its last known message on.

    Raises: Permanent(type_unsupported) if it is not an archive; FileNotFoundError.
    """
    return Archive(Path(source) if isinstance(source, str) else source, known, bytes_max)


class Archive:
    """Iterates over the messages, each identity once. Also a context manager."""

    def __init__(self, source: Path | bytes, known: Mark | None, bytes_max: int) -> None:
        self.listed = 0  # entries given
        self.duplicates = 0  # messages left out because they were given already
        self.resumed = False  # whether what was known already was passed over
        self.mark: Mark | None = None  # after the last entry, of an mbox
        self._known, self._bytes_max = known, bytes_max
        self._root = source if isinstance(source, Path) else None
        self._seen: set[bytes] = set()
        self._files: list[str] | None = None
        if isinstance(source, Path) and source.is_dir():
            self._files = message_files(source)
            return
        self._source = File(source) if isinstance(source, Path) else Memory(source)
        self._first = first(self._source)
        head = self._source.read(0, HEAD_BYTES)
        self._empty = len(head) == self._source.size and not head.strip(b"\x00\r\n")
        if self._first is None and not self._empty and sniff(head) != MAIL:
            self.close()
            raise Permanent("type_unsupported", "this is neither an mbox nor a message")

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._entries():
            key = bytes.fromhex(entry.identity)
            if key in self._seen:
                self.duplicates += 1
                continue
            self._seen.add(key)
            self.listed += 1
            yield entry

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._files is None:
            self._source.close()

    def _entries(self) -> Iterator[Entry]:
        if self._files is not None:
            for name in self._files:
                yield self._file(name)
        elif self._first is not None:
            yield from self._mbox(self._first)
        elif not self._empty:
            yield self._entry(self._source, 0, self._source.size)

    def _mbox(self, start: int) -> Iterator[Entry]:
        hashed = _Prefix(self._source)
        known = self._known
        if known is not None and start <= known.offset < self._source.size:
            self.resumed = hashed.upto(known.offset) == known.sha256
            if self.resumed:
                start = known.offset
            else:
                hashed = _Prefix(self._source)
        for begin, end in spans(self._source, start):
            start = begin
            yield self._entry(self._source, begin, end, quoted=True)
        self.mark = Mark(start, hashed.upto(start))

    def _file(self, name: str) -> Entry:
        assert self._root is not None
        try:
            file = File(self._root / name)
        except FileNotFoundError as error:  # a Maildir renames its files when they are read
            raise Transient(f"{name} is gone since the archive was listed", code="archive_changed") from error
        try:
            return self._entry(file, 0, file.size, name)
        finally:
            file.close()

    def _entry(
        self, source: File | Memory, begin: int, end: int, name: str = "", *, quoted: bool = False
    ) -> Entry:
        length = end - begin
        if length > self._bytes_max:
            place = digest("place", name, begin, length)[:32]
            return Entry(place, "", begin, length, b"", name, TOO_LARGE)
        data = _content(source, begin, length, quoted)
        identity, message_id = identify(data)
        return Entry(identity, message_id, begin, length, data, name)


def read_entry(source: Path | str | bytes, offset: int, length: int, name: str = "") -> bytes:
    """The data of an entry that was listed before; Transient(archive_changed) if it is not there any more."""
    source = Path(source) if isinstance(source, str) else source
    if isinstance(source, Path) and name:
        source = source / name
    try:
        opened = File(source) if isinstance(source, Path) else Memory(source)
    except FileNotFoundError as error:
        raise Transient(f"{name or source!r} is gone", code="archive_changed") from error
    try:
        return _content(opened, offset, length, quoted=opened.read(offset, 5) == b"From ")
    finally:
        opened.close()


def identify(data: bytes) -> tuple[str, str]:
    """The identity of a message, and its Message-ID ("" if it has none)."""
    headers, body = raw_headers(data, b"message-id", b"date", b"from")
    ids = message_ids(headers[b"message-id"])
    if not ids:
        return digest("message", _plain(data))[:32], ""
    hashed = hashlib.sha256(_plain(body)).digest()
    return digest("message", ids[0], headers[b"date"], headers[b"from"], hashed)[:32], ids[0]


def _plain(data: bytes) -> bytes:
    """Line ends and empty lines at the end make no difference."""
    return (data.replace(b"\r\n", b"\n") if b"\r" in data else data).rstrip(b"\n\x00")


def _content(source: File | Memory, begin: int, length: int, quoted: bool) -> bytes:
    data = source.read(begin, length)
    if len(data) < length:
        raise Transient("the archive became shorter while it was read", code="archive_changed")
    if not quoted:
        return data
    line = data.find(b"\n") + 1 or len(data)
    data = data[line:].rstrip(b"\x00")
    if data.endswith((b"\n\n", b"\n\r\n")):  # the empty line before the next message
        data = data[: -2 if data.endswith(b"\r\n") else -1]
    return _QUOTED_FROM.sub(rb"\1", data) if b">From " in data else data


def message_files(root: Path) -> list[str]:
    """The files of a Maildir (`cur` and `new`, also of its folders) or all *.eml, by name; links are not followed."""
    found = []
    for folder, folders, names in os.walk(root):
        folders.sort()
        here = Path(folder)
        if here.name in {"cur", "new"} and (here.parent / "cur").is_dir() and (here.parent / "new").is_dir():
            chosen = [name for name in names if not name.startswith(".")]
        else:
            chosen = [name for name in names if name.lower().endswith(".eml")]
        found += [str((here / name).relative_to(root)) for name in chosen if _is_file(here / name)]
    return sorted(found)


def _is_file(path: Path) -> bool:
    # Neither a link nor a pipe, which would wait for a writer for ever.
    return stat.S_ISREG(path.lstat().st_mode)


class _Prefix:
    """The hash of the first bytes of a source, of ever more of them."""

    def __init__(self, source: File | Memory) -> None:
        self._source, self._at, self._sha256 = source, 0, hashlib.sha256()

    def upto(self, end: int) -> str:
        while self._at < end and (piece := self._source.read(self._at, min(_PIECE, end - self._at))):
            self._sha256.update(piece)
            self._at += len(piece)
        return self._sha256.hexdigest()
