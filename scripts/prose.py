"""Find sentences that a reader stumbles over: `python scripts/prose.py [--list]`, run by `make check`.

Looks at docstrings, texts (help, messages) and documentation. A text that must hold such words, such as a
quotation, stands in ALLOWED with its reason.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
#: Hits that are left; the number only goes down.
BOUND = 1011
RULES = {
    "people": r"\b(?:who|what|which)ever\b|\b(?:some|no)body\b",
    "clause as subject": r"(?:^|[.:;] )(?:What|Whatever|Whoever|Who)(?: \w+){0,6}? "
    r"(?:is|are|was|were|has|goes|must|may)\b(?![^.]*\?)",
    "what is": r"\bwhat (?:is|was|are|were) "
    r"(?:not|there|another|given|asked|told|said|left|stored|known|read|written|found)\b",
    "so many": r"\bso (?:many|much) (?:seconds|bytes|times|of|a)\b|\bas many as\b (?:you|it) ",
    "old or vague words": r"\b(?:anew|in vain|for ever|made good|(?:is|are) none|gets? on|got on)\b",
    "press": r"\bto press\b|\bpresse[sd]\b",
    "gone": r"\b(?:is|are|was|were) (?:gone|away)\b",
    "tells of": r"\b(?:tells?|told) (?:of|so)\b",
}
PATTERNS = {
    rule: re.compile(pattern, 0 if rule == "clause as subject" else re.IGNORECASE)
    for rule, pattern in RULES.items()
}
#: (file, words): why they stay.
ALLOWED: dict[tuple[str, str], str] = {}


class Hit(NamedTuple):
    """A place that breaks a rule."""

    file: str
    line: int
    rule: str
    words: str


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The pieces of a file that people read, with their lines."""
    if path.suffix != ".py":
        code = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            code ^= line.startswith("```")
            if not code:
                yield number, line
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for number, line in enumerate(node.value.splitlines()):
                yield node.lineno + number, line


def files() -> Iterator[Path]:
    """All that is looked at."""
    yield from sorted((ROOT / "src").rglob("*.py"))
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md") if (ROOT / name).exists())


def hits() -> Iterator[Hit]:
    """All places that break a rule and are not allowed."""
    for path in files():
        name = path.relative_to(ROOT).as_posix()
        for line, text in texts(path):
            for rule, pattern in PATTERNS.items():
                for found in pattern.finditer(text):
                    if (name, found[0]) not in ALLOWED:
                        yield Hit(name, line, rule, found[0])


def main() -> int:
    """Print the hits; 1 if there are more than the bound."""
    found = list(hits())
    if "--list" in sys.argv or len(found) > BOUND:
        print("\n".join(f"{hit.file}:{hit.line}: {hit.rule}: {hit.words}" for hit in found))
    counts = ", ".join(f"{rule} {count}" for rule, count in Counter(hit.rule for hit in found).most_common())
    print(f"{len(found)} sentences to say plainly (bound {BOUND}): {counts or 'all are plain'}")
    return int(len(found) > BOUND)


if __name__ == "__main__":
    sys.exit(main())
