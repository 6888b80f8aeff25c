"""Text out of documents: PDF, EPUB, DOCX, HTML, Markdown, plain text, mail. Run it where it can be killed.

    with open_reader(doc.path, name=doc.name) as reader:
        parts = list(ctx.items(reader.parts, key=str, run=reader.read))     # each part is saved as it is read
        summary = summarise(parts, reader.title, reader.language)
        markdown = join(parts)

Whatever cannot be read raises Permanent with a code that says why; nothing is left out without a word.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perdure.errors import Permanent
from perdure.pipelines.extract import sniff as kinds
from perdure.pipelines.extract.part import (
    Heading,
    Part,
    Reader,
    Summary,
    anchor_at,
    anchors,
    join,
    summarise,
)
from perdure.pipelines.extract.sniff import sniff

__all__ = [
    "Heading", "Part", "Reader", "Summary", "anchor_at", "anchors", "extract", "join", "open_reader", "sniff",
    "sniff_file", "summarise",
]  # fmt: skip

#: What readers import when they are needed, for whoever starts a process for each document.
MODULES = (
    *(f"perdure.pipelines.extract.{kind}" for kind in ("docx", "epub", "mail", "page", "pdf", "text")),
    "charset_normalizer", "lxml.html", "pypdfium2", "trafilatura",
)  # fmt: skip
#: Raise it when a change gives other text for the same document.
VERSION = 5

_EXACT = {kinds.PDF, kinds.EPUB, kinds.DOCX}  # senders are often wrong about the rest
_VERBATIM = {kinds.TEXT, kinds.XML, kinds.MARKDOWN}
_ELSEWHERE = {kinds.MBOX: "; it holds many messages, the mail pipeline takes it apart"}


@contextmanager
def open_reader(
    source: Path | str | bytes,
    media_type: str = "",
    name: str = "",
    *,
    pictures: bool = True,
    ocr_language: str = "eng",
) -> Iterator[Reader]:
    """The document, ready to be read part by part.

    `media_type` is what it is said to be ("" if nobody said): Permanent(type_mismatch) where a PDF, EPUB or DOCX is
    announced and the content is something else. `pictures=False` leaves scanned pages unread even if OCR is installed.
    """
    with _local(source) as path:
        if path.stat().st_size == 0:
            raise Permanent("document_empty", "this document has no content")
        found = sniff_file(path, name, media_type)
        if found == kinds.ZIP and not zipfile.is_zipfile(path):
            raise Permanent("document_corrupt", "this archive was cut off or is damaged")
        _check_type(found, media_type)
        reader = _reader(path, found, media_type, ocr_language if pictures else "")
        try:
            yield reader
        finally:
            reader.close()


def extract(source: Path | str | bytes, media_type: str = "", name: str = "") -> Iterator[Part]:
    """All parts of a document in order, one at a time."""
    with open_reader(source, media_type, name) as reader:
        for key in reader.parts:
            yield reader.read(key)


def sniff_file(path: Path, name: str = "", declared: str = "") -> str:
    """The media type of a file, told from its content; archives are asked for their members."""
    with path.open("rb") as file:
        head = file.read(kinds.HEAD_BYTES)
    found = sniff(head, name, declared)
    return kinds.zip_kind(path) if found == kinds.ZIP else found


@contextmanager
def _local(source: Path | str | bytes) -> Iterator[Path]:
    if not isinstance(source, bytes):
        yield Path(source)
        return
    descriptor, temporary = tempfile.mkstemp(prefix="perdure-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(source)
        yield Path(temporary)
    finally:
        os.unlink(temporary)


def _check_type(found: str, media_type: str) -> None:
    said = media_type.partition(";")[0].strip().lower()
    if said in _EXACT and found not in (said, kinds.OLE):  # OLE: an Office document under a password
        raise Permanent("type_mismatch", f"said to be {said}, but the content is {found}")


def _reader(path: Path, kind: str, declared: str, ocr_language: str) -> Reader:
    charset = declared.partition("charset=")[2].partition(";")[0].strip("\"' ")
    if kind == kinds.PDF:
        from perdure.pipelines.extract.pdf import PdfReader

        return PdfReader(path, ocr_language=ocr_language)
    if kind == kinds.EPUB:
        from perdure.pipelines.extract.epub import EpubReader

        return EpubReader(path)
    if kind == kinds.DOCX:
        from perdure.pipelines.extract.docx import DocxReader

        return DocxReader(path)
    if kind == kinds.HTML:
        from perdure.pipelines.extract.page import PageReader

        return PageReader(path, charset)
    if kind == kinds.MAIL:
        from perdure.pipelines.extract.mail import MailReader

        return MailReader(path)
    if kind in _VERBATIM:
        from perdure.pipelines.extract.text import TextReader

        return TextReader(path, charset, markdown=kind == kinds.MARKDOWN)
    if kind == kinds.OLE and "EncryptedPackage".encode("utf-16-le") in path.read_bytes():
        raise Permanent("document_encrypted", "this Office document needs a password")
    readable = "; PDF, EPUB, DOCX, HTML, Markdown, text and mail can"
    raise Permanent("type_unsupported", f"{kind} cannot be read{_ELSEWHERE.get(kind, readable)}")
