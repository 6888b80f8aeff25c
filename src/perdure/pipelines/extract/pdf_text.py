"""The text of a PDF page as it is to be read: accents on their letters, ligatures in their words.

TeX draws an umlaut as a letter and two dots above it, and PDFium gives both, with spaces where the pen went back:
"n ¨ amlich". Where a letter and an accent are, and how far apart two letters stand, is known from their boxes. Only
pages that have such signs are looked at letter by letter.
"""

from __future__ import annotations

import ctypes
import re
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pypdfium2 import PdfTextPage

_ACCENTS = {
    "¨": "\u0308", "´": "\u0301", "`": "\u0300", "ˆ": "\u0302", "˜": "\u0303", "ˇ": "\u030c", "˘": "\u0306",
    "¯": "\u0304", "˙": "\u0307", "˚": "\u030a", "˝": "\u030b", "¸": "\u0327",
    "\x7f": "\u0308", "\x12": "\u0300", "\x13": "\u0301", "\x14": "\u030c",  # where TeX's old fonts have them
}  # fmt: skip
_STRANGE = re.compile("[¨´`ˆ˜ˇ˘¯˙˚˝¸\x7f\x12-\x14]")
_LIGATURE_CUT = re.compile(r"(?:f[filtj]|[\ufb00-\ufb06]) (?=[^\W\d_])")
_CONTROLS = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f]")
_LINE_CHARS = 150  # between an accent and its letter: it may stand at the end of their line
_NEAR = 16  # spaces and accents in a row
_ACCENTS_MAX = 2_000  # of a page
_GAP = 0.16  # of the height of a line: less is no space between two words
_CHARS_MAX = 50_000  # of a page that is looked at so closely; books have 5,000
_HYPHEN = 2  # at the end of a line

Box = tuple[float, float, float, float]  # left, right, bottom, top


def readable(page: PdfTextPage, text: str, ligatures: Mapping[int, str]) -> str:
    """The text of the page; `ligatures` says what codes mean that have no letter of their own."""
    if (_STRANGE.search(text) or _LIGATURE_CUT.search(text)) and len(text) <= _CHARS_MAX:
        text = _Line(page).text()
    return _CONTROLS.sub(lambda code: ligatures.get(ord(code[0]), code[0]), text) if ligatures else text


class _Line:
    """The characters of a page, and where they stand."""

    def __init__(self, page: PdfTextPage) -> None:
        from pypdfium2 import raw

        self._raw, self._page = raw, page
        self._boxes: dict[int, Box] = {}
        self._looked = 0
        codes = (raw.FPDFText_GetUnicode(page, number) for number in range(page.count_chars()))
        self._chars = ["" if code == _HYPHEN else chr(code) for code in codes]

    def text(self) -> str:
        chars = self._chars
        touched = [
            number
            for number, char in enumerate(chars)
            if (char in _ACCENTS and self._settle(number)) or (char == " " and self._after_ligature(number))
        ]
        for number in touched:
            self._close(number)
        return "".join(chars).encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _settle(self, number: int) -> bool:
        """Put an accent on the letter that it stands above; False if there is none, and it is a sign of its own."""
        self._looked += 1
        if self._looked > _ACCENTS_MAX:
            return False
        left, right, bottom, _ = self._box(number)
        middle = (left + right) / 2
        best, best_at = 0.0, -1
        for at in range(max(0, number - _LINE_CHARS), min(len(self._chars), number + _LINE_CHARS)):
            if not self._chars[at].isalpha():
                continue
            box = self._box(at)
            height = max(box[3] - box[2], 0.1)
            share = min(right, box[1]) - max(left, box[0])
            if box[0] <= middle <= box[1] and share > best and abs(bottom - box[2]) < 1.5 * height:
                best, best_at = share, at
        if best_at < 0:
            return False
        whole = unicodedata.normalize("NFC", self._plain(best_at) + _ACCENTS[self._chars[number]])
        if len(whole) != 1:
            return False
        self._chars[best_at], self._chars[number] = whole, ""
        return True

    def _plain(self, at: int) -> str:
        return {"ı": "i", "ȷ": "j"}.get(self._chars[at], self._chars[at])

    def _after_ligature(self, number: int) -> bool:
        before = "".join(self._chars[max(0, number - 2) : number])
        after = self._chars[number + 1 : number + 2]
        return bool(after) and _LIGATURE_CUT.search(f"{before} {after[0]}") is not None

    def _close(self, number: int) -> None:
        """Take spaces away around a place where the letters stand together."""
        chars = self._chars
        first = last = number
        while first > max(0, number - _NEAR) and chars[first - 1] in ("", " "):
            first -= 1
        while last + 1 < min(len(chars), number + _NEAR) and chars[last + 1] in ("", " "):
            last += 1
        spaces = [at for at in range(first, last + 1) if chars[at] == " "]
        if (
            not spaces
            or first == 0
            or last + 1 == len(chars)
            or chars[first - 1] in "\r\n"
            or chars[last + 1] in "\r\n"
        ):
            return
        before, after = self._box(first - 1), self._box(last + 1)
        apart = after[0] - before[1] > _GAP * max(before[3] - before[2], after[3] - after[2], 0.1)
        same_line = min(before[3], after[3]) > max(before[2], after[2])
        for at in spaces[1 if apart or not same_line else 0 :]:
            chars[at] = ""

    def _box(self, number: int) -> Box:
        if (known := self._boxes.get(number)) is not None:
            return known
        edges = [ctypes.c_double() for _ in range(4)]
        self._raw.FPDFText_GetCharBox(self._page, number, *map(ctypes.byref, edges))
        left, right, bottom, top = (edge.value for edge in edges)
        self._boxes[number] = left, right, bottom, top
        return left, right, bottom, top
