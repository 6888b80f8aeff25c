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
VERSION = 4
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
    text_markdown: str, document_id: str, content_hash: str, parts: Sequence[PartStart] = (), title: str = ""
) -> list[Chunk]:
    """The chunks of the text, in order, each with its place in it and the part it begins in.

    Their ids follow from document, content, position and text: the same input gives the same ids everywhere. The
    `title` of the document stands above its headings.
    """
    ordered = sorted(parts, key=lambda part: part[0])
    starts = [start for start, _, _ in ordered]
    found: list[Chunk] = []
    named = " ".join(title.split())[:HEADING_CHARS_MAX]
    outline: dict[int, str] = {}
    for above, blocks in _packed(text_markdown):
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


def _packed(text: str) -> Iterator[tuple[list[Block], list[Block]]]:
    """Headings at the end of the part before, and the blocks of a chunk: a full one, with no heading at its end unless
    nothing follows."""
    above: list[Block] = []
    held: list[Block] = []
    for block in _fitting(text):
        if held and (block.kind == _PART or _is_full(held, block)):
            full, held = _without_headings(held)
            if full:
                yield above, full
                above = []
        if block.kind == _PART:
            above, held = [*above, *held], []
            continue
        if held and block.end - held[0].start > CHARS_MAX:
            room = CHARS_MAX - (block.start - held[0].start)
            if room > CHARS_MAX // 4 and block.kind != _TITLE:
                first, *held_next = _cut(text, block, room)
                yield above, [*held, first]
                above, held = [], held_next
                continue
            yield above, held  # headings as long as a chunk
            above, held = [], []
        held.append(block)
    if held or above:
        yield (above, held) if held else ([], above)


def _is_full(held: list[Block], block: Block) -> bool:
    most = CHARS_ENOUGH if block.kind == _TITLE else CHARS_MAX
    return block.end - held[0].start > most


def _without_headings(held: list[Block]) -> tuple[list[Block], list[Block]]:
    """Those that end a chunk, and the headings at their end, which begin the next one."""
    count = len(held)
    while count and held[count - 1].kind == _TITLE:
        count -= 1
    return held[:count], held[count:]


def _fitting(text: str) -> Iterator[Block]:
    """The blocks of the text, those that are larger than a chunk in pieces."""
    for block in _blocks(text):
        left = [block]
        while left:
            first, *left = _cut(text, left[0], CHARS_MAX)
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
    """What stands between these places without the space around it; the indent of its first line stays."""
    while end > start and text[end - 1].isspace():
        end -= 1
    begin = start
    while begin < end and text[begin].isspace():
        begin += 1
    if begin < end:
        yield Block(kind, max(start, text.rfind("\n", start, begin) + 1), end)


def _blocks(text: str) -> Iterator[Block]:
    """Paragraphs, lists, tables, fences and headings, and the signs of parts."""
    begin, kind, fence = 0, "", ""
    for start, end in _lines(text):
        line = text[start : min(end, start + CHARS_MAX)]
        told = _kind(line, kind, fence)
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


def _kind(line: str, before: str, fence: str) -> str:
    """The kind of block that the line belongs to; "" for a blank line."""
    bare = line.strip()
    if bare.startswith("<!-- ") and _SIGN.fullmatch(bare):
        return _PART
    if fence or _FENCE.match(line):
        return _CODE
    if not bare:
        return ""
    if line.startswith("#") and _HEADING.match(line):
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
