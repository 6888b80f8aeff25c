"""Takes away what surrounds the main text of a page, line by line: our Markdown, and a search's opinion of that text.

The search (trafilatura) is good at where the main text begins and ends, and drops code, tables and lists within it; so
its opinion decides about short lines, links and everything before and after; prose, code and tables within are kept.
"""

from __future__ import annotations

import re

from perdure.core.frozen import frozen
from perdure.pipelines.extract.part import count_words

_WORD = re.compile(r"[^\W_]+")
_LINK = re.compile(r"\[([^\[\]]{0,500}+)\]\([^()\s]{0,2000}+\)|<https?://[^\s<>]{1,2000}+>")
_FENCE = re.compile(r"^\s{0,12}(```|~~~~)")
_SHINGLE = 3
_KNOWN_SHARE = 0.5
_SHORT_WORDS = 12  # a line within the main text that has fewer and is not in it is a caption, a button, a tag
_FEW_WORDS = 8
_LINKED_SHARE = 0.5
_LONG_WORDS = 40  # prose beyond the main text is kept, unless most of the page is in it
_SURE_SHARE = 0.5


_ITEM = re.compile(r"\s{0,24}(?:- |\d{1,9}\. )")
_ITEMS_MIN = 3


@frozen
class _Line:
    text: str
    words: int
    known: bool  # it is in the main text
    linked: bool  # most of it are links
    kept_within: bool  # code, a table, a heading


_END = _Line("", 1, known=False, linked=False, kept_within=False)


def trim(text: str, main: str) -> str:
    """The text without the lines that surround the main text; nothing where the two have too little in common."""
    lines = _lines(text, _shingles(main))
    known = [number for number, line in enumerate(lines) if line.known and line.words]
    if not known:
        return ""
    first, last = known[0], known[-1]
    words = sum(line.words for line in lines)
    sure = sum(lines[number].words for number in known) >= _SURE_SHARE * words
    kept: list[str] = []
    listed = _prose_lists(lines)
    follows = False  # the text below is kept, and so is its heading
    for number in reversed(range(len(lines))):
        line = lines[number]
        within = first <= number <= last
        keep = _inside(line, follows) if within else _outside(line, number < first, sure)
        keep = keep or number in listed
        if keep or not line.words:
            kept.append(line.text)
        follows = (
            line.known or line.kept_within or (keep and line.text.startswith("#")) if line.words else follows
        )
    kept.reverse()
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip("\n")


def missed_prose(source: str, text: str) -> int:
    """How many words of `source` are not in `text`; links and lines of a few words, as of buttons, do not count."""
    lost = (line for line in _lines(source, _shingles(text)) if not line.known and not line.linked)
    return sum(line.words for line in lost if line.kept_within or line.words >= _FEW_WORDS)


def _is_prose(line: _Line) -> bool:
    return line.words >= _SHORT_WORDS and not line.linked


def _prose_lists(lines: list[_Line]) -> set[int]:
    """The lines of lists that are text: several items of prose, one after the other."""
    found: set[int] = set()
    run: list[int] = []
    for number, line in enumerate([*lines, _END]):
        if _ITEM.match(line.text) and _is_prose(line):
            run.append(number)
        elif line.words:
            if len(run) >= _ITEMS_MIN:
                found.update(run)
            run = []
    return found


def _inside(line: _Line, follows: bool) -> bool:
    heading = line.text.startswith("#") and follows
    return line.known or line.kept_within or heading or _is_prose(line)


def _outside(line: _Line, before: bool, sure: bool) -> bool:
    title = before and line.text.startswith("# ")
    return title or (not sure and line.words >= _LONG_WORDS and not line.linked)


def _lines(text: str, main: set[tuple[str, ...]]) -> list[_Line]:
    found: list[_Line] = []
    fence = ""
    for text_line in text.split("\n"):
        mark = _FENCE.match(text_line)
        code = bool(fence)
        if mark:
            code, fence = True, "" if fence else mark[1]
        found.append(_judged(text_line, main, code))
    return found


def _judged(line: str, main: set[tuple[str, ...]], code: bool) -> _Line:
    words = _WORD.findall(line.casefold())
    if code:
        return _Line(line, len(words), False, False, True)
    bare = _LINK.sub(lambda link: link[1] or "", line)
    words = _WORD.findall(bare.casefold())
    shingles = _pieces(words)
    known = bool(shingles) and sum(piece in main for piece in shingles) >= _KNOWN_SHARE * len(shingles)
    links = sum(count_words(link[1] or "x") for link in _LINK.finditer(line))
    table = line.startswith("|")
    return _Line(
        line, len(words) or bool(line.strip()), known, links > _LINKED_SHARE * max(1, len(words)), table
    )


def _shingles(text: str) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for line in text.split("\n"):
        words = _WORD.findall(_LINK.sub(lambda link: link[1] or "", line).casefold())
        found.update(_pieces(words))
        found.update(tuple(words[at : at + _SHINGLE]) for at in range(len(words)))
    return found


def _pieces(words: list[str]) -> list[tuple[str, ...]]:
    if len(words) <= _SHINGLE:
        return [tuple(words)] if words else []
    return [tuple(words[at : at + _SHINGLE]) for at in range(len(words) - _SHINGLE + 1)]
