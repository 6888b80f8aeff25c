"""Header lines, as they come: folded, encoded by RFC 2047, encoded wrongly, or not at all."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_tz
from itertools import groupby

from perdure.core.frozen import frozen
from perdure.pipelines.extract.charset import decode
from perdure.pipelines.extract.part import clean

HEADER_CHARS_MAX = 2_000
ADDRESSES_MAX = 1_000
REFERENCES_MAX = 100
ID_CHARS_MAX = 500

_READ_CHARS_MAX = 100_000
_HEADERS_END = re.compile(rb"\r?\n\r?\n|\A\r?\n")
_ID = re.compile(r"<([^<>]+)>")
_SPACES = re.compile(r"\s+")
_WORD = re.compile(r"=\?([^?\s]{1,60})\?([bBqQ])\?([^?]*)\?=")
_HEX = re.compile(rb"=([0-9A-Fa-f]{2})")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]+")
# Each alternative matches whatever follows its first character: what is not closed ends with the header.
_TOKENS = re.compile(r'"(?:[^"\\]|\\.?)*"?|\((?:[^()\\]|\\.?)*\)?|<[^<>]*>?|[,;]|[^",;(<]+', re.S)
_LONE_ADDRESS = re.compile(r"(?<![^\s<>()\",;:])[^\s<>()\",;:]+@[^\s<>()\",;:]+")
_LOCAL_USER = re.compile(r"\s*[\w.+-]+\s*\Z")  # of this machine: root
_ESCAPED = re.compile(r"\\(.)", re.S)
_YEAR_FIRST, _YEAR_LAST = 1970, 2200


@frozen
class Address:
    """Who: `address` is as it was written; `name` is "" where none was given."""

    name: str
    address: str


def raw_headers(data: bytes, *names: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """The first header of each name, unfolded, b"" if there is none; and the body. `names` are in lower case."""
    end = _HEADERS_END.search(data)
    head = data[: end.start()] if end else data
    found = dict.fromkeys(names, b"")
    lower = head.lower()
    for name in names:
        at = 0 if lower.startswith(name + b":") else lower.find(b"\n" + name + b":") + 1
        if at or lower.startswith(name + b":"):
            found[name] = b" ".join(_value(head, at + len(name) + 1).split())
    return found, data[end.end() :] if end else b""


def _value(head: bytes, at: int) -> bytes:
    """From `at` to the end of the header: to the first line end that no space follows."""
    end = head.find(b"\n", at)
    while 0 <= end < len(head) - 1 and head[end + 1] in b" \t":
        end = head.find(b"\n", end + 1)
    return head[at : end if end >= 0 else len(head)]


def message_ids(value: bytes | str) -> list[str]:
    """The message ids in a header, without brackets and spaces, each once, in order. Words that are none are left
    out; a header without any bracket is taken by its words with an @."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    if "=?" in text:
        text = decode_words(text)
    found = _ID.findall(text) or [word for word in re.split(r"[\s,;]+", text.strip("<> \t")) if "@" in word]
    ids = (_SPACES.sub("", clean(word)) for word in found)
    return list(dict.fromkeys(word for word in ids if 0 < len(word) <= ID_CHARS_MAX))


def references(value: str, own: str) -> tuple[str, ...]:
    """What a message refers to, oldest first, without itself; of very many the first and the last ones."""
    ids = [word for word in message_ids(value) if word != own]
    return tuple(ids if len(ids) <= REFERENCES_MAX else [ids[0], *ids[1 - REFERENCES_MAX :]])


def decode_words(text: str) -> str:
    """The text on one line, with its encoded words decoded; what is broken in them is left out or U+FFFD.

    Bytes that are not ASCII stand in `text` as surrogates, as the parser of the standard library has them.
    """
    text, out, last = text[:_READ_CHARS_MAX], [], 0
    for near, run in groupby(_words(text), key=lambda word: word[0]):
        words = list(run)
        gap = text[last : words[0][1].start()]
        out.append(_eight_bit(gap) if near == 0 or gap.strip() else "")
        for charset, same in groupby(words, key=lambda word: word[1][1].partition("*")[0].lower()):
            # Some senders cut a character in two: what is encoded alike is put together before it is decoded.
            out.append(decode(b"".join(_word(word) for _, word in same), charset))
        last = words[-1][1].end()
    out.append(_eight_bit(text[last:]))
    return " ".join(clean("".join(out)).split())[:HEADER_CHARS_MAX]


def _words(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    # Numbered by runs of encoded words with nothing but space between them.
    run, last = 0, 0
    for word in _WORD.finditer(text):
        run += bool(text[last : word.start()].strip())
        yield run, word
        last = word.end()


def _word(word: re.Match[str]) -> bytes:
    if word[2] in "bB":
        letters = _NOT_BASE64.sub("", word[3])
        return binascii.a2b_base64(letters[: len(letters) - (len(letters) % 4 == 1)] + "==")
    data = word[3].replace("_", " ").encode("ascii", "surrogateescape")
    return _HEX.sub(lambda found: bytes([int(found[1], 16)]), data)


def _eight_bit(text: str) -> str:
    if text.isascii():
        return text
    return decode(text.encode("utf-8", "surrogateescape"))


def addresses(values: Sequence[str]) -> tuple[Address, ...]:
    """Everybody named in headers such as To; names of groups, and what has no address, are left out."""
    found: dict[tuple[str, str], Address] = {}
    for value in values:
        for name, address in _mailboxes(value):
            one = Address(decode_words(name), decode_words(address))
            found.setdefault((one.name, one.address.lower()), one)
            if len(found) == ADDRESSES_MAX:
                return tuple(found.values())
    return tuple(found.values())


def _mailboxes(value: str) -> Iterator[tuple[str, str]]:
    name, comment, address = "", "", ""
    for token in [*_TOKENS.findall(value[:_READ_CHARS_MAX]), ","]:
        if token in ",;":
            bare = None if address else _LONE_ADDRESS.search(name) or _LOCAL_USER.match(name)
            if bare:
                name, address = name.replace(bare[0], ""), bare[0].strip()
            if address:
                yield name.strip(' \t\r\n"<') or comment, address
            name, comment, address = "", "", ""
        elif token[0] == "<":
            address = _SPACES.sub("", token.strip("<>"))
        elif token[0] == "(":
            comment = _ESCAPED.sub(r"\1", token.strip("()"))
        elif token[0] == '"':
            name += _ESCAPED.sub(r"\1", token.strip('"'))
        else:
            name += token.rpartition(":")[2] if "@" not in token.partition(":")[0] else token


def date_of(value: str) -> datetime | None:
    """The moment in UTC; None for what is no date. Without a zone it counts as UTC."""
    try:
        parts = parsedate_tz(value)
        if parts is None or not _YEAR_FIRST <= parts[0] <= _YEAR_LAST:
            return None
        naive = datetime(*parts[:6], tzinfo=UTC)
        return datetime.fromtimestamp(naive.timestamp() - (parts[9] or 0), UTC)
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        return None
