"""Texts that are alike or not, as is asked: passages of one theme and number are near, all others far apart."""

from __future__ import annotations

import random
import string

from tests.pipelines.extract.hostile import chapter, epub

WORDS = 110  # of a passage: with them it fills a chunk, and two of them do not fit into one
OTHER_WORDS = 12  # that each voice says differently


def passage(theme: str, number: int, voice: str, mark: str = "") -> str:
    """One paragraph; `mark`, if there is one, is said every few words."""
    said = [_word(random.Random(f"{theme} {number} {n}")) for n in range(WORDS)]
    rng = random.Random(f"{theme} {number} {voice}")
    for n in rng.sample(range(WORDS), OTHER_WORDS):
        said[n] = _word(rng)
    return " ".join(f"{word} {mark}" if mark and n % 10 == 0 else word for n, word in enumerate(said))


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=8))


def book(theme: str, voice: str, chapters: int) -> bytes:
    """An EPUB with a passage per chapter; books of one theme are alike chapter by chapter."""
    return epub([chapter(b"<p>%s</p>" % passage(theme, n, voice).encode()) for n in range(chapters)])


def note(theme: str, voice: str, passages: int, mark: str) -> str:
    """A text that says its mark in each of its passages."""
    return "\n\n".join(passage(theme, n, voice, mark) for n in range(passages))
