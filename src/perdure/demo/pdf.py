"""Two PDFs: a book that takes its reader a while, and one that no reader survives."""

from __future__ import annotations

import hashlib
import textwrap
import zlib
from collections.abc import Sequence

_PAGE = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents %s /Resources << /Font << /F1 3 0 R >> >> >>"
_FONT = b"<< /Type /Font /Subtype /Type1 /BaseFont /Times-Roman /Encoding /WinAnsiEncoding >>"
_LINE_CHARS = 74

#: Strokes of the engraving that every page is printed on. PDFium takes in each of them before it gives the words.
STROKES = 100_000
_HATCH = 1_000  # strokes after which the pattern begins again

#: What the bomb unpacks to, if it is let.
BOMB_MIB = 3_072
#: The filling that the PDF standard puts in the place of a password.
_FILLING = bytes.fromhex("28BF4E5E4E758A4164004E56FFFA01082E2E00B6D0683E802F0CA9FE6453697A")
_PERMISSIONS = -4


def book(title: str, pages: Sequence[str]) -> bytes:
    """A page for each text. All lie on an engraving of many strokes: real work for a reader, on every page anew."""
    stroke = b"%d %d m %d %d l S\n"
    hatch = b"".join(
        stroke % (x, y, x + 5, y + 3)
        for x, y in ((30 + n * 7 % 530, 40 + n * 11 % 760) for n in range(_HATCH))
    )
    engraving = b"q 0.2 w 0.9 G\n" + hatch * (STROKES // _HATCH) + b"Q"
    first, last = 6, 6 + 2 * len(pages)
    kids = b" ".join(b"%d 0 R" % number for number in range(first, last, 2))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, len(pages)),
        _FONT,
        _stream(zlib.compress(engraving), b"/FlateDecode"),
        b"<< /Title (%s) >>" % _escaped(title),
    ]
    for number, text in zip(range(first, last, 2), pages, strict=True):
        objects += [
            _PAGE % (b"[4 0 R %d 0 R]" % (number + 1)),
            _stream(zlib.compress(_printed(text)), b"/FlateDecode"),
        ]
    return _assembled(objects, b"/Info 5 0 R")


def bomb() -> bytes:
    """A few kilobytes, packed twice and encrypted with no password, so that nothing can look into it beforehand."""
    packed = _packed_zeros(BOMB_MIB)
    owner, itself = hashlib.sha256(b"nobody").digest(), hashlib.md5(b"bomb").digest()
    key = hashlib.md5(_FILLING + owner + _PERMISSIONS.to_bytes(4, "little", signed=True) + itself).digest()[
        :5
    ]
    of_page = hashlib.md5(key + bytes([4, 0, 0, 0, 0])).digest()[:10]  # for object 4, generation 0
    lock = b"<< /Filter /Standard /V 1 /R 2 /P %d /O <%s> /U <%s> >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [5 0 R] /Count 1 >>",
        _FONT,
        _stream(_rc4(of_page, zlib.compress(packed, 9)), b"[/FlateDecode /FlateDecode]"),
        _PAGE % b"4 0 R",
        lock % (_PERMISSIONS, owner.hex().encode(), _rc4(key, _FILLING).hex().encode()),
    ]
    return _assembled(objects, b"/Encrypt 6 0 R /ID [<%s> <%s>]" % ((itself.hex().encode(),) * 2))


def _packed_zeros(mib: int) -> bytes:
    """What zlib makes of so many MiB of zeros, without packing each of them: after a full flush all are alike."""
    packer = zlib.compressobj(9)
    header = packer.compress(b"") + packer.flush(zlib.Z_FULL_FLUSH)
    one = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    end = zlib.compressobj(9, wbits=-15).flush()
    checksum = (mib << 20) % 65_521 << 16 | 1  # Adler-32 of zeros
    return header + one * mib + end + checksum.to_bytes(4)


def _printed(text: str) -> bytes:
    lines = [b"(%s) Tj T*" % _escaped(line) for line in textwrap.wrap(text, _LINE_CHARS)]
    return b"BT /F1 13 Tf 18 TL 72 740 Td\n" + b"\n".join(lines) + b"\nET"


def _escaped(text: str) -> bytes:
    return text.encode("cp1252").replace(b"\\", rb"\\").replace(b"(", rb"\(").replace(b")", rb"\)")


def _stream(data: bytes, filters: bytes) -> bytes:
    return b"<< /Length %d /Filter %s >>\nstream\n%s\nendstream" % (len(data), filters, data)


def _assembled(objects: Sequence[bytes], trailer: bytes) -> bytes:
    out, places = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (
        len(places) + 1,
        trailer,
        table,
    )
    return bytes(out)


def _rc4(key: bytes, data: bytes) -> bytes:
    """The cipher of old PDFs; it is its own inverse."""
    state, j = list(range(256)), 0
    for i in range(256):
        j = (j + state[i] + key[i % len(key)]) % 256
        state[i], state[j] = state[j], state[i]
    out, i, j = bytearray(), 0, 0
    for byte in data:
        i = (i + 1) % 256
        j = (j + state[i]) % 256
        state[i], state[j] = state[j], state[i]
        out.append(byte ^ state[(state[i] + state[j]) % 256])
    return bytes(out)
