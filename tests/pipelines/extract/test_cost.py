"""The work for a document follows its size: nothing is done again for each level, line or part of it."""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable
from unittest import mock

import pytest

from perdure.pipelines.extract import around, extract, pdf_scan
from perdure.pipelines.extract.markup import parse_html
from perdure.pipelines.extract.trim import _LINK
from tests.pipelines.extract import made
from tests.pipelines.extract.made import paragraph, run, table


def calls(work: Callable[[], object]) -> int:
    """How many functions `work` calls, resumed generators included."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


WRAPPED = {
    "text": lambda depth: "<w:p>" + _within("sdt", depth, "<w:t>a</w:t>" * 3_000) + "</w:p>",
    "paragraphs": lambda depth: _within("sdt", depth, paragraph(run("a")) * 300),
    "rows": lambda depth: f"<w:tbl>{_within('sdt', depth, _row() * 300)}</w:tbl>",
}


def _within(kind: str, depth: int, text: str) -> str:
    return f"<w:{kind}>" * depth + text + f"</w:{kind}>" * depth


def _row() -> str:
    return f"<w:tr><w:tc>{paragraph(run('a'))}</w:tc></w:tr>"


@pytest.mark.parametrize("form", WRAPPED.values(), ids=WRAPPED)
def test_depth_of_a_word_document_costs_nothing_for_each_text(form: Callable[[int], str]) -> None:
    flat, deep = (made.docx(form(depth)) for depth in (2, 200))
    assert next(extract(flat)).text == next(extract(deep)).text
    assert calls(lambda: list(extract(deep))) < 2 * calls(lambda: list(extract(flat)))


def test_tables_in_tables_keep_their_text() -> None:
    inner = paragraph(run("innermost"))
    for _ in range(40):
        inner = table([["x"]]).replace("</w:tc>", f"{inner}</w:tc>", 1)
    text = next(extract(made.docx(inner))).text
    assert "innermost" in text
    assert text.count("x") == 40
    assert text.count("\\") < 2_000


def test_a_heading_is_read_once_for_all_parts_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counted:
        letters = 0

        def findall(self, text: str) -> list[str]:
            self.letters += len(text)
            return re.findall(r"[a-z0-9]+", text)

    words = Counted()
    monkeypatch.setattr(around, "_ID_WORD", words)
    levels, heading = 500, "nav menu " + "and more " * 1_000
    page = '<div id="nav-menu">' * levels + f"<h2>{heading}</h2><p>text</p>" + "</div>" * levels
    found = around.look_around(parse_html(page), 2_003)
    assert found.words == 0  # the heading explains the ids
    assert words.letters < 5 * len(heading) + 50 * levels


def test_the_search_for_a_link_ends_where_another_one_begins() -> None:
    assert [link[0] for link in _LINK.finditer("<http://a<http://b>")] == ["<http://b>"]


def test_lists_of_letters_are_looked_at_up_to_a_number_in_all() -> None:
    lists = b"/Differences [1 /f_i] " * 200_000  # of several slices
    stream = zlib.compress(lists)
    head = b"1 0 obj\n<< /Type /ObjStm /Filter /FlateDecode /Length %d >>\nstream\n" % len(stream)
    with mock.patch.object(pdf_scan, "_ligatures", wraps=pdf_scan._ligatures) as asked:
        found = pdf_scan.scan(b"%PDF-1.7\n" + (head + stream + b"\nendstream\nendobj\n") * 2)
    assert found.ligatures == {1: "fi"}
    assert len(asked.call_args.args[0]) <= 1_000
