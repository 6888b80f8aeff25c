"""Cuts a document's Markdown into chunks: passages of about 1,200 characters that end where a reader would pause."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence

from semantic_text_splitter import MarkdownSplitter

from perdure.core.chunk import Chunk, chunk_id
from perdure.core.words import ANCHOR

CHARS_MAX = 1_200
#: The version of how this cuts; a stage that uses it takes it into its own.
VERSION = 3
#: A long text is taken in pieces: where it has no place to pause, the splitter's time grows faster than the text.
PIECE_CHARS = 100_000

_LEADING = re.compile(rf"(?:\s*{ANCHOR})+\s*")
_SIGN = re.compile(ANCHOR)

#: Where a part of the text begins, its anchor, and its page if it has one.
PartStart = tuple[int, str, int | None]


def chunks(
    text_markdown: str, document_id: str, content_hash: str, parts: Sequence[PartStart] = ()
) -> list[Chunk]:
    """The chunks of the text, in order, each with its place in it and the part it begins in.

    Their ids follow from document, content, position and text: the same input gives the same ids everywhere.
    """
    ordered = sorted(parts, key=lambda part: part[0])
    starts = [start for start, _, _ in ordered]
    splitter = MarkdownSplitter(CHARS_MAX)
    found: list[Chunk] = []
    for begin, piece in _pieces(text_markdown):
        for offset, cut in splitter.chunk_indices(piece):
            lead, text = _trimmed(cut)
            if not text:
                continue  # the sign of a part whose text is in the next one
            start = begin + offset + lead
            place = bisect_right(starts, start) - 1
            _, anchor, page = ordered[place] if place >= 0 else (0, "", None)
            id_ = chunk_id(document_id, content_hash, len(found), text)
            found.append(Chunk(id_, len(found), start, start + len(text), text, anchor, page))
    return found


def _trimmed(chunk: str) -> tuple[int, str]:
    """The chunk without the signs of parts at its ends, which nobody reads, and how much went before it."""
    if "<!-- " not in chunk:
        return 0, chunk
    leading = _LEADING.match(chunk)
    lead = leading.end() if leading else 0
    end = len(chunk)
    for sign in reversed([*_SIGN.finditer(chunk, lead)]):
        if chunk[sign.end() : end].strip():
            break
        end = sign.start()
    return lead, chunk[lead:] if end == len(chunk) else chunk[lead:end].rstrip()


def _pieces(text: str) -> Iterator[tuple[int, str]]:
    """The text in pieces that end with a paragraph, a line or a word, whatever there is, and where they begin."""
    begin = 0
    while begin < len(text):
        end = begin + PIECE_CHARS
        if end < len(text):
            ends = (text.rfind(pause, begin + PIECE_CHARS // 2, end) + 1 for pause in ("\n\n", "\n", " "))
            end = next((place for place in ends if place), end)
        yield begin, text[begin:end]
        begin = end
