"""The table of mutants: bugs that are planted one at a time, each with the tests that must find it.

A mutant replaces one text of one source file. The text must occur exactly once, so a change of the sources that moves
it is noticed, and the table is brought up to date.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from perdure.core.frozen import frozen

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SOURCES = ROOT / "src"


class NotApplicable(Exception):
    """The sources do not have the text that the mutant replaces, or have it more than once."""


@frozen
class Mutant:
    """One planted bug. `file` is relative to src/perdure, `tests` are paths and node ids of pytest, the quick first."""

    name: str
    file: str
    breaks: str
    old: str
    new: str
    tests: tuple[str, ...]

    def text(self, sources: Path) -> str:
        """The mutated file. NotApplicable unless the old text occurs exactly once."""
        original = self.path(sources).read_text(encoding="utf-8")
        if (found := original.count(self.old)) != 1:
            raise NotApplicable(
                f"mutant {self.name}: its old text occurs {found} times in {self.file}, not once; "
                "adapt the mutant to the present source"
            )
        return original.replace(self.old, self.new)

    def path(self, sources: Path) -> Path:
        return sources / "perdure" / self.file

    def plant(self, sources: Path) -> None:
        """Change the file in a copy of the sources."""
        self.path(sources).write_text(self.text(sources), encoding="utf-8")


def mutants() -> list[Mutant]:
    """All of them, in the order of the files of the table."""
    found: list[Mutant] = []
    for file in sorted(HERE.glob("*.toml")):
        with file.open("rb") as opened:
            rows = tomllib.load(opened)["mutant"]
        found += [Mutant(**(row | {"tests": tuple(row["tests"])})) for row in rows]
    return found
