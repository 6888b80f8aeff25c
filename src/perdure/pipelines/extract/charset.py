"""Bytes to text: by byte order mark, by what is declared, as UTF-8, then by a guess."""

from __future__ import annotations

import codecs
import re

from perdure.calls.charset import codec
from perdure.pipelines.extract.sniff import wide_encoding

_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"),
         (codecs.BOM_UTF16_BE, "utf-16"))  # fmt: skip
_META = re.compile(rb"""<meta[^>]{0,300}?charset\s*+=\s*+["']?\s*+([\w.:-]{2,40})""", re.I)
_PROLOGUE = re.compile(rb"""^\s*<\?xml[^>]{0,200}?encoding\s*=\s*["']([\w.:-]{2,40})""", re.I)
_GUESS_BYTES = 64 * 1024
_GUESS_FROM = 16  # letters beyond ASCII; fewer tell nothing
_HIGH = bytes(range(0x80, 0x100))


def decode(data: bytes, declared: str = "") -> str:
    """The text of `data`. Never fails: what no encoding explains becomes U+FFFD."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return data.decode(encoding, "replace").removeprefix("\ufeff")
    if wide := wide_encoding(data):
        return data.decode(wide, "replace")
    declared = codec(declared) or declared  # what is meant: latin-1 is windows-1252
    shifting = declared if declared.startswith("iso2022") and b"\x1b" in data else ""  # ASCII to look at
    for encoding in (shifting, "utf-8", declared):  # few texts of another encoding happen to be UTF-8
        try:
            if encoding and codecs.lookup(encoding)._is_text_encoding:
                return data.decode(encoding)
        except (LookupError, ValueError):
            continue
    try:  # surrogates written one by one: pairs are characters, lone ones are nothing
        halves = data.decode("utf-8", "surrogatepass")
        return halves.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    except UnicodeDecodeError:
        return data.decode(_guess(data, declared), "replace")


def decode_markup(data: bytes, declared: str = "") -> str:
    """As `decode`; what a page says of itself counts where the sender said nothing."""
    said = _META.search(data[:8192]) or _PROLOGUE.search(data[:1024])
    return decode(data, declared or (said[1].decode("ascii", "ignore") if said else ""))


def _guess(data: bytes, declared: str) -> str:
    # A text that is UTF-8 but for a few broken places stays UTF-8; more may be broken where it is declared.
    sample = data[:_GUESS_BYTES]
    text = sample.decode(errors="replace")
    bearable = 1 if declared == "utf-8" else 10
    if 0 < bearable * text.count("\ufffd") < sum(char > "\x7f" for char in text):
        return "utf-8"
    if len(sample) - len(sample.translate(None, _HIGH)) < _GUESS_FROM:
        return "cp1252"
    from charset_normalizer import from_bytes

    best = from_bytes(sample).best()
    return best.encoding if best is not None else "cp1252"
