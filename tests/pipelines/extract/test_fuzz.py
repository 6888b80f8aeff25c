"""A damaged document is read or refused with a code; nothing else comes out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pipelines.extract import made
from tests.pipelines.extract.damage import assert_read_or_refused

MAIL = (
    b"From: a@example.org\nSubject: x\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=q\n\n--q\n"
    b"Content-Type: text/plain; charset=utf-8\n\nhello w\xc3\xb6rld\n--q\n"
    b"Content-Type: text/html\nContent-Transfer-Encoding: quoted-printable\n\n<p>a=20b</p>\n--q\n"
    b"Content-Type: application/pdf; name*=utf-8''a%20b\nContent-Disposition: attachment\n\nAAAA\n--q--\n"
)
SOURCES: dict[str, Callable[[], bytes]] = {
    "docx": made.detailed_docx,
    "epub": made.detailed_epub,
    "html": lambda: made.page("Damaged", {f"Part {number}": made.prose(80, number) for number in range(8)}),
    "mail": lambda: MAIL,
    "pdf": lambda: made.long_pdf(4, 300),
    "pdf without object streams": lambda: made.long_pdf(4, 300, streams=False),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_damage_is_refused_or_read(kind: str) -> None:
    assert_read_or_refused(SOURCES[kind](), archive=kind in ("docx", "epub"))
