"""The surfaces of Perdure as sorted text, without sentences: names, types, defaults and keys.

Wording may change at any time. A name, an option, a route, a field or a default is a promise to programs.
"""

from __future__ import annotations

import ast
import copy
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import typer.main

import perdure
from perdure import errors
from perdure.cli.main import app as command_line
from perdure.core import events
from perdure.core.model import ALIASES, State
from perdure.settings import Settings, variable
from perdure.watch.metrics import METRICS
from tests.api.server import openapi_document

SOURCES = Path(perdure.__file__).parent
LEVELS = ("debug", "info", "warning", "error", "exception", "critical")
PROSE = {"description", "summary", "title", "example", "examples"}
#: Modules whose `__all__` is public.
PUBLIC = ("perdure", "perdure.calls", "perdure.client", "perdure.errors", "perdure.testing")


def public_names() -> Iterator[str]:
    """Each public name with its parameters, if it has any."""
    for module_name in PUBLIC:
        module = importlib.import_module(module_name)
        names = getattr(module, "__all__", None) or [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module_name and not isinstance(value, TypeVar)
        ]
        for name in names:
            if not name.startswith("_"):
                value = getattr(module, name)
                yield f"{module_name}.{name}{_signature(value)}"
                if isinstance(value, type):
                    yield from (f"{name}.{member}" for member in _members(value))


def _members(kind: type) -> Iterator[str]:
    """Public attributes, and verbs with their parameters."""
    if is_dataclass(kind):
        yield from (f"{field.name} {_type(field.type)}" for field in fields(kind))
    for name in dir(kind):
        if not name.startswith("_") and not hasattr(BaseException, name):
            value = inspect.getattr_static(kind, name)
            plain = value.__func__ if isinstance(value, staticmethod | classmethod) else value
            yield f"{name}{_signature(plain)}"


def _signature(value: object) -> str:
    """Parameters with their types and defaults; nothing for a value."""
    if not callable(value) or (isinstance(value, type) and issubclass(value, BaseException)):
        return ""
    try:
        return _type(inspect.signature(value)).replace("'", "")
    except (TypeError, ValueError):
        return ""


def commands() -> Iterator[str]:
    """Each command with its options, their types and their defaults."""
    yield from _parameters("perdure", typer.main.get_command(command_line))


def _parameters(path: str, command: Any) -> Iterator[str]:
    for number, parameter in enumerate(command.params, 1):
        place = f"{number}. " if parameter.param_type_name == "argument" else ""
        words = place + " ".join(sorted((*parameter.opts, *parameter.secondary_opts)))
        many = "..." if parameter.nargs == -1 or getattr(parameter, "multiple", False) else ""
        needed = " required" if parameter.required else ""
        default = parameter.default
        shown = "" if default is None or callable(default) or parameter.name == "help" else f" = {default!r}"
        yield f"{path}: {words} {_type(parameter.type_descriptor.annotation)}{many}{needed}{shown}"
    for name, child in getattr(command, "commands", {}).items():
        yield f"{path} {name}"
        yield from _parameters(f"{path} {name}", child)


def routes() -> Iterator[str]:
    """The OpenAPI document: a line for each field of a type and for each part of a route."""
    document = copy.deepcopy(openapi_document())
    for name, schema in document["components"]["schemas"].items():
        for field, form in schema.get("properties", {}).items():
            needed = " required" if field in schema.get("required", ()) else ""
            yield f"{name}.{field}{needed} {_form(form)}"
        rest = {key: value for key, value in schema.items() if key not in ("properties", "required")}
        yield f"{name} {_form(rest)}"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for parameter in operation.pop("parameters", ()):
                yield f"{method.upper()} {path} {parameter['in']} {parameter['name']} {_form(parameter)}"
            for status, response in operation.pop("responses", {}).items():
                kinds = {} if status >= "400" else response.get("content", {})  # all errors have one form
                yield f"{method.upper()} {path} {status} {_form(kinds)}"
            for part in operation.keys() - PROSE:
                yield f"{method.upper()} {path} {part} {_form(operation[part])}"


def _form(value: Any) -> str:
    """The value as JSON, without sentences."""
    return json.dumps(_bare(value), sort_keys=True)


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _bare(inner) for key, inner in value.items() if key not in PROSE}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def metrics() -> Iterator[str]:
    """Each metric with kind and labels."""
    yield from (f"{one.name} {one.kind} {one.of} {','.join(one.labels)}" for one in METRICS)


def settings() -> Iterator[str]:
    """Each variable with type and default."""
    for name, field in Settings.model_fields.items():
        yield f"{variable(name)} {_type(field.annotation)} {field.default!r}"


def _type(annotation: Any) -> str:
    """The type without its modules."""
    bare = re.sub(r" at 0x\w+|\b\w+\.", "", str(annotation))
    return bare.removeprefix("<class '").removesuffix("'>")


def error_codes() -> Iterator[str]:
    """Each class of errors with its code and base, and each code that the sources name."""
    for kind in _classes(errors.PerdureError):
        if kind.__module__ == "perdure.errors":
            yield f"{kind.__name__}({', '.join(base.__name__ for base in kind.__bases__)}) {kind.code}"
    forms = (
        r'\bcode(?:: \w+)? ?= ?"([a-z_]+)"', r'Permanent\(\s*"([a-z_]+)"', r'Refused\(\s*\d+,\s*"([a-z_]+)"',
        r'Failure\([^,()]+,[^,]+,\s*"([a-z_]+)"',
    )  # fmt: skip
    for source in SOURCES.rglob("*.py"):
        text = source.read_text()
        yield from (code for form in forms for code in re.findall(form, text))


def _classes(base: type[errors.PerdureError]) -> Iterator[type[errors.PerdureError]]:
    yield base
    for child in base.__subclasses__():
        yield from _classes(child)


def states() -> Iterator[str]:
    """Each state, and each word of other systems for one."""
    yield from State
    for word, (meant, stage) in ALIASES.items():
        yield f"{word} = {' '.join(sorted(str(one) for one in meant))} {stage or ''}".rstrip()


def log_lines() -> Iterator[str]:
    """Each event of the engine with its facts, and each fixed text of a log line."""
    for name, kind in vars(events).items():
        if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__"):
            yield f"{name} {' '.join(field.name for field in fields(kind))}"
    for source in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and _is_log(node.func) and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    facts = sorted(keyword.arg for keyword in node.keywords if keyword.arg)
                    yield f"log: {first.value}: {' '.join(facts)}"


def _is_log(called: ast.expr) -> bool:
    if not isinstance(called, ast.Attribute) or called.attr not in LEVELS:
        return False
    logger = called.value.func if isinstance(called.value, ast.Call) else called.value
    return ast.unparse(logger) in ("log", "_log", "logger", "logging.getLogger", "getLogger")


SURFACES: dict[str, Callable[[], Iterator[str]]] = {
    "public_names": public_names,
    "commands": commands,
    "routes": routes,
    "metrics": metrics,
    "settings": settings,
    "error_codes": error_codes,
    "states": states,
    "log_lines": log_lines,
}


def written(name: str) -> str:
    """The surface as its file holds it."""
    return "".join(f"{line}\n" for line in sorted(set(SURFACES[name]())))
