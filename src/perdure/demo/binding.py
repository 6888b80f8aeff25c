"""Texts become documents: an EPUB, a DOCX, an HTML page, a mail. PDFs are made in `pdf`."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from email.message import EmailMessage
from html import escape

_CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container" version="1.0"><rootfiles>'
    '<rootfile full-path="book.opf" media-type="application/oebps-package+xml"/></rootfiles></container>'
)
_TYPES = (
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/word/document.xml" ContentType="application/vnd.openxmlformats-officedocument.'
    'wordprocessingml.document.main+xml"/></Types>'
)
_RELATIONS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="r1" '
    'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
    'Target="word/document.xml"/></Relationships>'
)
_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_HEADING_CHARS_MAX = 40


def paragraphs(text: str) -> list[str]:
    """Parted by empty lines."""
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def epub(title: str, chapters: Mapping[str, str]) -> bytes:
    """A book; chapter heading → text."""
    names = [f"c{number}" for number in range(1, len(chapters) + 1)]
    items = "".join(f'<item id="{n}" href="{n}.xhtml" media-type="application/xhtml+xml"/>' for n in names)
    package = (
        '<package xmlns="http://www.idpf.org/2007/opf" version="3.0"><metadata '
        f'xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>{title}</dc:title><dc:language>en</dc:language>'
        f"</metadata><manifest>{items}</manifest><spine>"
        + "".join(f'<itemref idref="{n}"/>' for n in names)
        + "</spine></package>"
    )
    pages = {
        f"{name}.xhtml": f'<html xmlns="http://www.w3.org/1999/xhtml"><head><title>{heading}</title></head><body>'
        f"<h1>{heading}</h1>{_marked(text)}</body></html>"
        for name, (heading, text) in zip(names, chapters.items(), strict=True)
    }
    return _zipped({
        "mimetype": "application/epub+zip", "META-INF/container.xml": _CONTAINER, "book.opf": package, **pages,
    })  # fmt: skip


def docx(text: str) -> bytes:
    """A Word document; a short paragraph is a heading."""
    body = "".join(
        "<w:p>"
        + ('<w:pPr><w:outlineLvl w:val="0"/></w:pPr>' if len(part) < _HEADING_CHARS_MAX else "")
        + f"<w:r><w:t>{escape(part)}</w:t></w:r></w:p>"
        for part in paragraphs(text)
    )
    document = f'<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>'
    return _zipped({"[Content_Types].xml": _TYPES, "_rels/.rels": _RELATIONS, "word/document.xml": document})


def page(title: str, text: str) -> bytes:
    """A web page, with the things around the text that nobody wants to find."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title></head><body>'
        f'<nav><a href="/">Home</a> <a href="/about">About</a></nav><article><h1>{title}</h1>{_marked(text)}'
        "</article><footer>Cookies, imprint, newsletter</footer></body></html>"
    ).encode()


def mail(text: str) -> bytes:
    """A letter as it lies in a mailbox."""
    message = EmailMessage()
    message["From"] = "Matthias Brandt <keeper@lighthouse.example>"
    message["To"] = "Ines Varga <ines@harbour.example>"
    message["Date"] = "Thu, 05 Nov 2026 21:40:00 +0100"
    message["Subject"] = "Why the lighthouse sounded its horn"
    message.set_content(text)
    return message.as_bytes()


def _marked(text: str) -> str:
    return "".join(f"<p>{escape(part)}</p>" for part in paragraphs(text))


def _zipped(members: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            method = zipfile.ZIP_STORED if name == "mimetype" else zipfile.ZIP_DEFLATED
            archive.writestr(zipfile.ZipInfo(name), text, method)
    return out.getvalue()
