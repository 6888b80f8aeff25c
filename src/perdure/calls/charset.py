"""Bytes to text: what the content says itself counts most, then what was declared, then what it looks like.

Byte order mark, declared charset, <meta> or XML declaration, UTF-8, windows-1252. The text never contains NUL or half
a surrogate pair; whoever could not be read is U+FFFD, and it is told that there are some.
"""

from __future__ import annotations

import codecs
import re

from perdure.core.frozen import frozen

HEAD_BYTES = 4_096
LABEL_CHARS_MAX = 40
REPLACED = "\ufffd"
#: Text in UTF-8 stays UTF-8 with so many broken characters per good one outside ASCII.
BROKEN_SHARE = 0.1
#: Text in UTF-16 has at least so many zeros in every second byte, and hardly any in the others.
ZERO_SHARE = 0.4

BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
#: What a name that Python knows means on the web, where "latin-1" is windows-1252. Others are not understood:
#: UTF-7 and Python's own codecs would let content say one thing here and another thing elsewhere.
CODECS = {
    **{
        name: name
        for name in (
            "utf-8", "utf-16-le", "utf-16-be", "gb18030", "euc_jp", "iso2022_jp", "koi8-r", "koi8-u", "mac-roman",
            "mac-cyrillic", "cp866", "cp874", "cp932", "cp949", "big5hkscs",
            *(f"iso8859-{part}" for part in (2, 3, 4, 5, 6, 7, 8, 10, 13, 14, 15, 16)),
            *(f"cp125{page}" for page in range(9)),
        )
    },
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "gb2312": "gb18030", "gbk": "gb18030", "big5": "big5hkscs", "shift_jis": "cp932", "euc_kr": "cp949",
    "utf-16": "utf-16-le", "utf-8-sig": "utf-8",
}  # fmt: skip
#: Names that Python does not know, or knows otherwise.
_LABELS = {
    "x-sjis": "cp932", "windows-31j": "cp932", "ks_c_5601-1987": "cp949", "windows-949": "cp949",
    "windows-874": "cp874", "x-x-big5": "big5hkscs", "x-gbk": "gb18030", "unicode": "utf-16-le",
}  # fmt: skip

_META = re.compile(rb"<meta\s[^>]{0,500}?\bcharset\s*+=\s*+[\"']?\s*+([a-z0-9_:.-]{2,40})", re.IGNORECASE)
_XML = re.compile(rb"\s*<\?xml\s[^>]{0,200}?\bencoding\s*=\s*[\"']([a-z0-9_:.-]{2,40})", re.IGNORECASE)


@frozen
class Text:
    """The text, the codec that read it, and whether something in it could not be read."""

    text: str
    charset: str
    replaced: bool


def decode(content: bytes, declared: str | None = None) -> Text:
    """The text of the content. Never raises."""
    for mark, name in BOMS:
        if content.startswith(mark):
            return _read(content[len(mark) :], name)
    candidates = [known for label in (declared, _inside(content)) if label and (known := codec(label))]
    if not candidates and (shape := _utf_16(content)) is not None:
        candidates.append(shape)
    for name in (*candidates, "utf-8"):
        text = _strictly(content, name)
        if text is not None:
            return _without_nul(text, name, replaced=False)
    if candidates:
        return _read(content, candidates[0])
    return _read(content, "utf-8" if _mostly_utf_8(content) else "cp1252")


def codec(label: str) -> str | None:
    """The codec that the web means by this name of a charset, or None."""
    name = label.strip(" \t\"'").lower()[:LABEL_CHARS_MAX]
    try:
        return _LABELS.get(name) or CODECS.get(codecs.lookup(name).name)
    except (LookupError, ValueError):  # ValueError: a NUL in it
        return None


def _inside(content: bytes) -> str | None:
    """What the head of an HTML or XML text says; one that could be read as ASCII is not in UTF-16."""
    head = content[:HEAD_BYTES]
    if not head.lstrip().startswith(b"<"):
        return None
    found = _XML.match(head) or _META.search(_without_comments(head))
    label = found[1].decode("ascii") if found else None
    return "utf-8" if label and (codec(label) or "").startswith("utf-16") else label


def _without_comments(head: bytes) -> bytes:
    kept, at = [], 0
    while (begin := head.find(b"<!--", at)) >= 0 and (end := head.find(b"-->", begin + 4)) >= 0:
        kept.append(head[at:begin])
        at = end + 3
    return b"".join([*kept, head[at:]])


def _utf_16(content: bytes) -> str | None:
    """UTF-16 that nobody declared: its zeros give it away."""
    head = content[:HEAD_BYTES]
    half = len(head) // 2
    if half == 0:
        return None
    first, second = head[0::2].count(0) / half, head[1::2].count(0) / half
    if max(first, second) < ZERO_SHARE or min(first, second) > 1 - ZERO_SHARE:
        return None
    return "utf-16-le" if second > first else "utf-16-be"


def _strictly(content: bytes, name: str) -> str | None:
    try:
        return content.decode(name)
    except UnicodeError:
        return None


def _mostly_utf_8(content: bytes) -> bool:
    text = content.decode("utf-8", "replace")
    broken = text.count(REPLACED)
    good = len(text) - len(text.encode("ascii", "ignore")) - broken
    return broken < good * BROKEN_SHARE


def _read(content: bytes, name: str) -> Text:
    text = _strictly(content, name)
    if text is not None:
        return _without_nul(text, name, replaced=False)
    return _without_nul(content.decode(name, "replace"), name, replaced=True)


def _without_nul(text: str, name: str, replaced: bool) -> Text:
    if "\0" in text:
        return Text(text.replace("\0", REPLACED), name, True)
    return Text(text, name, replaced)
