"""Measure the shape of the sources: `python scripts/house.py` prints each measure beside its bound and its target.

Exits with status 1 if a measure is above its bound. Bounds only go down: after a clean-up, lower them here.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parents[1] / "src" / "perdure"
STATEMENT = re.compile(r"\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|WITH)\s")
SQL_PLACES = ("store/", "labs/", "bench/", "demo/")
FUNCTION_LINES, FILE_LINES = 60, 400


class Measure(NamedTuple):
    """A number of the sources, the most that it may be today, and the most that it is to become."""

    name: str
    value: float
    bound: float
    target: float


class Sources:
    """All modules, read and parsed once."""

    def __init__(self, root: Path) -> None:
        self.texts = {
            path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(root.rglob("*.py"))
        }
        self.trees = {name: ast.parse(text) for name, text in self.texts.items()}
        self.lines = {name: text.count("\n") for name, text in self.texts.items()}

    def nodes(self) -> Iterator[tuple[str, ast.AST]]:
        """Every node with the module in which it stands."""
        for name, tree in self.trees.items():
            for node in ast.walk(tree):
                yield name, node

    def classes(self) -> dict[str, ast.ClassDef]:
        """Every class by its name; of two with one name the later one."""
        return {node.name: node for _, node in self.nodes() if isinstance(node, ast.ClassDef)}

    def count(self, pattern: str) -> int:
        """How often the pattern stands in the sources."""
        return sum(len(re.findall(pattern, text)) for text in self.texts.values())


def measures(sources: Sources) -> Iterator[Measure]:
    """The measures with the bounds of today."""
    lines = sources.lines.values()
    yield Measure("files", len(lines), 439, 250)
    yield Measure("lines", sum(lines), 65_900, 41_000)
    yield Measure("median lines of a file", statistics.median(lines), 128, 120)
    yield Measure("lines of the longest file", max(lines), 917, FILE_LINES)
    yield Measure(f"files over {FILE_LINES} lines", sum(n > FILE_LINES for n in lines), 15, 0)
    yield Measure(f"functions over {FUNCTION_LINES} lines", sum(_long_functions(sources)), 2, 0)
    yield Measure("deepest inheritance in store, app and blocking", max(_depths(sources)), 5, 2)
    yield Measure("methods of the largest class outside the doors", max(_methods(sources)), 93, 25)
    yield Measure("modules named by a gerund", sum(_gerund(name) for name in sources.texts), 57, 3)
    yield Measure("file names used twice", _twice(name.rpartition("/")[2] for name in sources.texts), 40, 8)
    classes = (node.name for _, node in sources.nodes() if isinstance(node, ast.ClassDef))
    yield Measure("class names used twice", _twice(classes), 62, 40)
    yield Measure("SQL statements in Python outside of the store", sum(_statements(sources)), 2, 0)
    yield Measure('"refused: " in texts', sources.count(r'"refused: '), 22, 1)
    yield Measure('"/" in key', sources.count(r'"/" in \w*key'), 2, 0)
    yield Measure("fmt: skip", sources.count("# fmt: skip"), 357, 40)
    yield Measure("Any", sources.count(r"\bAny\b"), 904, 250)


def _long_functions(sources: Sources) -> Iterator[bool]:
    for _, node in sources.nodes():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES


def _depths(sources: Sources) -> Iterator[int]:
    """How many classes of ours each class of store, app and blocking stands on, itself included."""
    classes = sources.classes()

    def depth(name: str) -> int:
        bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name) and base.id in classes]
        return 1 + max((depth(base) for base in bases if base != name), default=0)

    for module, node in sources.nodes():
        if isinstance(node, ast.ClassDef) and module.startswith(("store/", "app.py", "blocking.py")):
            yield depth(node.name)


def _methods(sources: Sources) -> Iterator[int]:
    doors = ("AsyncPerdure", "Perdure", "AsyncClient", "Client")
    for node in sources.classes().values():
        if node.name not in doors:
            yield sum(isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) for one in node.body)


def _statements(sources: Sources) -> Iterator[bool]:
    for module, node in sources.nodes():
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and not module.startswith(SQL_PLACES)
        ):
            yield STATEMENT.match(node.value) is not None


def _gerund(name: str) -> bool:
    return name.removesuffix(".py").endswith("ing")


def _twice(names: Iterator[str]) -> int:
    return sum(count > 1 and name != "__init__.py" for name, count in Counter(names).items())


def main() -> int:
    """Print the table; 1 if a measure is above its bound."""
    found = list(measures(Sources(SOURCES)))
    print(f"{'':50}{'now':>8}{'bound':>8}{'target':>8}")
    for one in found:
        mark = "  above its bound" if one.value > one.bound else "" if one.value > one.target else "  reached"
        print(f"{one.name:50}{one.value:8g}{one.bound:8g}{one.target:8g}{mark}")
    return int(any(one.value > one.bound for one in found))


if __name__ == "__main__":
    sys.exit(main())
