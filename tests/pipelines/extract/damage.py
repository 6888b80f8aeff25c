"""Damage at random: each document must be read whole or refused with a code."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path

from perdure.errors import Permanent
from perdure.pipelines.extract import extract, join, summarise
from tests.pipelines.extract import hostile
from tests.pipelines.extract.reading import Cells

CODES = {"document_corrupt", "document_empty", "document_bomb", "document_encrypted", "type_unsupported"}
POISON = [
    b"\x00", b"<", b"<div>" * 300, b"&#0;", b"&#xD800;", b"]]>", b"\xff\xfe", b"<?x ?>", b"<!--", b"\xed\xa0\x80",
    b"<w:p>", b"<a:b>", b"xmlns=''", b"--x\n", b"Content-Type: multipart/mixed; boundary=x\n",
]  # fmt: skip


def assert_read_or_refused(data: bytes, *, archive: bool) -> None:
    """Damage the document in forty ways, an archive mostly inside of its members."""
    for seed in range(40):
        chance = random.Random(seed)
        damaged = _mutated_member(data, chance) if archive and seed % 4 else _mutated(data, chance)
        try:
            parts = list(extract(damaged))
            summarise(parts)
        except Permanent as refused:
            if refused.code not in CODES:
                raise
            continue
        assert "\x00" not in join(parts)
        join(parts).encode()


def assert_no_flip_unseen(cells: Cells, data: bytes, directory: Path) -> None:
    """Turn over two bits of a PDF, in 24 ways: it gives the whole text or is refused."""
    whole = directory / "whole.pdf"
    whole.write_bytes(data)
    paths = [directory / f"flipped-{seed}.pdf" for seed in range(24)]
    for seed, path in enumerate(paths):
        path.write_bytes(hostile.flipped(data, seed, bits=2))
    text = cells.read(whole)["text"]
    answers = cells.read_all(paths)
    assert not [answer for answer in answers if isinstance(answer, dict) and answer["text"] != text]
    assert {answer.code for answer in answers if isinstance(answer, Permanent)} == {"document_corrupt"}
    assert not [answer for answer in answers if not isinstance(answer, dict | Permanent)]


def _mutated(data: bytes, chance: random.Random) -> bytes:
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


def _mutated_member(archive: bytes, chance: random.Random) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        members = [(name, opened.read(name)) for name in opened.namelist()]
    victim = chance.randrange(len(members))
    members[victim] = (members[victim][0], _mutated(members[victim][1], chance))
    return hostile.zipped(members)
