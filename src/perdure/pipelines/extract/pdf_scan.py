"""A look at a PDF before PDFium opens it: what its streams unpack to and whether they are whole.

PDFium unpacks and parses a page in one call that cannot be stopped: a file of 1 MB takes gigabytes, and a damaged
stream gives a page with less text and no error. Both are found here, for a tenth of the time that extraction takes.
Streams are found by their keywords, not through the cross reference table, so a broken table hides none. Encrypted
streams cannot be looked into; the limits of the cell hold for those.
"""

from __future__ import annotations

import mmap
import re
import zlib
from collections import Counter
from itertools import islice

from perdure.core.frozen import frozen
from perdure.errors import Permanent
from perdure.pipelines.extract import caps
from perdure.pipelines.extract.caps import bomb

_STREAM = re.compile(rb">>\s{0,8}stream(?:\r\n|\n|\r)")
_OBJECT = re.compile(rb"(\d{1,10})\s+\d{1,5}\s+obj$")
_CONTENTS = re.compile(rb"/Contents\s*\[([\d\sR]*)\]")
_REFERENCE = re.compile(rb"(\d{1,10})\s+\d+\s+R")
_LENGTH = re.compile(rb"/Length\s+(\d{1,12})\b(?!\s+\d+\s+R)")
_FILTERS = re.compile(rb"/(FlateDecode|Fl|LZWDecode|ASCII85Decode|ASCIIHexDecode|RunLengthDecode)\b")
_PICTURES = re.compile(rb"/Subtype\s*/Image\b|/(?:DCT|JPX|CCITTFax|JBIG2)Decode\b")
_NAMED = re.compile(rb"(?<![\w/.])(\d{1,3})(?![\w.])|/([^\s/\[\]<>()]{1,40})")
_LISTS_MAX, _LIST_BYTES_MAX, _CODES_MAX = 1_000, 8 * 1024, 32
_HEAD_BYTES = 16 * 1024
_STEP = 1 << 16
_SLICE = 1 << 20

File = mmap.mmap | bytes


@frozen
class Scanned:
    """What the look at a PDF has told. `ligatures`: letters by the codes of fonts that name them in a way that PDFium
    does not know (`f_i`); `portfolio`: its files are the document."""

    ligatures: dict[int, str]
    portfolio: bool


def scan(data: File) -> Scanned:
    """Permanent: document_bomb or document_corrupt."""
    names = _Names()
    names.look(data)
    portfolio = data.find(b"/Collection") >= 0
    encrypted = data.rfind(b"/Encrypt") >= 0
    weights: dict[int, tuple[int, int]] = {}  # object → (bytes, operators that show text)
    pages: list[bytes] = [found[1] for found in _CONTENTS.finditer(data)]
    at = 0
    while found := _STREAM.search(data, at):
        number, head = _opening(data, at, found.start())
        at = found.end()
        filters = _FILTERS.findall(head)
        if _PICTURES.search(head) or encrypted or not set(filters) <= {b"FlateDecode", b"Fl"}:
            at = _past(data, at, head)
        elif filters and not data[at : at + 12].lstrip().startswith(b"endstream"):
            stream = _Stream(number, len(filters), names if b"/ObjStm" in head else None)
            at = stream.unpack(data, at)
            weights[number] = (stream.size, stream.shows)
            pages += stream.pages
            portfolio = portfolio or stream.portfolio
        else:
            end = _past(data, at, head)
            slices = (data[start : min(start + _SLICE, end)] for start in range(at, end, _SLICE))
            weights[number] = (end - at, sum(map(_count_shows, slices)))
            at = end
    _check_pages(weights, pages)
    return Scanned(_ligatures(names.lists), portfolio)


class _Stream:
    """One packed stream, unpacked piece by piece and forgotten."""

    def __init__(self, number: int, layers: int, names: _Names | None) -> None:
        self.size = self.shows = 0
        self.pages: list[bytes] = []
        self.portfolio = False
        self._number = number
        self._layers = [zlib.decompressobj(-15 if layer == 0 else 15) for layer in range(layers)]
        self._sum = 1
        self._names = names  # where it holds objects, pages among them
        self._tail = b""

    def unpack(self, data: File, at: int) -> int:
        """Where it ends."""
        first = self._layers[0]
        at += 2  # what kind of zlib stream it is; the checksum is looked at here, because some writers forget it
        try:
            while not first.eof and at < len(data):
                piece = bytes(data[at : at + _STEP])
                at += len(piece)
                self._feed(piece, 0)
        except zlib.error as error:
            raise self._damaged(str(error)) from error
        if not first.eof:
            raise self._damaged("it ends too early")
        at -= len(first.unused_data)
        if data[at : at + 4] != self._sum.to_bytes(4) and b"e" not in data[at : at + 3]:
            raise self._damaged("its checksum is wrong")
        return at

    def _feed(self, piece: bytes, layer: int) -> None:
        if layer == len(self._layers):
            self._see(piece)
            return
        unpacker = self._layers[layer]
        while piece and not unpacker.eof:
            unpacked = unpacker.decompress(piece, _SLICE)
            piece = unpacker.unconsumed_tail
            if layer == 0:
                self._sum = zlib.adler32(unpacked, self._sum)
            if unpacked:
                self._feed(unpacked, layer + 1)

    def _see(self, text: bytes) -> None:
        self.size += len(text)
        if self.size > caps.STREAM_BYTES_MAX:
            raise bomb(f"object {self._number} unpacks to more than {caps.STREAM_BYTES_MAX} bytes")
        self.shows += _count_shows(text)
        if self.shows > caps.PAGE_SHOWS_MAX:
            raise bomb(f"object {self._number} shows text more than {caps.PAGE_SHOWS_MAX} times")
        if self._names is not None:
            seen = self._tail + text
            self.pages += [found[1] for found in _CONTENTS.finditer(seen)]
            self._names.look(text)
            self.portfolio = self.portfolio or b"/Collection" in text
            last = seen.rfind(b"/Contents")
            self._tail = seen[last:] if last >= 0 and b"]" not in seen[last:] else b""
            if len(self._tail) > _SLICE:  # and each piece would be looked at again and again
                raise bomb(f"object {self._number} has a list of contents without end")

    def _damaged(self, why: str) -> Permanent:
        return Permanent("document_corrupt", f"the stream of object {self._number} is damaged: {why}")


class _Names:
    """How fonts name their letters, by code: the first thousand lists of the whole file."""

    def __init__(self) -> None:
        self.lists: list[bytes] = []
        self._left = _LISTS_MAX

    def look(self, data: File) -> None:
        at = data.find(b"/Differences") if self._left else -1
        while at >= 0 and self._left:
            self._left -= 1
            end = data.find(b"]", at, at + _LIST_BYTES_MAX)
            if end >= 0:
                self.lists.append(bytes(data[at:end]))
            at = data.find(b"/Differences", max(at + 1, end))


def _ligatures(lists: list[bytes]) -> dict[int, str]:
    """Letters by code, of names like f_f_i; where fonts differ, those of most of them."""
    votes: dict[int, Counter[str]] = {}
    for listed in lists:
        code = 0
        for number, name in _NAMED.findall(listed):
            if number:
                code = int(number)
                continue
            letters = name.decode("latin-1").split("_")
            if code < _CODES_MAX and len(letters) > 1 and all(len(one) == 1 for one in letters):
                votes.setdefault(code, Counter())["".join(letters)] += 1
            code += 1
    return {code: counted.most_common(1)[0][0] for code, counted in votes.items()}


def _opening(data: File, begin: int, end: int) -> tuple[int, bytes]:
    # The number of the object whose stream begins at `end`, and its dictionary; the stream before ended at `begin`.
    begin = max(begin, end - _HEAD_BYTES)
    opened = data.rfind(b"obj", begin, end)
    number = _OBJECT.search(data[max(0, opened - 20) : opened + 3]) if opened >= 0 else None
    return int(number[1]) if number else 0, bytes(data[max(begin, opened) : end])


def _past(data: File, at: int, head: bytes) -> int:
    # The end of a stream that is not unpacked: where it says so, or at its keyword.
    said = _LENGTH.search(head)
    end = at + int(said[1]) if said else -1
    if at <= end <= len(data) and data[end : end + 12].lstrip().startswith(b"endstream"):
        return end
    found = data.find(b"endstream", at)
    end = found if found >= 0 else len(data)
    # PDFium looks for the end of each stream that begins here: time grows with the square of their number
    if next(islice(_STREAM.finditer(data, at, end), caps.OPEN_STREAMS_MAX, None), None):
        problem = f"more than {caps.OPEN_STREAMS_MAX} streams begin before one ends"
        raise Permanent("document_corrupt", problem)
    return end


def _count_shows(text: bytes) -> int:
    # As often as the letters occur: a little too much where the text itself has them.
    return text.count(b"Tj") + text.count(b"TJ")


def _check_pages(weights: dict[int, tuple[int, int]], pages: list[bytes]) -> None:
    # A page may name the same stream many times.
    pages = [*set(pages), *(b"%d 0 R" % number for number in weights)]
    for contents in pages:
        named = Counter(int(number) for number in _REFERENCE.findall(contents))
        size = sum(weights.get(number, (0, 0))[0] * times for number, times in named.items())
        shows = sum(weights.get(number, (0, 0))[1] * times for number, times in named.items())
        if size > caps.PAGE_BYTES_MAX or shows > caps.PAGE_SHOWS_MAX:
            raise bomb(f"a page unpacks to {size} bytes and shows text {shows} times")
