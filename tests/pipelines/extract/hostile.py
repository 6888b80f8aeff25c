"""Documents made to do harm, or damaged on the way. Each function gives the bytes of one."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from collections.abc import Iterable
from copy import copy

from perdure.demo.pdf import _packed_zeros as packed_zeros

MIB = 1 << 20
CONTAINER = (
    b'<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
    b'<rootfile full-path="book.opf"/></rootfiles></container>'
)
WORD = b'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
ENTITY_BOMB = (
    b'<!DOCTYPE html [<!ENTITY a "'
    + b"lol" * 100
    + b'">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + level, b"&%c;" % (97 + level) * 10) for level in range(9))
    + b"]>"
)
XXE = b'<!DOCTYPE html [<!ENTITY leak SYSTEM "file:///etc/passwd">]>'


def pdf(objects: Iterable[bytes], root: int = 1) -> bytes:
    """A PDF with these objects, numbered from 1."""
    out = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    places = []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(places) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root %d 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(places) + 1, root, table)
    return bytes(out)


def stream(data: bytes, entries: bytes = b"") -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), entries, data)


def page_pdf(content: bytes, contents: bytes = b"4 0 R") -> bytes:
    """One page that draws `content`, the body of object 4."""
    return pdf([
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %s /Resources << /Font << /F1 5 0 R >> >> >>"
        % contents,
        content,
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ])  # fmt: skip


def packed(pieces: Iterable[bytes], level: int = 9) -> bytes:
    packer = zlib.compressobj(level)
    return b"".join([*map(packer.compress, pieces), packer.flush()])


def good_pdf(text: bytes = b"Hello from a page") -> bytes:
    return page_pdf(stream(b"BT /F1 24 Tf 100 700 Td (%s) Tj ET" % text))


def flate_bomb() -> bytes:
    return page_pdf(stream(packed_zeros(300), b"/Filter /FlateDecode"))


def nested_flate_bomb() -> bytes:
    return page_pdf(stream(packed([packed_zeros(300)]), b"/Filter [/FlateDecode /FlateDecode]"))


def text_bomb(shows: int = 1_000_000) -> bytes:
    pieces = (b"(a) Tj " * 10_000 for _ in range(shows // 10_000))
    data = packed([b"BT /F1 12 Tf ", *pieces, b"ET"])
    return page_pdf(stream(data, b"/Filter /FlateDecode"))


def repeated_contents() -> bytes:
    """A small stream that one page names ten thousand times."""
    data = b"BT /F1 12 Tf " + b"(a) Tj " * 1_000 + b"ET"
    return page_pdf(stream(data), b"[" + b"4 0 R " * 10_000 + b"]")


def endless_contents(size: int = 20 * MIB) -> bytes:
    listed = packed([b"/Contents ["] + [b"1 0 R " * (MIB // 6)] * (size // MIB))
    return pdf([stream(listed, b"/Type /ObjStm /Filter /FlateDecode")])


def open_streams(count: int = 45_000) -> bytes:
    """Streams that begin and do not end: their reader looks for the end of each in all that follows."""
    begun = b"endobj\n4 0 obj\n<< /Length 49 >>\nstream\nBT /F1 24 Tf 100 700 Td "
    return good_pdf().replace(b"BT /F1", begun * count + b"BT /F1").replace(b"startxref", b"")


def page_loop() -> bytes:
    return pdf([
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Pages /Parent 2 0 R /Kids [2 0 R] /Count 1 >>",
    ])  # fmt: skip


def million_pages() -> bytes:
    """Three levels of a hundred, all the same page."""

    def level(child: int, count: int) -> bytes:
        return b"<< /Type /Pages /Count %d /Kids [%s] >>" % (count, b"%d 0 R " % child * 100)

    page = b"<< /Type /Page /MediaBox [0 0 612 792] >>"
    return pdf(
        [b"<< /Type /Catalog /Pages 2 0 R >>", level(3, 1_000_000), level(4, 10_000), level(5, 100), page]
    )


def zipped(members: Iterable[tuple[str, bytes]], *, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members:
            archive.writestr(
                zipfile.ZipInfo(name), data, method if name != "mimetype" else zipfile.ZIP_STORED
            )
    return out.getvalue()


def epub(chapters: Iterable[bytes], *more: tuple[str, bytes]) -> bytes:
    """A small book with these chapters."""
    bodies = list(chapters)
    items = b"".join(b'<item id="c%d" href="c%d.xhtml"/>' % (one, one) for one in range(len(bodies)))
    spine = b"".join(b'<itemref idref="c%d"/>' % one for one in range(len(bodies)))
    package = (
        b'<package xmlns="http://www.idpf.org/2007/opf" xmlns:dc="http://purl.org/dc/elements/1.1/"><metadata>'
        b"<dc:title>A book</dc:title><dc:language>en-GB</dc:language></metadata>"
        b"<manifest>%s</manifest><spine>%s</spine></package>" % (items, spine)
    )
    members = [
        ("mimetype", b"application/epub+zip"),
        ("META-INF/container.xml", CONTAINER),
        ("book.opf", package),
    ]
    members += [(f"c{one}.xhtml", body) for one, body in enumerate(bodies)]
    given = dict(more)
    return zipped([(name, given.pop(name, data)) for name, data in members] + list(given.items()))


def wide_zip_bomb() -> bytes:
    """A book of 65 chapters that claim 8 MiB each and share the bytes of one."""
    package = b"".join(
        b'<item id="c%d" href="c%d.xhtml"/><itemref idref="c%d"/>' % (n, n, n) for n in range(65)
    )
    text = bytes(range(97, 122)) * 335_000  # a little less than what may shrink by more than a hundred times
    out = io.BytesIO(epub([chapter(text)], ("book.opf", b"<package>%s</package>" % package)))
    with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED) as archive:
        first = archive.getinfo("c0.xhtml")
        for number in range(1, 65):
            other = copy(first)
            other.filename = f"c{number}.xhtml"
            archive.filelist.append(other)
        archive.writestr("end", b"")  # makes it write the list anew
    return out.getvalue()


def listed(name: str, times: int) -> bytes:
    """The list of a book that has this one chapter."""
    return b'<package><item id="a" href="%s"/>%s</package>' % (name.encode(), b'<itemref idref="a"/>' * times)


def chapter(body: bytes, doctype: bytes = b"") -> bytes:
    return b'%s<html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body>%s</body></html>' % (
        doctype,
        body,
    )


def docx(body: bytes, doctype: bytes = b"") -> bytes:
    document = b"%s<w:document %s><w:body>%s</w:body></w:document>" % (doctype, WORD, body)
    return zipped([("[Content_Types].xml", b"<Types/>"), ("word/document.xml", document)])


def paragraph(text: bytes) -> bytes:
    return b"<w:p><w:r><w:t>%s</w:t></w:r></w:p>" % text


def lying_size(archive: bytes, name: str) -> bytes:
    """The same archive, whose headers say that this member unpacks to ten bytes."""
    raw = bytearray(archive)
    for signature, size_at, name_at in ((b"PK\x03\x04", 22, 30), (b"PK\x01\x02", 24, 46)):
        at = raw.find(signature)
        while at >= 0:
            if raw[at + name_at : at + name_at + len(name)] == name.encode():
                struct.pack_into("<I", raw, at + size_at, 10)
            at = raw.find(signature, at + 1)
    return bytes(raw)


def locked_member(archive: bytes) -> bytes:
    """The same archive, whose members are said to be encrypted."""
    raw = bytearray(archive)
    for signature, flags_at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = raw.find(signature)
        while at >= 0:
            raw[at + flags_at] |= 1
            at = raw.find(signature, at + 1)
    return bytes(raw)


def flipped(data: bytes, seed: int, bits: int = 40) -> bytes:
    """With some bits turned over, not in the first hundred bytes."""
    chance = random.Random(seed)
    raw = bytearray(data)
    for _ in range(bits):
        raw[chance.randrange(100, len(raw))] ^= 1 << chance.randrange(8)
    return bytes(raw)


def nested_mail(depth: int = 1_500) -> bytes:
    out = [b"From: a@example.org\nSubject: deep\nMIME-Version: 1.0\n"]
    out += [
        b'Content-Type: multipart/mixed; boundary="b%d"\n\n--b%d\n' % (level, level) for level in range(depth)
    ]
    return b"".join([*out, b"Content-Type: text/plain\n\nbottom\n"])
