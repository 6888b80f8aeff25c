"""Every regular expression of the sources, and the methods that it is used with, read from the syntax tree.

A pattern is what stands as the first argument of a function of `re`. It is evaluated among the globals of its module,
so it may be put together from constants; one that is made of anything else is `Unseen`, and a test refuses it.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[2] / "src"
METHODS = frozenset("match fullmatch search sub subn split findall finditer".split())
#: Where the flags stand if they are not named.
_FLAGS_AT = {"compile": 1, "sub": 4, "subn": 4, "split": 3}
_HARMLESS = frozenset({"Match", "Pattern", "RegexFlag", "error", *re.RegexFlag.__members__})
_OTHER_ENGINES = frozenset({"re", "regex", "re2", "sre_compile", "sre_parse"})


@dataclass(frozen=True)
class Found:
    """A pattern, where it stands, and a method that is called with it."""

    place: str
    pattern: re.Pattern[Any]
    method: str


@dataclass(frozen=True)
class Unseen:
    """A use of `re` that hides a pattern from this search."""

    place: str
    why: str


class Module:
    """One file of the sources."""

    def __init__(self, text: str, place: str, names: dict[str, Any] | None = None) -> None:
        self.place = place
        self.tree = ast.parse(text)
        self._names = names

    @cached_property
    def names(self) -> dict[str, Any]:
        """Its globals."""
        if self._names is None:
            dotted = self.place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            self._names = vars(importlib.import_module(dotted))
        return self._names

    @cached_property
    def uses(self) -> dict[str, set[str]]:
        """The methods of patterns by the name of what they are taken from; "" for anything without a name."""
        found: dict[str, set[str]] = defaultdict(set)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and node.attr in METHODS and not _is_re(node.value):
                found[_name(node.value)].add(node.attr)
        return found

    @cached_property
    def calls(self) -> list[ast.Call]:
        """The calls that make a pattern or use one at once."""
        return [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _is_re(node.func.value)
            and node.func.attr in METHODS | {"compile"}
        ]

    def evaluated(self, call: ast.Call) -> re.Pattern[Any]:
        """The pattern of such a call; NameError and the like if its parts are no globals."""
        assert isinstance(call.func, ast.Attribute)
        at = _FLAGS_AT.get(call.func.attr, 2)
        flags = next((word.value for word in call.keywords if word.arg == "flags"), None)
        flags = call.args[at] if flags is None and len(call.args) > at else flags
        given = [self._value(part) for part in (call.args[0], flags) if part is not None]
        return re.compile(*given)

    def _value(self, node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), self.place, "eval"), dict(self.names))

    def names_of(self, call: ast.Call) -> set[str]:
        """The names that the statement around this call gives to it."""
        return {
            _name(target)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            if any(part is call for part in ast.walk(node.value))
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        }


def sources() -> list[Module]:
    """The files of the sources in which the module `re` is named."""
    return [
        Module(text, path.relative_to(SOURCES).as_posix())
        for path in sorted(SOURCES.rglob("*.py"))
        if re.search(
            r"\bimport .*\b(?:re|regex|re2|sre_\w+)\b|\bfrom (?:re|regex|re2|sre_\w+)\b",
            text := path.read_text(),
        )
        or re.search(r"\.(?:fullmatch|finditer)\b", text)
    ]


def patterns(modules: list[Module]) -> tuple[list[Found], list[Unseen]]:
    """All patterns, once for each method, and what cannot be seen."""
    found: dict[tuple[re.Pattern[Any], str], Found] = {}
    hidden: list[Unseen] = []
    for module in modules:
        hidden += _hidden(module)
        for call in module.calls:
            place = f"{module.place}:{call.lineno}"
            try:
                pattern = module.evaluated(call)
            except Exception as error:
                hidden.append(Unseen(place, f"{type(error).__name__}: {error}"))
                continue
            methods = _methods(module, call, modules)
            if not methods:
                hidden.append(Unseen(place, "no method of it is called"))
            for method in methods:
                found.setdefault((pattern, method), Found(place, pattern, method))
    return list(found.values()), hidden


def _methods(module: Module, call: ast.Call, modules: list[Module]) -> set[str]:
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr != "compile":
        return {call.func.attr}
    given = module.names_of(call)
    own = {method for name in given for method in module.uses.get(name, ())}
    public = {name for name in given if not name.startswith("_") or name == "_name_pattern"}
    others = {method for other in modules for name in public for method in other.uses.get(name, ())}
    if own or others:
        return own | others
    # one of several in a tuple or a dict: used under the name of a loop
    known = {name for one in module.calls for name in module.names_of(one)}
    used = {method for name, used in module.uses.items() if name not in known for method in used}
    return used - {"split"} or used  # which text has, too


def _hidden(module: Module) -> Iterator[Unseen]:
    called = {id(call.func) for call in module.calls}
    inside: set[int] = set()
    for node in ast.walk(module.tree):
        place = f"{module.place}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.ImportFrom) and node.module in _OTHER_ENGINES:
            yield Unseen(place, f"from {node.module} import; say import re")
        elif isinstance(node, ast.Import):
            for name in node.names:
                if name.name in _OTHER_ENGINES and (name.name != "re" or name.asname):
                    yield Unseen(place, f"import {name.name} as {name.asname or name.name}; say import re")
        elif isinstance(node, ast.Attribute) and _is_re(node.value):
            inside.add(id(node.value))
            if id(node) not in called and node.attr not in _HARMLESS:
                yield Unseen(place, f"re.{node.attr} is not called with a pattern here")
        elif _is_re(node) and id(node) not in inside:
            yield Unseen(place, "re is handed on")


def _is_re(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "re"


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else ""
