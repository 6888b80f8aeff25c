"""Whatever is done to a document, it is read or refused with a code; nothing else comes out."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

import pytest

from perdure.errors import Permanent
from perdure.pipelines.extract import extract, join, summarise
from tests.pipelines.extract import hostile
from tests.pipelines.extract.shelf import PDFS, RST, Shelf

CODES = {"document_corrupt", "document_empty", "document_bomb", "document_encrypted", "type_unsupported"}
POISON = [
    b"\x00", b"<", b"<div>" * 300, b"&#0;", b"&#xD800;", b"]]>", b"\xff\xfe", b"<?x ?>", b"<!--", b"\xed\xa0\x80",
    b"<w:p>", b"<a:b>", b"xmlns=''", b"--x\n", b"Content-Type: multipart/mixed; boundary=x\n",
]  # fmt: skip
MAIL = (
    b"From: a@example.org\nSubject: x\nMIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=q\n\n--q\n"
    b"Content-Type: text/plain; charset=utf-8\n\nhello w\xc3\xb6rld\n--q\n"
    b"Content-Type: text/html\nContent-Transfer-Encoding: quoted-printable\n\n<p>a=20b</p>\n--q\n"
    b"Content-Type: application/pdf; name*=utf-8''a%20b\nContent-Disposition: attachment\n\nAAAA\n--q--\n"
)


def mutated(data: bytes, chance: random.Random) -> bytes:
    raw = bytearray(data)
    for _ in range(chance.choice([1, 3, 10, 50])):
        at = chance.randrange(len(raw) + 1)
        to = at + chance.choice([1, 4, 50, 500])
        kind = chance.randrange(4)
        if kind == 0:
            raw[at : at + 1] = chance.randbytes(1)
        elif kind == 1:
            del raw[at:to]
        elif kind == 2:
            raw[at:at] = raw[at:to] * chance.choice([1, 3])
        else:
            raw[at:at] = chance.choice(POISON)
    return bytes(raw)


def mutated_member(archive: bytes, chance: random.Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        members = [(name, opened.read(name)) for name in opened.namelist()]
    victim = chance.randrange(len(members))
    members[victim] = (members[victim][0], mutated(members[victim][1], chance))
    return hostile.zipped(members)


@pytest.mark.parametrize("kind", ["docx", "epub", "html", "mail", "pdf"])
def test_damage_is_refused_or_read(shelf: Shelf, kind: str) -> None:
    sources = {"mail": MAIL, "pdf": shelf.plain(PDFS["refcard"]).read_bytes()}
    if kind not in sources:
        sources[kind] = shelf.pandoc(
            [Path(RST) / "l10n.rst.txt"], f"fuzz.{kind}", "--from=rst", "-s"
        ).read_bytes()
    for seed in range(40):
        chance = random.Random(seed)
        inside = kind in ("docx", "epub") and seed % 4
        data = mutated_member(sources[kind], chance) if inside else mutated(sources[kind], chance)
        try:
            parts = list(extract(data))
            summarise(parts)
        except Permanent as refused:
            if refused.code not in CODES:
                raise
            continue
        assert "\x00" not in join(parts)
        join(parts).encode()
