"""Chunks are verbatim passages of the text, and the same everywhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from perdure.pipelines.chunk import CHARS_MAX, PIECE_CHARS, chunks

BOOK = "\n\n".join(
    f"# Chapter {n}\n\n" + f"Überall, sentence {n} of naïve café prose about 東京. " * 40 for n in range(12)
)


def test_every_chunk_stands_where_it_says_and_nothing_but_space_is_left_out() -> None:
    found = chunks(BOOK, "d1", "hash")

    assert all(BOOK[c.start : c.end] == c.text for c in found)
    assert max(len(c.text) for c in found) <= CHARS_MAX
    assert [c.position for c in found] == list(range(len(found)))
    gaps = [BOOK[a.end : b.start] for a, b in pairwise(found)]
    assert "".join(gaps).strip() == ""
    assert (found[0].start, found[-1].end) == (0, len(BOOK.rstrip()))


@given(st.text(max_size=3000))
def test_any_text_is_cut_without_loss(text: str) -> None:
    found = chunks(text, "d", "h")

    assert all(text[c.start : c.end] == c.text for c in found)
    covered = "".join(c.text for c in found)
    assert "".join(covered.split()) == "".join(text.split())


def test_a_long_text_without_a_pause_is_cut_too() -> None:
    text = "x" * (2 * PIECE_CHARS + 7)

    found = chunks(text, "d", "h")

    assert "".join(c.text for c in found) == text
    assert max(len(c.text) for c in found) <= CHARS_MAX


def test_a_chunk_knows_the_part_it_begins_in() -> None:
    cut = BOOK.index("# Chapter 6")

    found = chunks(BOOK, "d1", "hash", [(cut, "page=7", 7), (0, "page=1", 1)])

    assert {(c.anchor, c.page) for c in found if c.start < cut} == {("page=1", 1)}
    assert {(c.anchor, c.page) for c in found if c.start >= cut} == {("page=7", 7)}
    assert {(c.anchor, c.page) for c in chunks(BOOK, "d1", "hash")} == {("", None)}


def test_ids_are_the_same_in_another_process_and_differ_by_document_content_and_place() -> None:
    found = [c.id for c in chunks(BOOK, "d1", "hash")]
    code = (
        "import json, sys; from perdure.pipelines.chunk import chunks; "
        "print(json.dumps([c.id for c in chunks(json.load(sys.stdin), 'd1', 'hash')]))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(BOOK), capture_output=True, text=True, check=True
    )

    assert json.loads(other.stdout) == found
    assert len(set(found)) == len(found)
    repeated = chunks("same words here. " * 1000, "d1", "hash")
    assert len({c.id for c in repeated}) == len(repeated)
    for document, content in (("d2", "hash"), ("d1", "other")):
        assert not set(found) & {c.id for c in chunks(BOOK, document, content)}


def test_the_sign_of_a_part_is_no_chunk() -> None:
    text = "<!-- section=1 -->\n\n" + "A sentence that is long enough to be one. " * 29
    found = chunks(text, "d", "h", [(0, "section=1", None)])
    assert [c.anchor for c in found] == ["section=1"] * len(found)
    assert all("sentence" in c.text for c in found)


def test_signs_of_parts_are_not_read_with_the_text_and_places_hold() -> None:
    pages = "\n".join(f"<!-- page={n} -->\n\nPage {n} says: {'so much more. ' * 60}\n" for n in range(1, 20))
    parts = [(m.start(), m[1], int(m[2])) for m in re.finditer(r"<!-- (page=(\d+)) -->", pages)]
    found = chunks(pages, "d", "h", parts)
    assert not [c.text for c in found if c.text.startswith("<!--") or c.text.endswith("-->")]
    assert all(pages[c.start : c.end] == c.text for c in found)
    assert {c.page for c in found if c.text.startswith("Page ")} == set(range(1, 20))
    assert all(c.page == int(c.text.split()[1]) for c in found if c.text.startswith("Page "))
