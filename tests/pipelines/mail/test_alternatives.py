"""Of alternatives one is read: the plain text, unless it is only a notice; a broken one costs nothing."""

from __future__ import annotations

import pytest

from perdure.errors import Permanent
from perdure.pipelines.extract import extract, mail, summarise
from perdure.pipelines.extract.markup import parse_html
from perdure.pipelines.mail.message import decode

HEAD = b"From: a@x.example\nSubject: s\nMIME-Version: 1.0\n"
PLAIN = "The plain text of the message is good and says all of it."
BROKEN = {
    "comment": "<!-- x -->",
    "doctype": "<!DOCTYPE html>",
    "nested": "<div>" * 3_000 + "deep" + "</div>" * 3_000,
    "attributes": f"<p {' '.join(f'a{number}=1' for number in range(10_010))}>text</p>",
}


def alternative(*parts: tuple[str, str], kind: str = "alternative") -> bytes:
    body = "".join(f"--b\nContent-Type: {type_}\n\n{text}\n" for type_, text in parts)
    return HEAD + f"Content-Type: multipart/{kind}; boundary=b\n\n{body}--b--\n".encode()


@pytest.mark.parametrize("page", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("kind", ["alternative", "mixed"])
def test_html_that_cannot_be_read_leaves_the_plain_text(page: str, kind: str) -> None:
    message = alternative(("text/plain", PLAIN), ("text/html", page), kind=kind)
    assert decode(message).text == PLAIN
    assert PLAIN in next(extract(message)).text


@pytest.mark.parametrize("page", BROKEN.values(), ids=BROKEN)
def test_html_alone_that_cannot_be_read_is_refused(page: str) -> None:
    message = HEAD + f"Content-Type: text/html\n\n{page}\n".encode()
    with pytest.raises(Permanent) as refused:
        list(extract(message))
    assert refused.value.code in {"document_empty", "document_bomb"}


def test_html_that_cannot_be_read_and_says_more_marks_the_message() -> None:
    page = "<div>" * 3_000 + "word " * 500
    message = alternative(("text/plain", PLAIN), ("text/html", page))
    found = decode(message)
    assert (found.text, found.problems) == (PLAIN, ("text",))
    assert summarise(list(extract(message))).partial


def test_plain_text_is_taken_where_the_last_alternative_cannot_be_read() -> None:
    message = alternative(("text/enriched", PLAIN), ("text/html", BROKEN["nested"]))
    assert decode(message).text == PLAIN


def deep(leaf: str, depth: int) -> bytes:
    body = f"Content-Type: text/html\n\n{leaf}\n"
    for level in range(depth):
        plain = f"--b{level}\nContent-Type: text/plain\n\nhello\n"
        body = f"Content-Type: multipart/alternative; boundary=b{level}\n\n{plain}--b{level}\n{body}--b{level}--\n"
    return HEAD + body.encode()


def test_nested_alternatives_parse_a_page_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    parse = parse_html

    def counted(page: str) -> object:
        calls.append(page)
        return parse(page)

    monkeypatch.setattr(mail, "parse_html", counted)
    text = decode(deep(f"<p>{'word ' * 60}</p>", 40)).text
    assert text.count("word") == 60
    assert len(calls) == 1


def test_html_that_says_no_more_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(mail, "parse_html", calls.append)
    page = f"<html><body><p class=x>{PLAIN}</p><p>And <b>more</b>.</p></body></html>"
    assert decode(alternative(("text/plain", PLAIN), ("text/html", page))).text == PLAIN
    assert not calls
