"""What readers do with foreign text takes time that grows with the text and not faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perdure.errors import redacted
from perdure.pipelines.chunk import chunks
from perdure.pipelines.extract.archive import parse_xml
from perdure.pipelines.extract.docx_parts import W, numbered_lists
from perdure.pipelines.extract.mail import MailReader
from perdure.pipelines.extract.markup import parse_html, to_markdown
from perdure.pipelines.extract.part import headings_of
from perdure.pipelines.extract.pdf_scan import scan
from perdure.pipelines.mail.headers import addresses
from perdure.pipelines.mail.quotes import own_text
from perdure.pipelines.mail.threads import base_subject
from tests.patterns.timing import LONG, SHORT, cpu_s, grown

Work = Callable[[int], Callable[[], object]]


def _lists(chars: int, *, shared: bool) -> Callable[[], object]:
    def parts() -> Iterator[str]:
        for n in range(chars // 100):
            shape = 0 if shared else n
            yield f'<w:abstractNum w:abstractNumId="{shape}"><w:lvl w:ilvl="{n}"/></w:abstractNum>'
            yield f'<w:num w:numId="{n}"><w:abstractNumId w:val="{shape}"/></w:num>'

    text = f'<w:numbering xmlns:w="{W[1:-1]}">{"".join(parts())}</w:numbering>'
    root = parse_xml(text.encode(), "numbering.xml")
    return lambda: numbered_lists(root)


def _repeated(again: str, use: Callable[[str], object], before: str = "", after: str = "") -> Work:
    def work(chars: int) -> Callable[[], object]:
        text = before + again * (chars // len(again)) + after
        return lambda: use(text)

    return work


def _chunks(text: str) -> object:
    return chunks(text, "d", "h")


def _page(text: str) -> object:
    return to_markdown(parse_html(text))


WORK: dict[str, Work] = {
    "lists that share a shape": lambda chars: _lists(4 * chars, shared=True),
    "lists of many shapes": lambda chars: _lists(4 * chars, shared=False),
    "quotes after empty lines": _repeated("\n>", own_text, "a"),
    "quotes after a long line": lambda chars: _repeated(">\n\n", own_text, "a" * chars + " \n")(chars),
    "prefixes of a subject": _repeated("Re: ", base_subject),
    "a subject of spaces": _repeated(" ", base_subject, "a", "b"),
    "an address without a sign": _repeated("a", lambda text: addresses([text])),
    "spaces between lines": _repeated("<span> </span>", _page, "a<br>", "b"),
    "a heading of spaces": _repeated("# a" + " " * 990 + "b\n", lambda text: list(headings_of(text, ""))),
    "signs of parts": _repeated("<!-- page=1 -->    ", _chunks, "a", "x"),
    "secrets after a question mark": _repeated("key", redacted, "?", "-="),
    "many parameters": _repeated("?key=", redacted),
    "many addresses": _repeated("://a", redacted, "@"),
    "slashes in an address": _repeated(":/", redacted, "postgres", "@"),
    "signs on lines": _repeated("<!-- page=1 -->\n\n", _chunks, "a", "x"),
    "a line without a pause": _repeated("a", _chunks),
    "headings alone": _repeated("# a\n", _chunks),
    "fences that end nowhere": _repeated("```\na\n~~~\n", _chunks),
    "streams without an end": _repeated(
        ">>stream\nendstream", lambda text: scan(text.encode()), "%PDF-1.4\n"
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_time_grows_with_the_text_and_not_faster(name: str) -> None:
    work = WORK[name]

    _, growth, fails = grown(work(SHORT), work(LONG))

    assert not fails, f"×{growth:.1f} for four times the text"


@pytest.mark.parametrize("again", ["a,", '"', "a b ", "(", "a@b "])
def test_a_header_of_any_length_is_read_in_the_time_of_a_short_one(tmp_path: Path, again: str) -> None:
    message = tmp_path / "a.eml"
    message.write_text(f"From: {again * (LONG // len(again))}\nSubject: Hello\n\nBody\n")

    def read() -> str:
        return MailReader(message).read(1).text

    cpu_s(read)
    assert read().startswith("# Hello\n\n")
    assert read().endswith("\n\nBody")


def test_text_in_marks_that_are_nested_deeply_is_kept() -> None:
    deep = to_markdown(parse_html("<p>" + "<b> " * 100 + "word" + " </b>" * 100))

    assert deep == "**word**"
