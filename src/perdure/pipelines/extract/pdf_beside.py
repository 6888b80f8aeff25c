"""What a PDF holds beside its pages: the files of a portfolio, and forms that are XML (XFA) and on no page."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import Permanent
from perdure.pipelines.extract import caps
from perdure.pipelines.extract.archive import parse_xml
from perdure.pipelines.extract.caps import bomb
from perdure.pipelines.extract.part import Part, clean, make_part, summarise
from perdure.pipelines.extract.sniff import HEAD_BYTES, sniff

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

_FILES_MAX = 500
_PACKETS_MAX = 100
_WORD_BYTES = 12
#: About as many as a page has that is a picture of a text.
PAGE_WORDS = 250
_MISSED_MAX = 1_000  # words of a file that could not be read: how many it has nobody knows


def count_files(pdf: PdfDocument) -> int:
    """The files of a portfolio. Permanent: document_bomb."""
    count: int = pdf.count_attachments()
    if count > _FILES_MAX:
        raise bomb(f"it holds {count} files, at most {_FILES_MAX} are read")
    return count


def read_file(pdf: PdfDocument, number: int, key: int, ocr_language: str) -> Part:
    """One file of a portfolio as a section under its name. One that cannot be read is named, with the reason."""
    attached = pdf.get_attachment(number)
    name = " ".join(clean(attached.get_name()).split())[:255] or f"file {number + 1}"
    data = bytes(attached.get_data())
    if len(data) > caps.MEMBER_BYTES_MAX:
        raise bomb(f"{name!r} has more than {caps.MEMBER_BYTES_MAX} bytes")
    scanned = 0
    try:
        text, missed, scanned = _text_of(data, name, ocr_language)
    except Permanent as error:
        wordless = error.code == "document_empty" or sniff(data[:HEAD_BYTES], name).startswith("image/")
        missed = 0 if wordless else min(_MISSED_MAX, 1 + len(data) // _WORD_BYTES)
        text, scanned = f"({len(data)} bytes, not read: {error.code})", error.code == "ocr_needed"
    part = make_part("section", key, f"# {name}\n\n{text}", name, missed=missed)
    return replace(part, scanned=scanned > 0)


def _text_of(data: bytes, name: str, ocr_language: str) -> tuple[str, int, int]:
    """The text of a file, about how many words are not in it, and how many of its pages are pictures. Permanent: why it
    cannot be read, ocr_needed among the codes."""
    from perdure.pipelines.extract import open_reader
    from perdure.pipelines.extract.pdf import PdfReader

    if not data.startswith(b"%PDF-"):
        with open_reader(data, name=name, pictures=bool(ocr_language)) as reader:
            parts = [reader.read(key) for key in reader.parts]
    else:
        with tempfile.NamedTemporaryFile(prefix="perdure-") as file:
            file.write(data)
            file.flush()
            inner = PdfReader(Path(file.name), ocr_language, portfolio=False)
            try:
                parts = [inner.read(key) for key in inner.parts]
            finally:
                inner.close()
    scanned = summarise(parts).scanned
    missed = sum(part.missed for part in parts) + PAGE_WORDS * scanned
    return "\n\n".join(part.text for part in parts), missed, scanned


def form_text(pdf: PdfDocument) -> str:
    """What an XFA form says and what was filled in, in the order of its XML; nothing if it cannot be read."""
    from pypdfium2 import raw

    lines: list[str] = []
    for index in range(min(raw.FPDF_GetXFAPacketCount(pdf), _PACKETS_MAX)):
        needed = ctypes.c_ulong()
        raw.FPDF_GetXFAPacketContent(pdf, index, None, 0, ctypes.byref(needed))
        if not 0 < needed.value <= caps.MEMBER_BYTES_MAX:
            continue
        buffer = ctypes.create_string_buffer(needed.value)
        raw.FPDF_GetXFAPacketContent(pdf, index, buffer, needed.value, ctypes.byref(needed))
        lines += _lines(buffer.raw[: needed.value])
    return "\n\n".join(dict.fromkeys(lines))


def _lines(packet: bytes) -> Iterator[str]:
    try:
        root = parse_xml(packet, "XFA")
    except Permanent:
        return  # packets may be pieces of XML: a beginning, an end
    for kind in ("text", "exData", "data"):
        for node in root.iter(f"{{*}}{kind}"):
            pieces = (" ".join(clean(str(piece)).split()) for piece in node.itertext())
            yield from (piece for piece in pieces if piece)
