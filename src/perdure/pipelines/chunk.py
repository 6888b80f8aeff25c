"""Cuts a document's Markdown into chunks: passages of at most 1,200 characters that end where a reader would pause.

A heading stands in the chunk of the text below it, fenced code and tables stay whole where they fit, and no chunk
reaches over the sign of a part, such as that of a page: a heading at the end of a part is above the first chunk of the
next one, and not in its text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import takewhile

from perdure.core.chunk import Chunk, chunk_id
from perdure.core.frozen import frozen
from perdure.core.words import ANCHOR

CHARS_MAX = 1_200
#: A section that begins after this many characters begins a chunk.
CHARS_ENOUGH = 500
#: The version of how this cuts; a stage that uses it takes it into its own.
VERSION = 5
HEADING_CHARS_MAX = 300

_SIGN = re.compile(ANCHOR)
_HEADING = re.compile(r"(#{1,6})[ \t]+(?=\S)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r"[ \t]*(?:[-*+•]|\d{1,9}[.)])[ \t]")
_SENTENCE = re.compile(r"[.!?:;][)\"'»”]*\s|[。！？]")
_PROSE, _LIST, _TABLE, _CODE, _TITLE, _PART = "prose", "list", "table", "code", "heading", "part"

#: Where a part of the text begins, its anchor, and its page if it has one.
PartStart = tuple[int, str, int | None]


@frozen
class Block:
    """What is not cut where it fits into a chunk: a paragraph, a fence, a table, a heading; or the sign of a part."""

    kind: str
    start: int
    end: int
    level: int = 0  # of a heading


def chunks(
    text_markdown: str,
    document_id: str,
    content_hash: str,
    parts: Sequence[PartStart] = (),
    title: str = "",
    *,
    plain: bool = False,
) -> list[Chunk]:
    """The chunks of the text, in order, each with its place in it and the part it begins in.

    Their ids follow from document, content, position and text: the same input gives the same ids everywhere. The
    `title` of the document stands above its headings. A `plain` text is not Markdown: its lines that begin with `#` or
    `~~~` are neither headings nor fences.
    """
    ordered = sorted(parts, key=lambda part: part[0])
    starts = [start for start, _, _ in ordered]
    found: list[Chunk] = []
    named = " ".join(title.split())[:HEADING_CHARS_MAX]
    outline: dict[int, str] = {}
    for above, blocks in _packed(text_markdown, plain):
        start, end = blocks[0].start, blocks[-1].end
        text = text_markdown[start:end]
        leading = takewhile(lambda block: block.kind == _TITLE, blocks)
        for block in (*above, *leading):
            _enter(outline, block, text_markdown)
        place = bisect_right(starts, start) - 1
        _, anchor, page = ordered[place] if place >= 0 else (0, "", None)
        id_ = chunk_id(document_id, content_hash, len(found), text)
        headings = [outline[level] for level in sorted(outline)]
        heading = "\n".join(headings if not named or named in headings else [named, *headings])
        found.append(Chunk(id_, len(found), start, end, text, anchor, page, heading=heading))
        for block in blocks:
            if block.kind == _TITLE:
                _enter(outline, block, text_markdown)
    return found


def _enter(outline: dict[int, str], block: Block, text: str) -> None:
    """The heading is in force from here, and those below it are not."""
    title = text[block.start : block.end].strip("# \t")[:HEADING_CHARS_MAX]
    for level in [level for level in outline if level >= block.level]:
        del outline[level]
    outline[block.level] = title


def _packed(text: str, plain: bool) -> Iterator[tuple[list[Block], list[Block]]]:
    """Headings at the end of the part before, and the blocks of a chunk: a full one, with no heading at its end unless
    nothing follows."""
    above: list[Block] = []
    held: list[Block] = []
    body = 0  # of those held up to the last that is not a heading; headings after it begin the next chunk
    for block in _fitting(text, plain):
        if body and (block.kind == _PART or _is_full(held, block)):
            yield above, held[:body]
            above, held, body = [], held[body:], 0
        if block.kind == _PART:
            above += held
            held = []
            continue
        if held and block.end - held[0].start > CHARS_MAX:
            begin, room = held[0].start, CHARS_MAX - (block.start - held[0].start)
            pieces = _cut(text, block, room) if room > CHARS_MAX // 4 and block.kind != _TITLE else [block]
            if pieces[0].end - begin <= CHARS_MAX:
                yield above, [*held, pieces[0]]
                above, held = [], pieces[1:]
                body = len(held)
                continue
            yield above, held  # headings as long as a chunk
            above, held = [], []
        held.append(block)
        if block.kind != _TITLE:
            body = len(held)
    if held or above:
        yield (above, held) if held else ([], above)


def _is_full(held: list[Block], block: Block) -> bool:
    most = CHARS_ENOUGH if block.kind == _TITLE else CHARS_MAX
    return block.end - held[0].start > most


def _fitting(text: str, plain: bool) -> Iterator[Block]:
    """The blocks of the text, those that are larger than a chunk in pieces."""
    for block in _blocks(text, plain):
        left = [block]
        while left:
            first, *left = _cut(text, left[0], CHARS_MAX)
            if first.end - first.start > CHARS_MAX:
                left = [first]  # what stood before it was blank
            else:
                yield first


def _cut(text: str, block: Block, room: int) -> list[Block]:
    """The block, or a piece of it that takes no more than `room` and the rest."""
    if block.end - block.start <= room:
        return [block]
    least, most = block.start + room // 2, block.start + room
    line = text.rfind("\n", least, most) + 1
    sentence = 0
    if block.kind == _PROSE or not line:
        sentence = max((found.end() for found in _SENTENCE.finditer(text, least, most)), default=0)
    end = sentence or line or text.rfind(" ", least, most) + 1 or most
    return [*_trimmed(text, block.kind, block.start, end), *_trimmed(text, block.kind, end, block.end)]


def _trimmed(text: str, kind: str, start: int, end: int) -> Iterator[Block]:
    """What stands between these places without the space around it; the indent of its first line stays if all of that
    line is there."""
    while end > start and text[end - 1].isspace():
        end -= 1
    begin = start
    while begin < end and text[begin].isspace():
        begin += 1
    if begin < end:
        line = text.rfind("\n", max(0, start - 1), begin) + 1
        yield Block(kind, line if line or start == 0 else begin, end)


def _blocks(text: str, plain: bool) -> Iterator[Block]:
    """Paragraphs, lists, tables, fences and headings, and the signs of parts."""
    begin, kind, fence = 0, "", ""
    for start, end in _lines(text):
        line = _beginning(text, start, end)
        told = _kind(line, kind, fence, plain)
        if fence and told == _CODE:
            closing = _FENCE.match(line)
            if closing and closing[1].startswith(fence) and not line[closing.end() :].strip():
                yield from _trimmed(text, kind, begin, end)
                kind = fence = ""
            continue
        if told and told == kind:
            continue
        if kind:
            yield from _trimmed(text, kind, begin, start)
        begin, kind, fence = start, told, ""
        if told == _CODE and (mark := _FENCE.match(line)):
            fence = mark[1]
        elif told in (_TITLE, _PART):
            level = len(line) - len(line.lstrip("#"))
            yield Block(told, start, start + len(text[start:end].rstrip()), level)
            kind = ""
    if kind:
        yield from _trimmed(text, kind, begin, len(text))


def _beginning(text: str, start: int, end: int) -> str:
    """The line as far as it tells its kind; a longer indent than a chunk tells nothing."""
    line = text[start : min(end, start + CHARS_MAX)]
    if end - start <= CHARS_MAX or not line.isspace():
        return line
    return " " * 4 + text[start:end].lstrip()[:CHARS_MAX]


def _kind(line: str, before: str, fence: str, plain: bool) -> str:
    """The kind of block that the line belongs to; "" for a blank line."""
    bare = line.strip()
    if bare.startswith("<!-- ") and _SIGN.fullmatch(bare):
        return _PART
    if fence or (not plain and _FENCE.match(line)):
        return _CODE
    if not bare:
        return ""
    if not plain and line.startswith("#") and _HEADING.match(line):
        return _TITLE
    if bare.startswith("|"):
        return _TABLE
    return _LIST if before == _LIST or _ITEM.match(line) else _PROSE


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Where each line begins, and where the next one does."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield start, end
        start = end
