"""What users may rely on: the names, how light the import is, the errors and their codes."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import perdure
from perdure import errors, testing

NAMES = [
    "AsyncPerdure",
    "Context",
    "DependencyDown",
    "Document",
    "Gathered",
    "Perdure",
    "PerdureError",
    "Permanent",
    "Pipeline",
    "RateLimited",
    "Result",
    "RetryLater",
    "Row",
    "Summary",
    "Transient",
    "batched",
]

TESTING_NAMES = [
    "FakeClock", "Recording", "Runs", "Trial", "drain", "failing", "no_wait", "recording", "tick", "trial",
]  # fmt: skip

HEAVY = ["pydantic", "pydantic_settings", "asyncpg", "apsw", "structlog", "typer", "rich", "asyncio"]

CLASSES = [
    found
    for _, found in inspect.getmembers(errors, inspect.isclass)
    if issubclass(found, errors.PerdureError) and found.__module__ == errors.__name__
]


def test_the_public_names_are_these() -> None:
    assert sorted(perdure.__all__) == NAMES
    assert sorted(testing.__all__) == TESTING_NAMES
    for name in NAMES:
        assert getattr(perdure, name).__name__ == name
    for name in TESTING_NAMES:
        assert hasattr(testing, name)


def test_every_public_name_says_what_it_promises() -> None:
    for module, names in ((perdure, NAMES), (testing, TESTING_NAMES)):
        for name in names:
            found = getattr(module, name)
            assert found.__doc__, name
            verbs = vars(found).items() if inspect.isclass(found) else ()
            silent = [v for v, f in verbs if inspect.isfunction(f) and v[0] != "_" and not f.__doc__]
            if name not in ("AsyncPerdure", "Trial"):  # both have the verbs of Perdure
                assert silent == [], name


def test_the_awaited_app_has_every_verb_of_the_plain_one() -> None:
    plain = {name for name in vars(perdure.Perdure) if not name.startswith("_")}
    assert plain - set(dir(perdure.AsyncPerdure)) == set()
    for name in plain:
        parameters = [
            list(inspect.signature(getattr(app, name)).parameters.items())
            for app in (perdure.Perdure, perdure.AsyncPerdure)
        ]
        assert parameters[0] == parameters[1], name


def test_unknown_names_are_refused_like_any_modules() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Perdur'"):
        perdure.Perdur  # noqa: B018
    with pytest.raises(ImportError):
        exec("from perdure import Perdur")


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import perdure", set()),
        ("from perdure import Pipeline, Document, Context, Result, Row, Permanent, batched", {"asyncio"}),
    ],
)
def test_importing_it_imports_nothing_heavy(statement: str, allowed: set[str]) -> None:
    code = f"{statement}\nimport sys\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) <= allowed


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [kind.__dict__.get("code") for kind in CLASSES]
    assert None not in codes
    assert len(set(codes)) == len(CLASSES) > 20
    assert all(re.fullmatch(r"[a-z_]+", str(code)) for code in codes)


def test_every_error_is_drawn_in_the_tree_below_its_parent() -> None:
    tree = (errors.__doc__ or "").split("\n\n")[1]
    parents: dict[int, str] = {}
    drawn: dict[str, str | None] = {}
    for line in tree.splitlines():
        branch, names = re.match(r"([\s│├└─]*)(.*?)(?:  |$)", line).groups()  # type: ignore[union-attr]
        depth = len(branch)
        parent = next((parents[d] for d in sorted(parents, reverse=True) if d < depth), None)
        for name in re.findall(r"[A-Z]\w+", re.sub(r"\(.*?\)", "", names)):
            drawn[name] = parent
            parents = {d: p for d, p in parents.items() if d < depth} | {depth: name}
    actual = {kind.__name__: kind.__base__.__name__ for kind in CLASSES if kind.__base__ is not None}
    assert drawn == actual | {"PerdureError": None}


def test_a_code_can_be_more_exact_than_its_class() -> None:
    assert errors.InputInvalid("x").code == "input_invalid"
    assert errors.InputInvalid("x", code="text_nul").code == "text_nul"
    assert errors.Permanent("empty_document").code == "empty_document"
    assert str(errors.Permanent("empty_document")) == "empty_document"
    assert errors.DependencyDown("openai").name == "openai"
