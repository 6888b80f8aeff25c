"""Stable hashes: the cause of a failure (for grouping), the input of a stage (for resuming), the identity of a call."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

#: Names with dots, IP addresses, and names with a port; file names look the same, and differ as much.
_HOST = re.compile(
    r"(?<![\w@.-])(?:[\w-]+(?:\.[\w-]+)*\.[a-z]{2,24}|\d{1,3}(?:\.\d{1,3}){3}|[a-z][a-z0-9-]*(?=:\d{2,5}\b))"
    r"(?::\d+)?(?!\w)|\[[0-9a-fA-F:]{2,45}\](?::\d+)?"
)
_VARIABLE = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.I), "<id>"),
    (re.compile(r"\b[a-z][a-z0-9+.-]{0,63}://\S+", re.I), "<url>"),  # no scheme is longer
    (re.compile(r"(?<![\w.])(?:/[^\s/:'\"]+){2,}/?"), "<path>"),
    (re.compile(r"(?<![\w./-])(?:[\w.-]++/)+[\w-]+\.\w{1,8}(?!\w)|\b[a-z]:\\\S+", re.I), "<path>"),
    (re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w.-]+"), "<mail>"),
    (re.compile(r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|`[^`]*`"), "<text>"),
    (_HOST, "<host>"),
    (re.compile(r"\b0x[0-9a-f]+\b|\b[0-9a-f]{12,}\b", re.I), "<hex>"),
    (re.compile(r"\d+(?:[.,:]\d+)*"), "<n>"),
)
_READ_MAX = 4_000
_MESSAGE_MAX = 400


def normalised(message: str, dependency: str | None = None) -> str:
    """The message without what differs from document to document: ids, addresses, host names, paths, quotes, numbers.
    The host that is the dependency itself stays, because it is the cause."""
    text = message[:_READ_MAX]
    for pattern, word in _VARIABLE:
        if pattern is _HOST and dependency is not None:
            text = pattern.sub(lambda found: _kept(found[0], dependency), text)
        else:
            text = pattern.sub(word, text)
    return " ".join(text.split())[:_MESSAGE_MAX]


def _kept(host: str, dependency: str) -> str:
    return host if host.rpartition(":")[0] == dependency or host == dependency else "<host>"


@lru_cache(maxsize=100)  # many that fail together fail alike
def failure_fingerprint(stage: str, error_type: str, message: str, dependency: str | None = None) -> str:
    """Failures with one cause share it: stage + error type + normalised message."""
    return digest(stage, error_type, normalised(message, dependency))[:16]


def digest(*parts: str | bytes | int | None) -> str:
    """A sha256 over the parts; written as literals, so no text can move from one part to the next."""
    return hashlib.sha256(ascii(parts).encode()).hexdigest()
