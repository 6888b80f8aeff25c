"""PDF, page by page, through PDFium."""

from __future__ import annotations

import mmap
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.errors import Permanent, Transient
from perdure.pipelines.extract import caps, ocr
from perdure.pipelines.extract.caps import bomb
from perdure.pipelines.extract.part import Heading, Part, clean, count_words, make_part
from perdure.pipelines.extract.pdf_beside import PAGE_WORDS, count_files, form_text, read_file
from perdure.pipelines.extract.pdf_pictures import fuller, has_picture, is_picture_with_few_words
from perdure.pipelines.extract.pdf_scan import scan
from perdure.pipelines.extract.pdf_text import readable

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument, PdfPage

_PASSWORD = 4  # FPDF_ERR_PASSWORD
_SECURITY = 5
_FORMS = {1, 2, 3}  # FORMTYPE_ACRO_FORM, and XFA, whose fields are there as an AcroForm, too, or only as XML
_XFA_ALONE = 2  # FORMTYPE_XFA_FULL: its page says no more than that another viewer is needed
_TITLE_CHARS_MAX = 200
_BOOKMARKS_MAX = 20_000
_WORDLESS_MAX = 20  # pages with a few words whose pictures say nothing: then those are illustrations
_NUMBERING = re.compile(
    r"^(?:(?:chapter|appendix|part)\s+)?(?:[\dIVXA-Z]{1,4}[.:)]?(?:\d+(?:\.\d+)*\.?)?\s+)?", re.I
)
_SPACE = re.compile(r"\s+")
_NO_LETTER = re.compile("[\ufffd\ue000-\uf8ff]{2}")
_LEADING_HASH = re.compile(r"^(#{1,6} )", re.M)


#: The library crashes if two threads are in it, as can be where stages run without processes of their own.
_PDFIUM = threading.RLock()


class PdfReader:
    """Pages from 1, then the form if it is XML, then the files of a portfolio. Bookmarks give the outline, and mark the
    lines they name as headings."""

    piecemeal = True
    markdown = True

    def __init__(self, path: Path, ocr_language: str = "eng", *, portfolio: bool = True) -> None:
        self._ocr_language = ocr_language  # "": pictures are left alone
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            self._scanned = scan(data)
        with _PDFIUM:
            self._begin(path, portfolio)

    def _begin(self, path: Path, portfolio: bool) -> None:
        self._pdf = _open(path)
        count = len(self._pdf)
        if count > caps.PAGES_MAX:
            raise bomb(f"it has {count} pages, at most {caps.PAGES_MAX} are read")
        if count == 0:
            raise Permanent("document_empty", "this PDF has no pages")
        self._pages = count
        self.language = ""
        self._wordless = 0
        form = self._pdf.get_formtype()
        self._is_form = form in _FORMS
        if self._is_form:
            self._pdf.init_forms()
        self._form = form_text(self._pdf) if form == _XFA_ALONE else ""
        files = count_files(self._pdf) if portfolio and self._scanned.portfolio else 0
        self.parts = range(1, count + bool(self._form) + files + 1)
        self._bookmarks = _bookmarks(self._pdf)
        self._first = ""  # the text of the first page, where it was read for its title and not yet asked for
        self.title = clean(self._pdf.get_metadata_value("Title")).strip() or self._first_line()

    def read(self, key: int) -> Part:
        if key > self._pages:
            return self._beside(key)
        first, self._first = (self._first, "") if key == 1 else ("", self._first)
        with _PDFIUM, self._page(key) as page:
            text = first or self._text(page, key)
            if not text.strip():
                return self._read_picture(key, page)
            if self._wordless < _WORDLESS_MAX and is_picture_with_few_words(page, text):
                return self._read_around(key, page, text)
            return self._part(key, text)

    def close(self) -> None:
        with _PDFIUM:
            self._pdf.close()

    def _beside(self, key: int) -> Part:
        number = key - self._pages - 1
        if self._form and number == 0:
            return make_part("section", key, self._form)
        with _PDFIUM:
            return read_file(self._pdf, number - bool(self._form), key, self._ocr_language)

    @contextmanager
    def _page(self, key: int) -> Iterator[PdfPage]:
        from pypdfium2 import PdfiumError
        from pypdfium2.raw import FPDFPage_GetAnnotCount

        try:
            page = self._pdf[key - 1]
            if self._is_form and FPDFPage_GetAnnotCount(page) > 0:
                page.flatten()  # what was filled in becomes text of the page
                page.close()
                page = self._pdf[key - 1]
        except PdfiumError as error:
            raise Permanent("document_corrupt", f"page {key} of {self._pages} cannot be read") from error
        try:
            yield page
        finally:
            page.close()

    def _first_line(self) -> str:
        with self._page(1) as page:
            text = self._text(page, 1)
        self._first = text if text.strip() else ""
        lines = (line.strip() for line in text.split("\n"))
        return next((line for line in lines if count_words(line)), "")[:_TITLE_CHARS_MAX]

    def _text(self, page: PdfPage, key: int) -> str:
        return _text(page, key, self._scanned.ligatures)

    def _part(self, key: int, text: str) -> Part:
        missed = _unreadable(text)
        text = _LEADING_HASH.sub(r"\\\1", text)
        anchor = f"page={key}"
        marked = self._bookmarks.get(key, [])
        headings = [Heading(level, title, anchor) for level, title in marked]
        if marked:
            text = _mark_headings(text, marked)
        return make_part("page", key, text.strip("\n"), headings=headings, missed=missed)

    def _read_picture(self, key: int, page: PdfPage) -> Part:
        if not has_picture(page):
            return self._part(key, "")
        text = ocr.read(page, self._ocr_language) if self._ocr_language else None
        if text is None:
            return Part(key, f"page={key}", "", "", 0, scanned=True)
        return self._part(key, clean(text))

    def _read_around(self, key: int, page: PdfPage, text: str) -> Part:
        """A page that is a picture with a few words of text on it, as a stamp or a page number."""
        try:
            read = ocr.read(page, self._ocr_language) if self._ocr_language else None
        except (Permanent, Transient):  # it is a page with text all the same
            part = self._part(key, text)
            return replace(part, missed=part.missed + PAGE_WORDS)
        if read is None:
            return replace(self._part(key, text), scanned=True)
        whole = fuller(text, clean(read))
        self._wordless += whole == text
        return self._part(key, whole)


def _open(path: Path) -> PdfDocument:
    from pypdfium2 import PdfDocument, PdfiumError

    try:
        return PdfDocument(path)
    except PdfiumError as error:
        if getattr(error, "err_code", None) in (_PASSWORD, _SECURITY) or "password" in str(error).lower():
            raise Permanent("document_encrypted", "this PDF needs a password to be opened") from error
        raise Permanent("document_corrupt", f"this PDF cannot be opened: {error}") from error


def _text(page: PdfPage, key: int, ligatures: Mapping[int, str]) -> str:
    from pypdfium2 import PdfiumError

    try:
        text_page = page.get_textpage()
    except PdfiumError as error:
        raise Permanent("document_corrupt", f"the text of page {key} cannot be read") from error
    try:
        if text_page.count_chars() > caps.PAGE_CHARS_MAX:
            raise bomb(f"page {key} has more than {caps.PAGE_CHARS_MAX} characters")
        text: str = readable(text_page, text_page.get_text_range(), ligatures)
    finally:
        text_page.close()
    return clean(text.replace("\ufffe", ""))  # PDFium's sign for a hyphen at the end of a line


def _unreadable(text: str) -> int:
    """Words that nobody can read, because their font does not say which letters it has."""
    return sum(1 for word in text.split() if _NO_LETTER.search(word)) if _NO_LETTER.search(text) else 0


def _bookmarks(pdf: PdfDocument) -> dict[int, list[tuple[int, str]]]:
    found: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for number, bookmark in enumerate(pdf.get_toc(max_depth=6)):
        if number == _BOOKMARKS_MAX:
            break
        destination = bookmark.get_dest()
        index: Any = destination.get_index() if destination is not None else None
        title = _SPACE.sub(" ", clean(bookmark.get_title())).strip()
        if index is not None and title:
            found[index + 1].append((bookmark.level + 1, title[:300]))
    return found


def _mark_headings(text: str, marked: list[tuple[int, str]]) -> str:
    levels = {_bare(title): level for level, title in reversed(marked) if _bare(title)}
    longest = 30 + max(len(title) for _, title in marked)  # with the number of a chapter
    lines = text.split("\n")
    for number, line in enumerate(lines):
        level = levels.pop(_bare(line), 0) if 0 < len(line) < longest else 0
        if level:
            lines[number] = f"\n{'#' * level} {line.strip()}\n"
    return "\n".join(lines)


def _bare(title: str) -> str:
    return _SPACE.sub("", _NUMBERING.sub("", title.strip()).casefold())
