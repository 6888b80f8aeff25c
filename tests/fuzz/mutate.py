"""Damage to a file, the same for the same seed: flips, cuts, splices, repeats, numbers, nesting, tokens, zip lies."""

from __future__ import annotations

import io
import random
import re
import struct
import zipfile
from collections.abc import Callable

from tests.fuzz import corpus
from tests.fuzz.tokens import COMMON, DIGITS, NESTED, NUMBERS, TOKENS
from tests.pipelines.extract.hostile import zipped

BYTES_MAX = 4 << 20
ARCHIVES = ("docx", "epub")

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
    opening, closing = chance.choice(NESTED)
    at, to = _place(raw, chance)
    raw[at:at] = opening * depth + raw[at:to] + closing * depth


def _lie(raw: bytearray, chance: random.Random) -> None:
    """A header of the archive that says something else: method, flags, time, sizes, lengths, offsets."""
    signatures = [found.start() for found in re.finditer(rb"PK(\x01\x02|\x03\x04|\x05\x06)", raw)]
    for at in chance.sample(signatures, min(len(signatures), chance.choice([0, 1, 3]))):
        field = at + chance.choice([4, 6, 8, 10, 14, 18, 20, 22, 24, 26, 28, 30, 42])
        form = chance.choice(["<H", "<I"])
        if field + 4 <= len(raw):
            struct.pack_into(
                form, raw, field, chance.choice(NUMBERS) & (0xFFFF if form == "<H" else 0xFFFF_FFFF)
            )


MUTATIONS: tuple[Mutation, ...] = (_flip, _noise, _cut, _splice, _repeat, _number, _digits, _token, _nest)
