"""HTML: the main text of a page of a site, the whole page otherwise."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from perdure.core.frozen import frozen
from perdure.errors import Permanent
from perdure.pipelines.extract import caps
from perdure.pipelines.extract.around import is_of_a_site, keep_text_in_headers, look_around
from perdure.pipelines.extract.charset import decode_markup
from perdure.pipelines.extract.markup import parse_html, to_markdown
from perdure.pipelines.extract.part import Part, clean, count_words, make_part, sections
from perdure.pipelines.extract.trim import missed_prose, trim

if TYPE_CHECKING:
    from lxml.etree import _Element as Element

_MAIN_SHARE = 0.6  # a page with more main text than this is taken whole: then nothing of it can be lost
_MAIN_SHARE_MIN = 0.1  # less than this was not the main text
_MAIN_WORDS_MIN = 30
_TRIM_SHARE_MIN = 0.1  # of the page's words; where the search finds less, it says nothing about the lines
_FOUND_SHARE_MIN = 0.5  # of what surrounds nothing; less is one of several answers or posts
_SAME_SHARE_MIN, _SAME_SHARE_MIN_OF_MAIN = 0.8, 0.5  # words in common that make it the same text


class PageReader:
    """Sections from 1, cut at the main headings."""

    piecemeal = False
    markdown = True

    def __init__(self, path: Path, declared: str = "") -> None:
        if path.stat().st_size > caps.MARKUP_BYTES_MAX:
            raise caps.bomb(f"the page has more than {caps.MARKUP_BYTES_MAX} bytes")
        root = parse_html(decode_markup(path.read_bytes(), declared))
        self.title = " ".join(clean(root.findtext(".//title") or "").split())
        self.language = (
            root.get("lang") or root.get("{http://www.w3.org/XML/1998/namespace}lang") or ""
        ).lower()[:2]
        text, self._missed = _markdown_of(root)
        if not text.strip():
            raise Permanent("document_empty", "there is no text in this page")
        self._sections = sections(text)
        self.parts = range(1, len(self._sections) + 1)

    def read(self, key: int) -> Part:
        return make_part("section", key, self._sections[key - 1], missed=self._missed if key == 1 else 0)

    def close(self) -> None:
        self._sections = []


@frozen
class _Text:
    """The text of a page. `source`: all that may be its text; `own`: how many words of it surround nothing."""

    text: str
    source: str
    own: int = 0


def _markdown_of(root: Element) -> tuple[str, int]:
    """The page's text, without the lines that surround it where the page is one of a site; and how many words of prose
    it lacks."""
    small = not _has_more(root, caps.MAIN_TEXT_ELEMENTS_MAX)
    main = _main_text(root, comments=True) if small and is_of_a_site(root) else ""
    found = _text_of(root, small)
    text = found.text
    if count_words(main) >= max(_MAIN_WORDS_MIN, _TRIM_SHARE_MIN * count_words(text)):
        trimmed = trim(text, main)
        if count_words(trimmed) >= max(_MAIN_WORDS_MIN, _FOUND_SHARE_MIN * found.own):
            text = trimmed
    lacking = max(0, found.own - count_words(text))  # what may surround the text is not missed
    return text, min(lacking, missed_prose(found.source, text)) if lacking else 0


def _text_of(root: Element, small: bool) -> _Text:
    """The page's text. What surrounds it (navigation, advertising, comments) goes where it is the larger part."""
    if _has_more(root, caps.AROUND_ELEMENTS_MAX):
        return _whole(to_markdown(root, bare=True) or to_markdown(root))
    keep_text_in_headers(root)
    whole = to_markdown(root, bare=True)
    words = count_words(whole)
    if not words:
        return _whole(to_markdown(root))  # a page that is all header or form
    around = look_around(root, words)
    own = words - around.words
    if words < _MAIN_WORDS_MIN or around.words <= (1 - _MAIN_SHARE) * words:
        return _whole(_without(root, around.parts) or whole, own)  # a search would only drop code and tables
    if not small:
        return _whole(whole, own)
    main = _main_text(root)
    least = max(_MAIN_WORDS_MIN, _MAIN_SHARE_MIN * words, _FOUND_SHARE_MIN * own)
    if not least <= count_words(main) < _MAIN_SHARE * words:
        return _whole(whole, own)
    rest = _without(root, around.parts + around.comments)
    return _whole(rest, own) if _same(rest, main) else _Text(main, rest or whole, own)


def _whole(text: str, own: int = 0) -> _Text:
    return _Text(text, text, own)


def _has_more(root: Element, elements: int) -> bool:
    return next(islice(root.iter(), elements, None), None) is not None


def _without(root: Element, parts: list[Element]) -> str:
    """The text with these parts hidden, for good; "" where there are none or nothing else is left."""
    for part in parts:
        part.set("hidden", "")
    return to_markdown(root, bare=True) if parts else ""


def _same(rest: str, main: str) -> bool:
    """Whether they are about the same text: then the one that keeps its headings and lists is better."""
    ours, theirs = Counter(rest.split()), Counter(main.split())
    both = (ours & theirs).total()
    return (
        both > 0
        and both >= _SAME_SHARE_MIN * ours.total()
        and both >= _SAME_SHARE_MIN_OF_MAIN * theirs.total()
    )


def _main_text(root: Element, *, comments: bool = False) -> str:
    """The main text as trafilatura finds it: as much as may be, or exactly, with comments; "" where it has trouble."""
    import trafilatura
    from lxml import etree, html

    try:
        text = trafilatura.extract(
            html.document_fromstring(
                etree.tostring(root, encoding="unicode"), html.HTMLParser(huge_tree=True)
            ),
            output_format="markdown",
            favor_recall=not comments,
            include_links=True,
            include_comments=comments,
        )
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError):
        return ""  # its own trouble with an odd page; the whole text is at hand
    return clean(text or "")
