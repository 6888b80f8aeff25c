"""What every reader gives: a document in parts, each with an anchor, and what is known of the whole.

The Markdown of a whole document is its parts joined, each opened by its anchor on a line of its own:

    <!-- page=3 -->

An offset into it leads back to its part by the last anchor before it (`anchor_at`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from perdure.core.frozen import frozen
from perdure.core.words import ANCHOR
from perdure.errors import Permanent
from perdure.pipelines.extract import caps
from perdure.pipelines.extract.language import UNKNOWN, language_of

_ANCHOR = re.compile(rf"^{ANCHOR}$", re.M)
_HEADING = re.compile(r"(#{1,6}) ++(?=\S)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_TITLE_CHARS_MAX = 300
_HEADING_CHARS_MAX = 1_000
_IDEOGRAPHS = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")
_NO_LETTERS = re.compile(r"[\W_]++")
_PARTIAL_SHARE = 0.2  # of the words, or of the pages; a cover or a figure is not worth a mark
_LETTER = re.compile(r"[^\W_]")
_UNCLEAN = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ufffe\uffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SAMPLES = 30
_SAMPLE_CHARS = 1_000


@frozen
class Heading:
    """One line of the outline: `level` from 1, and the anchor of the part it stands in."""

    level: int
    title: str
    anchor: str


@frozen
class Part:
    """A page, a chapter or a section. `scanned`: a page that is a picture, or a file with such pages, which nobody
    could read; `missed`: words that a second count sees in the source and that are not in `text`."""

    key: int
    anchor: str
    title: str
    text: str  # Markdown
    words: int
    headings: tuple[Heading, ...] = ()
    scanned: bool = False
    missed: int = 0


@frozen
class Summary:
    """What is known of a whole document. `pages` is 0 where there are none; `language` is "und" when unsure. `partial`
    says what of the text could not be read, where that is more than a fifth of it; else it is empty."""

    title: str
    outline: tuple[Heading, ...]
    words: int
    language: str
    pages: int
    parts: int
    scanned: int
    partial: str = ""


class Reader(Protocol):
    """A document opened for reading. Parts may be read in any order and by another process than the last time."""

    title: str
    language: str  # as the document declares it, "" if it does not
    markdown: bool  # its text is Markdown; else the text is as it came
    piecemeal: bool  # a part is read when it is asked for; else all were when the document was opened

    @property
    def parts(self) -> Sequence[int]:
        """The keys of all parts, in order, from 1."""
        ...

    def read(self, key: int) -> Part:
        """That part; Permanent says why it cannot be read."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


def clean(text: str) -> str:
    """The text with plain line ends, without NUL and other controls; lone surrogates become U+FFFD."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        text.encode()
    except UnicodeEncodeError:
        text = _SURROGATE.sub("\ufffd", text)
    return _UNCLEAN.sub("", text)


def count_words(text: str) -> int:
    """What stands between spaces, as `wc -w` counts; each ideograph and kana is one."""
    if text.isascii():
        return len(text.split())
    ideographs = sum(map(len, _IDEOGRAPHS.findall(text)))
    return ideographs + len((_IDEOGRAPHS.sub(" ", text) if ideographs else text).split())


def missed_words(source: str, text: str) -> int:
    """About how many words of `source` are not in `text`, by their letters: markup and spaces make no difference."""
    there, read = len(_NO_LETTERS.sub("", source)), len(_NO_LETTERS.sub("", text))
    return round(count_words(source) * (there - read) / there) if there > read else 0


def make_part(
    kind: str, key: int, text: str, title: str = "", *, headings: Sequence[Heading] = (), missed: int = 0
) -> Part:
    """A part of `kind` (page, chapter, section) with its words counted. Text that looks like an anchor is defused."""
    anchor = f"{kind}={key}"
    if "<!-- " in text:
        text = _ANCHOR.sub(r"<!-- \1. -->", text)
    found = tuple(headings) or tuple(headings_of(text, anchor))
    if not title and found:
        title = found[0].title
    return Part(key, anchor, title[:_TITLE_CHARS_MAX], text, count_words(text), found, missed=missed)


def headings_of(text: str, anchor: str) -> Iterable[Heading]:
    """The headings of a Markdown text, fenced code left out."""
    for _, level, title in _heading_lines(text):
        yield Heading(level, title[:_TITLE_CHARS_MAX], anchor)


def sections(text: str) -> list[str]:
    """A Markdown text cut before its main headings: those of the first level that occurs more than once,
    or every few of them where there are very many."""
    found = list(_heading_lines(text))
    levels = [level for _, level, _ in found]
    main = next((level for level in range(1, 7) if levels.count(level) > 1), 0)
    begin = len(text) - len(text.lstrip())
    cuts = [start for start, level, _ in found if level <= main and start > begin] if main else []
    cuts = cuts[:: len(cuts) // caps.PARTS_MAX + 1]
    return [text[start:end].strip("\n") for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def _heading_lines(text: str) -> Iterable[tuple[int, int, str]]:
    # (offset, level, title)
    if "#" not in text:
        return
    fence, at = "", 0
    for line in text.split("\n"):
        if mark := _FENCE.match(line):
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence):
                fence = ""
        elif not fence and line.startswith("#") and (found := _HEADING.match(line[:_HEADING_CHARS_MAX])):
            yield at, len(found[1]), _unclosed(line[found.end() : _HEADING_CHARS_MAX])
        at += len(line) + 1


def _unclosed(title: str) -> str:
    """The title without the signs that may close it, as in `# Title #`."""
    bare = title.rstrip("#")
    return bare.rstrip(" ") if bare != title and bare.endswith(" ") else title


def join(parts: Iterable[Part]) -> str:
    """The Markdown of the whole document, with anchors."""
    return "\n".join(f"<!-- {part.anchor} -->\n\n{part.text}\n" for part in parts)


def anchors(markdown: str) -> list[tuple[int, str]]:
    """Where each part begins in what `join` gave: (offset, anchor)."""
    return [(found.start(), found[1]) for found in _ANCHOR.finditer(markdown)]


def anchor_at(markdown: str, offset: int) -> str:
    """The anchor of the part that `offset` lies in; "" before the first."""
    last = ""
    for start, anchor in anchors(markdown):
        if start > offset:
            break
        last = anchor
    return last


def summarise(parts: Sequence[Part], title: str = "", language: str = "") -> Summary:
    """The whole in short; `title` and `language` as the reader declares them. A document without a word in it is
    Permanent: `ocr_needed` if it has scanned pages, else `document_empty`."""
    words = sum(part.words for part in parts)
    scanned = sum(part.scanned for part in parts)
    empty = not any(_LETTER.search(part.text) for part in parts)
    if empty and scanned:
        raise Permanent(
            "ocr_needed", f"{scanned} pages are pictures without text; install tesseract-ocr to read them"
        )
    if empty:
        raise Permanent("document_empty", "there is no text in this document")
    outline = tuple(heading for part in parts for heading in part.headings)
    pages = sum(part.anchor.startswith("page=") for part in parts)
    titled = title or next((part.title for part in parts if part.title), "")
    step = max(1, len(parts) // _SAMPLES)
    sample = " ".join(part.text[:_SAMPLE_CHARS] for part in parts[::step])
    spoken = language_of(sample)
    if spoken == UNKNOWN and language:
        spoken = language
    pictures = sum(part.scanned and part.anchor.startswith("page=") for part in parts)
    partial = _partial(words, sum(part.missed for part in parts), pages, pictures)
    return Summary(titled[:_TITLE_CHARS_MAX], outline, words, spoken, pages, len(parts), scanned, partial)


def _partial(words: int, missed: int, pages: int, scanned: int) -> str:
    """What could not be read, if that is a large part."""
    if missed > _PARTIAL_SHARE * (words + missed):
        return f"about {missed} of {words + missed} words of the source are not in the text"
    if scanned > _PARTIAL_SHARE * pages:
        return (
            f"{scanned} of {pages} pages are pictures that were not read; install tesseract-ocr and requeue"
        )
    return ""
