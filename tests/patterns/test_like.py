"""No statement compares with a pattern that a caller gave: LIKE takes the length of both, multiplied."""

from __future__ import annotations

import re

from tests.patterns.found import SOURCES

#: Patterns that stand in the statement: a text in quotes, perhaps with a constant of the sources in it.
FIXED = re.compile(r"\bLIKE '%?/?(\{[A-Z_]+\}|\w+)%?'")
ANY = re.compile(r"\bI?LIKE\s|\bSIMILAR TO\s|\bGLOB\s|\bREGEXP\s|regexp_\w+\(")


def test_patterns_of_statements_are_fixed() -> None:
    files = sorted({*SOURCES.rglob("*.py"), *SOURCES.rglob("*.sql")})
    lines = [f"{path.name}: {line.strip()}" for path in files for line in path.read_text().splitlines()]

    assert [line for line in lines if ANY.search(FIXED.sub("", line))] == []
    assert sum(len(FIXED.findall(line)) for line in lines) > 5
