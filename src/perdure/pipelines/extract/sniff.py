"""What a document is, told from its first bytes and not from its name.

What stands at the first byte decides, so a file that is two things at once gets the answer that can do less: an image
or an archive that also is HTML is an image or an archive; a PDF signature later in the head counts if no markup stands
before it, and is nothing that is read otherwise. Name and declared type only choose among kinds of text.
"""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import IO

HEAD_BYTES = 64 * 1024
MEMBER_LIST_BYTES_MAX = 1 << 20  # ten thousand members, which is the most that is read

PDF = "application/pdf"
EPUB = "application/epub+zip"
DOCX = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
PPTX = "application/vnd.openxmlformats-officedocument.presentationml.presentation"
ODT = "application/vnd.oasis.opendocument.text"
ZIP = "application/zip"
OLE = "application/x-ole-storage"  # Word and Excel before 2007, and OOXML under a password
HTML = "text/html"
XML = "application/xml"
MARKDOWN = "text/markdown"
TEXT = "text/plain"
MAIL = "message/rfc822"
MBOX = "application/mbox"
BINARY = "application/octet-stream"

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"II+\x00\x08\x00\x00\x00", "image/tiff"),  # BigTIFF
    (b"MM\x00+\x00\x08\x00\x00", "image/tiff"),
    (b"\x1f\x8b", "application/gzip"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", OLE),
    (b"BZh", "application/x-bzip2"),
    (b"\xfd7zXZ\x00", "application/x-xz"),
    (b"7z\xbc\xaf\x27\x1c", "application/x-7z-compressed"),
    (b"Rar!\x1a\x07", "application/vnd.rar"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"\x7fELF", "application/x-elf"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "image/jp2"),
    (b"\xff\x4f\xff\x51", "image/jp2"),
    (b"!<arch>\n", "application/x-archive"),
    (b"SQLite format 3\x00", "application/vnd.sqlite3"),
    (b"%!PS", "application/postscript"),
    (b"{\\rtf", "application/rtf"),
)
_BRANDS = {
    b"avif": "image/avif", b"avis": "image/avif",
    b"heic": "image/heic", b"heix": "image/heic", b"hevc": "image/heic", b"mif1": "image/heic", b"msf1": "image/heic",
}  # fmt: skip
_BITMAP_HEADS = {12, 16, 40, 52, 56, 64, 108, 124}  # bytes of the second header of a BMP
_ANYMAP_GAP = rb"(?:\s|#[^\r\n]*+[\r\n])++"
_ANYMAP = re.compile(
    rb"P(?:[1-6]" + _ANYMAP_GAP + rb"\d{1,9}" + _ANYMAP_GAP + rb"\d{1,9}\s|7\n(?:#[^\n]*+\n)*+WIDTH )"
)
_TAR = slice(257, 262)
_OFFICE = (("word/", DOCX), ("xl/", XLSX), ("ppt/", PPTX))
_LOCAL_HEADER = re.compile(rb"PK\x03\x04.{26}([\x21-\x7e]{1,200}?)(?=[^\x20-\x7e]|<|$)", re.S)
_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body)\b", re.I)
_HTML_TAG = re.compile(
    rb"<(?:!doctype\s+html|html|head|body|title|h[1-6]|p|div|span|table|a|br|ul|ol|article|script|style|meta)\b[^<]*>",
    re.I,
)
_PROLOGUE = re.compile(rb"(?:\s+|<\?xml[^>]*>|<!--.*?-->)*", re.S)
_HEADER = re.compile(rb"([!-9;-~]+):[ \t]?[^\r\n]*(?:\r?\n[ \t][^\r\n]*)*\r?\n")
_MBOX = re.compile(rb"From [^\r\n]{3,200} \d{4}(?: [+-]\d{4})?\r?\n(?=>?[!-9;-~]+:)")
_MAIL_HEADERS = set(
    b"from to cc subject date received return-path message-id mime-version delivered-to reply-to content-type "
    b"dkim-signature in-reply-to sender list-id".split()
)
_MAIL_EXTRAS = (b"x-", b"arc-", b"list-", b"authentication-", b"received-", b"resent-", b"content-", b"dkim-")
_HEADERS_MAX = 200
_EMPTY_LINES = re.compile(rb"[\r\n]{0,16}")
_TEXT_NAMES = {
    "md": MARKDOWN,
    "markdown": MARKDOWN,
    "mkd": MARKDOWN,
    "html": HTML,
    "htm": HTML,
    "xhtml": HTML,
}
_ANYMAP_BYTES = 1_024
_NULS_SHARE = 0.3
_CONTROLS = bytes(range(32)).translate(None, b"\t\n\r\f\b\x1b")


def sniff(head: bytes, name: str = "", declared: str = "") -> str:
    """The media type of a document that begins with `head` (64 KB do, the whole is better for archives)."""
    for signature, kind in _SIGNATURES:
        if head.startswith(signature):
            return kind
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return _zip_kind(head)
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], BINARY)
    if picture := _plain_picture(head):
        return picture
    if _is_pdf(head):
        return PDF
    if b"%PDF-" in head[:1024] or head[_TAR] == b"ustar" or not looks_like_text(head):
        return BINARY
    return _text_kind(head, name, declared)


def _plain_picture(head: bytes) -> str:
    """A BMP or a portable anymap, whose signatures are two letters that a text may begin with; else nothing."""
    if (
        head[:2] == b"BM"
        and head[6:10] == bytes(4)
        and int.from_bytes(head[14:18], "little") in _BITMAP_HEADS
    ):
        return "image/bmp"
    return "image/x-portable-anymap" if _ANYMAP.match(head[:_ANYMAP_BYTES]) else ""


def looks_like_text(head: bytes) -> bool:
    """Whether people can read it: nearly no control bytes, or a Unicode encoding whose zeros are letters."""
    sample = head[:HEAD_BYTES]
    if head.startswith(_BOMS[1:]) or wide_encoding(head):
        return _reads(sample)
    if sample.count(0) > _NULS_SHARE * len(sample):
        return False
    controls = len(sample) - len(sample.translate(None, _CONTROLS)) - sample.count(0)
    try:
        sample.decode()
        readable = True
    except UnicodeDecodeError as error:
        readable = error.start >= len(sample) - 3 and len(sample) >= HEAD_BYTES
    return controls <= max(1, (0.05 if readable else 0.01) * len(sample))


def _reads(sample: bytes) -> bool:
    """Whether it is text in UTF-16: numbers of two bytes look like it, and have controls and unused characters."""
    text = sample[: len(sample) & ~1].decode(wide_encoding(sample) or "utf-16", "replace")
    strange = sum(
        not (char.isprintable() or char.isspace() or char in "\ufeff\u200b\u200e\u200f") for char in text
    )
    return strange + text.count("\ufffd") <= 0.05 * len(text)


def wide_encoding(head: bytes) -> str:
    """utf-16-le or utf-16-be if every other byte is zero, without a byte order mark; else nothing."""
    sample = head[:2048]
    half = len(sample) // 2
    if half < 4:
        return ""
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    if odd > 0.7 * half and even < 0.05 * half:
        return "utf-16-le"
    return "utf-16-be" if even > 0.7 * half and odd < 0.05 * half else ""


def _is_pdf(head: bytes) -> bool:
    at = head[:1024].find(b"%PDF-")
    return at == 0 or (at > 0 and b"<" not in head[:at])


def _zip_kind(head: bytes) -> str:
    if head[30:58] == b"mimetypeapplication/epub+zip":
        return EPUB
    if head[30:77] == b"mimetype" + ODT.encode():
        return ODT
    names = _members(io.BytesIO(head)) or [
        found.decode("latin-1")
        for found in _LOCAL_HEADER.findall(head[:HEAD_BYTES])  # only the head is here
    ]
    return _kind_of(names)


def zip_kind(path: Path) -> str:
    """What a zip file is, by its list of members."""
    with path.open("rb") as file:
        return _kind_of(_members(file))


def _members(file: IO[bytes]) -> list[str]:
    """The names of the members; none if the list is broken, or longer than any of a document: whoever takes an upload
    in asks, and a list may have millions."""
    try:
        end = zipfile._EndRecData(file)  # type: ignore[attr-defined] # as ZipFile reads it, or the two could differ
        if end is None or end[zipfile._ECD_SIZE] > MEMBER_LIST_BYTES_MAX:  # type: ignore[attr-defined]
            return []
        with zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, EOFError):
        return []


def _kind_of(names: list[str]) -> str:
    if "[Content_Types].xml" in names:
        return next((kind for folder, kind in _OFFICE if any(name.startswith(folder) for name in names)), ZIP)
    return EPUB if "META-INF/container.xml" in names and "mimetype" in names else ZIP


def _text_kind(head: bytes, name: str, declared: str) -> str:
    head = head[:HEAD_BYTES]
    wide = wide_encoding(head) or ("utf-16" if head.startswith(_BOMS[1:]) else "")
    if wide:
        head = head.decode(wide, "ignore").encode(errors="ignore")
    head = head.removeprefix(_BOMS[0])
    start = head[_end(_PROLOGUE.match(head)) :]
    if _HTML.match(start):
        return HTML
    if head.lstrip().startswith(b"<?xml") or start[:9].upper() == b"<!DOCTYPE":
        return HTML if re.search(rb"<html\b|<!doctype html", start[:4096], re.I) else XML
    if _MBOX.match(head):
        return MBOX
    declared = declared.partition(";")[0].strip().lower()
    if _is_mail(head, declared == MAIL or name.lower().endswith(".eml")):
        return MAIL
    named = _TEXT_NAMES.get(name.rpartition(".")[2].lower(), "") if "." in name else ""
    wanted = declared if declared in (HTML, MARKDOWN, "application/xhtml+xml") else named
    if wanted == MARKDOWN:
        return MARKDOWN
    has_tags = _HTML_TAG.match(start) if not wanted else _HTML_TAG.search(start)
    return HTML if has_tags and (wanted or declared != TEXT) else TEXT


def _is_mail(head: bytes, named: bool) -> bool:
    """Whether it begins with the headers of a message; `named`: it is said to be one, so fewer of them do."""
    at, known = _end(_EMPTY_LINES.match(head)), set()
    for _ in range(_HEADERS_MAX):
        header = _HEADER.match(head, at)
        if header is None:
            break
        known.add(header[1].lower())
        at = header.end()
    found = known & _MAIL_HEADERS
    usual = sum(not name.startswith(_MAIL_EXTRAS) for name in known)
    if named and head[at : at + 1] in (b"", b"\r", b"\n") and found:
        return True
    return (
        len(found) >= 2 and len(found) * 3 >= usual and bool(found & {b"from", b"received", b"return-path"})
    )


def _end(match: re.Match[bytes] | None) -> int:
    return 0 if match is None else match.end()
