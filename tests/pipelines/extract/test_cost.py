"""The work for a document follows its size: nothing is done again for each level, line or part of it."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from perdure.pipelines.extract import extract
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
