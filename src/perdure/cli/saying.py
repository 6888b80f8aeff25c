"""How commands print text that others wrote: names, errors, addresses, metadata.

A terminal obeys escape sequences, shows text after a bidi override backwards, and a line end in a name begins a line
that looks like ours. So commands print through `say` and `drawing.console` only; `print` is for JSON, which has all of
that escaped already.
"""

from __future__ import annotations

import re
from typing import TextIO

#: Control characters (C0, DEL, C1), marks and overrides of direction, line and paragraph separators, lone surrogates.
_HOSTILE = re.compile(
    r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def visible(text: str, lines: bool = False) -> str:
    """Return the text with what a terminal would obey written as JSON does (`\\u001b`); `lines`: line ends stay."""
    return _HOSTILE.sub(lambda found: _escaped(found[0], lines), text)


def say(text: object = "", file: TextIO | None = None, flush: bool = False) -> None:
    """Print one line."""
    print(visible(str(text)), file=file, flush=flush)


def say_lines(text: str, file: TextIO | None = None) -> None:
    """Print text whose line ends are ours."""
    print(visible(text.removesuffix("\n"), lines=True), file=file)


def _escaped(character: str, lines: bool) -> str:
    if character == "\n":
        return "\n" if lines else "\\n"
    return f"\\u{ord(character):04x}"
