"""Damage to a file, the same for the same seed: flips, cuts, splices, repeats, numbers, nesting, tokens, zip lies."""

from __future__ import annotations

import io
import random
import re
import struct
import zipfile
from collections.abc import Callable

from tests.fuzz import corpus
from tests.pipelines.extract.hostile import zipped

BYTES_MAX = 4 << 20
ARCHIVES = ("docx", "epub")
NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF]
DIGITS = [b"0", b"-1", b"65536", b"2147483647", b"4294967296", b"99999999999999999999", b"1e999", b"0.0000001"]
COMMON = [b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n\n", b"%n%s", b"../../../etc/passwd"]
MARKUP = [
    b"<", b"]]>", b"<!--", b"&#0;", b"&#xD800;", b"&a;", b"<?x ?>", b"xmlns=''", b"<![CDATA[", b"<table><tr><td colspan=99999999>",
    b'<!DOCTYPE a [<!ENTITY a "&b;&b;"><!ENTITY b "&a;&a;">]>', b"<w:p>", b"<w:tbl><w:tr><w:tc>", b'<w:gridSpan w:val="99999999"/>',
    b'<w:ilvl w:val="-5"/>', b"<w:txbxContent>", b"<script>", b"<plaintext>", b"<meta charset=utf-7>", b"<base href='x'>",
]  # fmt: skip
PDF = [
    b"obj", b"endobj", b"stream\n", b"endstream", b"/Kids [2 0 R]", b"/Count 99999999", b"/Length 999999999", b"/Prev 0",
    b"/Filter [/FlateDecode /ASCIIHexDecode /LZWDecode]", b"/Parent 3 0 R", b"xref\n0 99999999\n", b"/W [8 8 8]", b"/First -1",
    b"/Type /ObjStm", b"/Encrypt 4 0 R", b"<< " * 600, b"[" * 2000, b"startxref\n0\n%%EOF", b"/Predictor 15 /Columns 1000000000",
]  # fmt: skip
MAIL = [
    b"\nFrom x Fri Mar  1 09:00:00 2024\n", b"Content-Type: multipart/mixed; boundary=q\n", b"--q\n", b"--q--\n", b"charset=utf-7",
    b"charset=rot13", b"charset=zlib", b"=?utf-8?b?////?=", b"=?x?q?=", b"Content-Transfer-Encoding: base64\n",
    b"Content-Type: message/rfc822\n\n", b"References: " + b"<a@b> " * 3000 + b"\n", b"Date: Fri, 99 Foo 99999 99:99:99 +9999\n",
    b"Content-Length: 99999999999\n", b"To: " + b"(" * 3000 + b"\n", b"From: " + b'"' * 999 + b"\n",
]  # fmt: skip
TOKENS = {
    "pdf": PDF, "docx": MARKUP, "epub": MARKUP, "html": MARKUP, "text": MARKUP, "eml": MAIL + MARKUP, "mbox": MAIL,
    "png": [b"IHDR", b"IDAT", b"IEND", b"PLTE", b"iCCP", b"eXIf", b"acTL", b"fcTL", b"zTXt"],
    "jpeg": [b"\xff\xd8", b"\xff\xd9", b"\xff\xda", b"\xff\xc4", b"\xff\xdb", b"\xff\xe1Exif\x00\x00", b"\xff\xdd", b"ICC_PROFILE\x00"],
    "webp": [b"RIFF", b"VP8 ", b"VP8L", b"VP8X", b"ANIM", b"ANMF", b"ALPH", b"EXIF"],
    "gif": [b"\x2c", b"\x21\xf9", b"\x21\xff", b"NETSCAPE2.0", b"\x3b"],
    "tiff": [b"II*\x00", b"MM\x00*", b"II+\x00", struct.pack("<HHII", 0x111, 4, 0xFFFF_FFFF, 8)],
    "other image": [b"ftyp", b"meta", b"iloc", b"iprp", b"\xff\x4f\xff\x51", b"P6 99999 99999 255\n"],
}  # fmt: skip

Mutation = Callable[[bytearray, random.Random, str], None]


def case(kind: str, seed: int) -> bytes:
    """The file of this kind and seed: a sound one, damaged in one to twenty places."""
    chance = random.Random(f"{kind}:{seed}")
    data = chance.choice(corpus.samples(kind))
    if kind in ARCHIVES and chance.random() < 0.7:
        return _member_damaged(data, chance, kind)
    return _damaged(data, chance, kind)


def _damaged(data: bytes, chance: random.Random, kind: str) -> bytes:
    raw = bytearray(data)
    for _ in range(chance.choice([1, 1, 2, 4, 20])):
        chance.choice(MUTATIONS)(raw, chance, kind)
        del raw[BYTES_MAX:]
    if kind in ARCHIVES:
        _lie(raw, chance)
    return bytes(raw)


def _member_damaged(archive: bytes, chance: random.Random, kind: str) -> bytes:
    """The archive packed again, with a damaged member or two, or one twice."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        members = [(name, opened.read(name)) for name in opened.namelist()]
    for _ in range(chance.choice([1, 1, 2])):
        victim = chance.randrange(len(members))
        name, content = members[victim]
        members[victim] = (name, _damaged_plainly(content, chance, kind))
    if chance.random() < 0.1:
        members.append((f"copy/{members[0][0]}", chance.choice(members)[1]))
    return zipped(members)


def _damaged_plainly(data: bytes, chance: random.Random, kind: str) -> bytes:
    raw = bytearray(data)
    for _ in range(chance.choice([1, 2, 8])):
        chance.choice(MUTATIONS)(raw, chance, kind)
        del raw[BYTES_MAX:]
    return bytes(raw)


# --- mutations --------------------------------------------------------------------------------


def _place(raw: bytearray, chance: random.Random) -> tuple[int, int]:
    at = chance.randrange(len(raw) + 1)
    return at, at + chance.choice([1, 2, 4, 16, 64, 512, 4096])


def _flip(raw: bytearray, chance: random.Random, kind: str) -> None:
    for _ in range(chance.choice([1, 1, 3, 30])):
        if raw:
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)


def _noise(raw: bytearray, chance: random.Random, kind: str) -> None:
    at, to = _place(raw, chance)
    raw[at:to] = chance.randbytes(to - at)


def _cut(raw: bytearray, chance: random.Random, kind: str) -> None:
    at, to = _place(raw, chance)
    del raw[at : to if chance.random() < 0.7 else len(raw)]


def _splice(raw: bytearray, chance: random.Random, kind: str) -> None:
    """A piece of another file, mostly of the same kind."""
    other = kind if chance.random() < 0.7 else chance.choice(corpus.KINDS)
    source = chance.choice(corpus.samples(other))
    begin, end = _place(bytearray(source), chance)
    at = chance.randrange(len(raw) + 1)
    raw[at : at + chance.choice([0, end - begin])] = source[begin:end]


def _repeat(raw: bytearray, chance: random.Random, kind: str) -> None:
    at, to = _place(raw, chance)
    raw[at:at] = raw[at:to] * chance.choice([1, 3, 100, 5_000])


def _number(raw: bytearray, chance: random.Random, kind: str) -> None:
    form = chance.choice(["B", "<H", ">H", "<I", ">I", "<Q", ">Q"])
    size = struct.calcsize(form)
    if len(raw) >= size:
        value = chance.choice(NUMBERS) & ((1 << 8 * size) - 1)
        struct.pack_into(form, raw, chance.randrange(len(raw) - size + 1), value)


def _digits(raw: bytearray, chance: random.Random, kind: str) -> None:
    if found := list(re.finditer(rb"\d+", raw)):
        at, to = chance.choice(found).span()
        raw[at:to] = chance.choice(DIGITS)


def _token(raw: bytearray, chance: random.Random, kind: str) -> None:
    at = chance.randrange(len(raw) + 1)
    raw[at:at] = chance.choice(TOKENS[kind] if chance.random() < 0.8 else COMMON)


def _nest(raw: bytearray, chance: random.Random, kind: str) -> None:
    """A structure within itself, many times."""
    depth = chance.choice([10, 200, 3_000, 50_000])
    opening, closing = chance.choice(
        [(b"<div>", b"</div>"), (b"<w:sdt>", b"</w:sdt>"), (b"[", b"]"), (b"<<", b">>"), (b"(", b")"), (b"<ul><li>", b"")]
        + [(b"<table><tr><td>", b""), (b"> ", b""), (b"<b><i>", b"</b>"), (b"*_", b"_*"), (b"q ", b"Q "), (b"- ", b"")]
    )
    at, to = _place(raw, chance)
    raw[at:at] = opening * depth + raw[at:to] + closing * depth


def _lie(raw: bytearray, chance: random.Random) -> None:
    """A header of the archive that says something else: method, flags, time, sizes, lengths, offsets."""
    signatures = [found.start() for found in re.finditer(rb"PK(\x01\x02|\x03\x04|\x05\x06)", raw)]
    for at in chance.sample(signatures, min(len(signatures), chance.choice([0, 1, 3]))):
        field = at + chance.choice([4, 6, 8, 10, 14, 18, 20, 22, 24, 26, 28, 30, 42])
        form = chance.choice(["<H", "<I"])
        if field + 4 <= len(raw):
            struct.pack_into(form, raw, field, chance.choice(NUMBERS) & (0xFFFF if form == "<H" else 0xFFFF_FFFF))


MUTATIONS: tuple[Mutation, ...] = (_flip, _noise, _cut, _splice, _repeat, _number, _digits, _token, _nest)
