"""Words as search knows them: one way for what is indexed, for what is asked and for snippets, on every database.

A word is a run of letters and digits, folded: case, accents and ligatures make no difference. Scripts that are written
without spaces are cut into pairs of characters; what is asked in them is each pair, and all of them in this order.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from perdure.core.frozen import frozen

WORD_CHARS_MAX = 64
TERMS_MAX = 32
SNIPPET_CHARS = 240
PLACES_MAX = 40  # of words asked for that a snippet is chosen among

#: The sign of a part in a text; for machines, nobody wants to read it.
ANCHOR = r"<!-- ((?:page|chapter|section)=\d+) -->"
_SIGN = re.compile(rf"{ANCHOR}\s*")
_WORD = re.compile(r"[^\W_]+")
_FOREIGN = re.compile(r"[^\W\x00-\x7f]|[\u0300-\u036f]")  # a letter, digit or accent beyond ASCII
_SPACED = bytes(code if chr(code).isalnum() and code < 128 else 32 for code in range(256))
_ACCENT = re.compile("[\u0300-\u036f]+")
_SCRIPTS = re.compile(
    "[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+|[^\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+"
)
_UNSPACED = frozenset(map(chr, (*range(0x3040, 0x3100), *range(0x3400, 0xA000), *range(0xF900, 0xFB00))))
_QUOTED = re.compile('"([^"]*)"?|([^"]+)')

#: Words that must follow each other.
Term = tuple[str, ...]


def folded(text: str) -> str:
    """The text without what makes no difference to a search."""
    if text.isascii():
        return text.lower()
    bare = _ACCENT.sub("", unicodedata.normalize("NFKD", text.casefold()))
    return unicodedata.normalize("NFKC", bare).casefold()  # once more: a sign such as ℠ stands for capitals


def without_signs(text: str) -> str:
    """The text without the signs of parts."""
    return _SIGN.sub("", text) if "<!-- " in text else text


def words(text: str) -> list[str]:
    """The words of a text, in order."""
    # ASCII is enough for the words of most texts, and bytes are many times as fast to deal with
    if not text.isascii() and (_FOREIGN.search(text) or not unicodedata.is_normalized("NFKD", text)):
        text = folded(text)
        if _FOREIGN.search(text):
            return [word for run in _WORD.findall(text) for word in _cut(run)]
    found = text.lower().encode("ascii", "replace").translate(_SPACED).decode().split()
    long = max(map(len, found), default=0) > WORD_CHARS_MAX
    return [word[:WORD_CHARS_MAX] for word in found] if long else found


@frozen
class Asked:
    """What a query asks for. Any text is a query; what is no word is left out."""

    quoted: list[Term]  # phrases in quotes: they must be there
    joined: list[Term]  # what stands between spaces: the words of `here-document` belong together
    single: list[Term]  # each word of them

    @property
    def terms(self) -> list[Term]:
        """All that a snippet may show."""
        return self.quoted + self.single


def asked(query: str) -> Asked:
    """What the query asks for."""
    quoted: dict[Term, None] = {}
    joined: dict[Term, None] = {}
    single: dict[Term, None] = {}
    for match in _QUOTED.finditer(query):
        if match[1] is not None:
            quoted[tuple(words(match[1]))] = None
            continue
        for token in folded(match[2]).split():
            runs = [tuple(_cut(run)) for run in _WORD.findall(token)]
            single.update(dict.fromkeys((word,) for run in runs for word in run))
            joined[tuple(word for run in runs for word in run)] = None
    for found in (quoted, joined):
        found.pop((), None)
    return Asked(*(list(found)[:TERMS_MAX] for found in (quoted, joined, single)))


def snippet(text: str, terms: list[Term], chars: int = SNIPPET_CHARS) -> str:
    """The passage of about `chars` characters with the most of the words asked for; else the beginning."""
    text = without_signs(text)
    wanted = {word for term in terms for word in term}
    places: list[tuple[int, int, set[str]]] = []
    for run in _WORD.finditer(text):
        word = run[0]
        if hits := wanted.intersection((word.lower(),) if word.isascii() else words(word)):
            places.append((run.start(), run.end(), hits))
            if len(places) == PLACES_MAX:
                break
    best, most = 0, 0
    for n, (start, _, _) in enumerate(places):
        near = {word for _, end, hits in places[n:] if end - start <= chars for word in hits}
        if len(near) > most:
            best, most = start, len(near)
    start = max(0, min(best - chars // 6, len(text) - chars))
    return _whole_words(text, start, min(len(text), start + chars))


def _whole_words(text: str, start: int, end: int) -> str:
    """The passage on one line, not begun or ended within a word, with … where there is more."""
    if start and (gap := text.find(" ", start, start + 20)) >= 0:
        start = gap + 1
    if end < len(text) and (gap := text.rfind(" ", end - 20, end)) > start:
        end = gap
    passage = " ".join(text[start:end].split())
    return f"{'… ' if start else ''}{passage}{' …' if end < len(text) else ''}"


def _cut(run: str) -> Iterator[str]:
    """One word, or the pairs of characters of a script without spaces."""
    for part in _SCRIPTS.findall(run):
        if part[0] not in _UNSPACED or len(part) == 1:
            yield part[:WORD_CHARS_MAX]
        else:
            yield from (part[n : n + 2] for n in range(len(part) - 1))
