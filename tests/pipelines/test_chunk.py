"""Chunks are verbatim passages of the text, and the same everywhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.pipelines.chunk import CHARS_MAX, chunks
from perdure.pipelines.document import documents
from perdure.testing import drain, trial

TraceFunction = Callable[[FrameType, str, Any], Any]

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
    text = "x" * (200_007)

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


def _texts(text: str) -> list[str]:
    found = chunks(text, "d", "h")
    assert all(text[c.start : c.end] == c.text for c in found)
    assert max(len(c.text) for c in found) <= CHARS_MAX
    return [c.text for c in found]


def test_a_heading_stands_with_the_text_below_it() -> None:
    sections = "\n\n".join(f"## Part {n}\n\n" + f"Sentence {n} of it. " * 90 for n in range(5))

    found = _texts(f"# Book\n\n{sections}")

    assert not [text for text in found if all(line.startswith("#") or not line for line in text.split("\n"))]
    assert [text.split("\n")[0] for text in found if text.startswith("#")] == [
        "# Book", *(f"## Part {n}" for n in range(1, 5))
    ]  # fmt: skip


def test_a_page_of_headings_alone_belongs_to_the_next_one() -> None:
    text = "<!-- page=1 -->\n\n# Title\n\n<!-- page=2 -->\n\nText of it.\n"

    (chunk,) = chunks(text, "d", "h", [(0, "page=1", 1), (27, "page=2", 2)])

    assert (chunk.page, chunk.heading, chunk.text) == (2, "Title", "Text of it.")
    assert chunk.read == "Title\nText of it."
    (alone,) = chunks(text[:26], "d", "h")
    assert alone.text == "# Title"


def test_fences_and_tables_stay_whole_where_they_fit() -> None:
    fence = "```python\n" + "\n\n".join(f"line_{n} = {n}" for n in range(40)) + "\n```"
    table = "\n".join(["| a | b |", "|---|---|", *(f"| {n} | {n * n} |" for n in range(60))])
    prose = "Words before it. " * 50

    found = _texts(f"{prose}\n\n{fence}\n\n{prose}\n\n{table}\n\n{prose}")

    assert sum(fence in text for text in found) == 1
    assert sum(table in text for text in found) == 1
    long = _texts("```\n" + "\n".join(f"line {n}" for n in range(1_000)) + "\n```")
    assert all(text.startswith(("```", "line")) for text in long)
    assert not [text for text in long if text.strip("`\n") == ""]


def test_a_chunk_knows_the_headings_above_it() -> None:
    prose = "Some prose that goes on. " * 60
    text = f"# A\n\n{prose}\n\n## B\n\n{prose}\n\n## C\n\n{prose}\n\n# D\n\n{prose}"

    found = chunks(text, "d", "h", title="Book")

    assert list(dict.fromkeys(c.heading for c in found)) == ["Book\nA", "Book\nA\nB", "Book\nA\nC", "Book\nD"]
    assert found[1].read.startswith("Book\nA\nSome prose")
    assert found[0].read.startswith("Book\n# A\n")


def test_numbers_of_a_list_are_kept() -> None:
    items = "\n".join(f"{n}. {'item ' * 30}" for n in range(1, 40))

    found = _texts(items)

    assert [int(line.split(".")[0]) for text in found for line in text.split("\n")] == list(range(1, 40))


def test_a_line_behind_a_long_indent_is_kept() -> None:
    assert "zebra here" in " ".join(_texts("first\n" + " " * CHARS_MAX + "zebra here\nlast"))


def test_no_chunk_is_longer_than_the_most_it_may_have() -> None:
    for blanks in (599, 1_199, 1_200, 1_201, 2_500, 5_000):
        for begin in ("a", "", "x\n", "- a", "# a\n\nb"):
            text = begin + " " * blanks + "word " * 2_000
            assert sum(chunk.split().count("word") for chunk in _texts(text)) >= 1_999


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "# ", "- ", "| ", "```\n", "\n", "<!-- page=3 -->", "word. ", "x" * 1_300]),
            st.sampled_from([0, 1, 4, 599, 1_199, 1_201, 3_000]),
            st.sampled_from([" ", "\n", "\t", "word "]),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_every_word_stands_in_a_chunk(pieces: list[tuple[str, int, str]], plain: bool) -> None:
    text = "".join(f"{sign}w{number}{blank * count}" for number, (sign, count, blank) in enumerate(pieces))
    found = chunks(text, "d", "h", plain=plain)
    assert all(text[c.start : c.end] == c.text for c in found)
    assert max((len(c.text) for c in found), default=0) <= CHARS_MAX
    assert "".join("".join(c.text for c in found).split()) == "".join(text.split())


def test_many_headings_are_not_looked_at_again_for_each_line() -> None:
    steps, headings = 0, 2_000

    def trace(frame: FrameType, event: str, argument: object) -> TraceFunction:
        nonlocal steps
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        chunks("# a\n" * headings, "d", "h")
    finally:
        sys.settrace(before)
    assert 0 < steps < 150 * headings  # about 50; 600 where each looks at all headings that are held


CONFIGURATION = """\
# The port of the server
port = 80

Title
~~~~~

# The host
host = "example.org"
"""


def test_a_plain_text_has_neither_headings_nor_fences() -> None:
    (chunk,) = chunks(CONFIGURATION, "d", "h", plain=True)
    assert (chunk.text, chunk.heading) == (CONFIGURATION.strip(), "")
    (marked,) = chunks(CONFIGURATION, "d", "h")
    assert marked.heading == "The port of the server"


def test_files_that_are_not_markdown_are_cut_as_plain_text() -> None:
    with trial(documents) as app:
        text = f"first = 1\n\n{CONFIGURATION}"
        plain, marked = (
            app.add(data=f"{text}{name}".encode(), name=name, pipeline=documents)
            for name in ("a.conf", "a.md")
        )
        drain(app)
        assert [c.heading for c in app.chunks(plain.id)] == ["first = 1"]  # its title
        assert "The port" in app.chunks(marked.id)[-1].heading
