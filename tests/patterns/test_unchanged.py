"""Ordinary text is read as before, where a pattern was replaced by one that takes less time, or by plain code."""

from __future__ import annotations

import pytest

from perdure.calls.charset import decode
from perdure.core.fingerprint import normalised
from perdure.pipelines.chunk import chunks
from perdure.pipelines.extract.archive import parse_xml
from perdure.pipelines.extract.charset import decode_markup
from perdure.pipelines.extract.docx_parts import W, numbered_lists
from perdure.pipelines.extract.markup import parse_html, to_markdown
from perdure.pipelines.extract.part import headings_of
from perdure.pipelines.extract.pdf import _bare
from perdure.pipelines.mail.headers import Address, addresses
from perdure.pipelines.mail.quotes import own_text
from perdure.pipelines.mail.threads import base_subject

SIGN = "<!-- page=1 -->"


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("a ", [(0, "a")]),
        (f"{SIGN}\n\na\n", [(17, "a")]),
        (f"a \n{SIGN}\n {SIGN}\n", [(0, "a")]),
        (f"a\n{SIGN}\nb\n{SIGN}", [(0, "a"), (18, "b")]),
        (f" {SIGN}\n {SIGN} ", []),
        (f"a {SIGN} <!-- page=x -->", [(0, f"a {SIGN} <!-- page=x -->")]),
    ],
)
def test_signs_of_parts_end_a_chunk_and_are_not_in_it(text: str, cut: list[tuple[int, str]]) -> None:
    assert [(chunk.start, chunk.text) for chunk in chunks(text, "d", "h")] == cut


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("# One", [(1, "One")]),
        ("## Two words  ##", [(2, "Two words")]),
        ("###### Six # six #", [(6, "Six # six")]),
        ("# C#", [(1, "C#")]),
        ("# ##", [(1, "##")]),
        ("# a ## ", [(1, "a ## ")]),
        ("####### Seven", []),
        ("#None", []),
        ("# \tnone", []),
    ],
)
def test_headings(line: str, found: list[tuple[int, str]]) -> None:
    assert [(one.level, one.title) for one in headings_of(line, "")] == found


@pytest.mark.parametrize(
    ("subject", "base"),
    [
        ("Re: Re[2]: [list] Fwd: Lunch (fwd) ", "lunch"),
        ("Lunch (FWD) (fwd)", "lunch (fwd)"),
        ("(fwd) Lunch", "(fwd) lunch"),
        ("Re:", ""),
        ("Regarding lunch", "regarding lunch"),
    ],
)
def test_subjects(subject: str, base: str) -> None:
    assert base_subject(subject) == base


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("ann@example.org", [Address("", "ann@example.org")]),
        ("Ann ann@example.org", [Address("Ann", "ann@example.org")]),
        ("Ann <ann@example.org>, bob@b", [Address("Ann", "ann@example.org"), Address("", "bob@b")]),
        ("root", [Address("", "root")]),
        ("Ann Bee", []),
    ],
)
def test_addresses(header: str, found: list[Address]) -> None:
    assert list(addresses([header])) == found


@pytest.mark.parametrize(
    ("title", "bare"),
    [
        ("Chapter 1.2. First steps", "firststeps"),
        ("1.2.3 Steps", "steps"),
        ("IV) Steps", "steps"),
        ("12345.6 Steps", "steps"),
        ("1..2 Steps", "1..2steps"),
    ],
)
def test_numbers_of_chapters(title: str, bare: str) -> None:
    assert _bare(title) == bare


@pytest.mark.parametrize(
    "head", ['<meta charset="koi8-r">', "<meta a charset = ' koi8-r'>", "<meta charset=\n koi8-r>"]
)
def test_a_page_says_its_charset(head: str) -> None:
    page = head.encode() + "<p>Да".encode("koi8-r")

    assert decode(page).charset == "koi8-r"
    assert decode_markup(page).endswith("Да")


@pytest.mark.parametrize(
    ("head", "charset"),
    [
        (b"<!-- <meta charset=koi8-r> --><p>", "utf-8"),
        (b"<!--> <meta charset=koi8-r> --><p>", "utf-8"),
        (b"<!-- a --><meta charset=koi8-r><!-- b --><p>", "koi8-r"),
        (b"<p><!-- <meta charset=koi8-r><p>", "koi8-r"),
    ],
)
def test_a_comment_says_nothing_of_the_charset(head: bytes, charset: str) -> None:
    assert decode(head).charset == charset


def test_spaces_around_the_end_of_a_line_go_and_others_are_one() -> None:
    page = parse_html("<p>a <i> </i><br> <i> </i> b <i> </i> c<br><br>d")

    assert to_markdown(page) == "a\nb c\n\nd"


def test_an_address_in_a_message_is_one_word() -> None:
    assert normalised("GET svn+ssh://host/a?b=1 failed") == "GET <url> failed"
    assert normalised("see x-http://host/a now") == "see <url> now"


def test_each_line_that_introduces_a_quote_goes() -> None:
    text = "Hi\n\nOn Monday Ann wrote:\n\nOn Tuesday 2020 Bob wrote:\n> a\n\n> b\nYes\n\n\n> c\nBye"

    assert own_text(text) == "Hi\n\nYes\n\nBye"


def test_lists_are_numbered_by_their_shape() -> None:
    def level(depth: int, form: str) -> str:
        return f'<w:lvl w:ilvl="{depth}"><w:numFmt w:val="{form}"/></w:lvl>'

    shapes = f'<w:abstractNum w:abstractNumId="7">{level(0, "decimal")}{level(1, "bullet")}</w:abstractNum>'
    lists = "".join(
        f'<w:num w:numId="{n}"><w:abstractNumId w:val="{7 if n < 3 else 8}"/></w:num>' for n in (1, 2, 3)
    )
    root = parse_xml(
        f'<w:numbering xmlns:w="{W[1:-1]}">{shapes}{lists}</w:numbering>'.encode(), "numbering.xml"
    )

    assert {listed: list(depths) for listed, depths in numbered_lists(root).items()} == {
        "1": ["0"],
        "2": ["0"],
        "3": [],
    }
    assert numbered_lists(None) == {}
