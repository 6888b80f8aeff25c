"""Plain text and Markdown: decoded, cleaned, otherwise as they came."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from perdure.errors import Permanent
from perdure.pipelines.extract import caps
from perdure.pipelines.extract.charset import decode
from perdure.pipelines.extract.part import Part, clean, make_part, sections

_FIRST_LINE_CHARS_MAX = 120


class TextReader:
    """One section for plain text; Markdown is cut at its main headings."""

    piecemeal = False
    language = ""

    def __init__(self, path: Path, declared: str = "", *, markdown: bool = False) -> None:
        if path.stat().st_size > caps.TEXT_BYTES_MAX:
            raise caps.bomb(f"the text has more than {caps.TEXT_BYTES_MAX} bytes")
        text = clean(decode(path.read_bytes(), declared))
        if not text.strip():
            raise Permanent("document_empty", "there is no text in this document")
        first = text.lstrip()[: _FIRST_LINE_CHARS_MAX + 1].partition("\n")[0].strip()
        self.title = "" if markdown or len(first) > _FIRST_LINE_CHARS_MAX else first
        self.markdown = markdown
        self._sections = sections(text) if markdown else [text]
        self.parts = range(1, len(self._sections) + 1)

    def read(self, key: int) -> Part:
        text = self._sections[key - 1]
        part = make_part("section", key, text)
        if not self.markdown:
            return replace(
                part, headings=(), title=self.title
            )  # a line that begins with # is no heading here
        return part

    def close(self) -> None:
        self._sections = []
