"""Pictures of text: how much of a PDF's page is covered by pictures, and which of two readings says more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from perdure.pipelines.extract.part import count_words

if TYPE_CHECKING:
    from pypdfium2 import PdfObject, PdfPage

_IMAGE = 3  # FPDF_PAGEOBJ_IMAGE
_OBJECTS_SEEN_MAX = 2_000
_DEPTH_MAX = 3
_FEW_WORDS = 15  # a stamp, a page number, the line that a fax machine writes
_COVERED_SHARE = 0.5
_REAL_WORD = re.compile(r"[^\W\d_]{3,}")
_NO_LETTERS = re.compile(r"[\W_]+")
_MORE_WORDS = 5


def has_picture(page: PdfPage) -> bool:
    """Whether there is a picture on the page."""
    return next(_pictures(page), None) is not None


def is_picture_with_few_words(page: PdfPage, text: str) -> bool:
    """Whether pictures cover most of a page that has hardly any text: it may be scanned, and stamped."""
    if count_words(text) > _FEW_WORDS:
        return False
    width, height = page.get_size()
    room = _COVERED_SHARE * width * height
    for area in _pictures(page):
        room -= area
        if room <= 0:
            return True
    return False


def fuller(text: str, read: str) -> str:
    """The text of the page, or what was read from its picture if that says more; then with the text, if it lacks it."""
    own, found = (len(_REAL_WORD.findall(one)) for one in (text, read))
    if found <= 2 * own + _MORE_WORDS:
        return text
    letters, seen = (_NO_LETTERS.sub("", one).casefold() for one in (text, read))
    return read if letters in seen else f"{read.rstrip()}\n\n{text.strip()}"


def _pictures(page: PdfPage) -> Iterator[float]:
    """How large each picture is, in the units of the page."""
    for number, thing in enumerate(page.get_objects(max_depth=_DEPTH_MAX)):
        if thing.type == _IMAGE:
            yield _area(thing)
        if number == _OBJECTS_SEEN_MAX:
            return


def _area(picture: PdfObject) -> float:
    """A picture is a unit square that its matrix and those of the forms around it stretch."""
    area, thing = 1.0, picture
    while thing is not None:
        matrix = thing.get_matrix()
        area *= abs(matrix.a * matrix.d - matrix.b * matrix.c)
        thing = thing.container
    return area
