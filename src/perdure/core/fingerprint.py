"""Stable hashes: the cause of a failure (for grouping), the input of a stage (for resuming), the identity of a call."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

_VARIABLE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.I), "<id>"),
    (re.compile(r"\b[a-z][a-z0-9+.-]{0,63}://\S+", re.I), "<url>"),  # no scheme is longer
    (re.compile(r"(?<![\w.])(?:/[^\s/:'\"]+){2,}/?"), "<path>"),
    (re.compile(r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|`[^`]*`"), "<text>"),
    (re.compile(r"\b0x[0-9a-f]+\b|\b[0-9a-f]{12,}\b", re.I), "<hex>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
)
_READ_MAX = 4_000
_MESSAGE_MAX = 400


def normalised(message: str) -> str:
    """The message without what differs from document to document: ids, addresses, quotes, numbers."""
    text = message[:_READ_MAX]
    for pattern, word in _VARIABLE:
        text = pattern.sub(word, text)
    return " ".join(text.split())[:_MESSAGE_MAX]


@lru_cache(maxsize=100)  # many that fail together fail alike
def failure_fingerprint(stage: str, error_type: str, message: str) -> str:
    """Failures with one cause share it: stage + error type + normalised message."""
    return digest(stage, error_type, normalised(message))[:16]


def digest(*parts: str | bytes | int | None) -> str:
    """A sha256 over the parts; written as literals, so no text can move from one part to the next."""
    return hashlib.sha256(ascii(parts).encode()).hexdigest()
