"""Every setting, command, error code, state word and README line is documented and works."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from perdure import errors
from perdure.cli.main import app
from perdure.core.model import ALIASES, State
from perdure.settings import Settings, variable

ROOT = Path(__file__).parents[2]
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_every_setting_is_documented_with_its_default(name: str) -> None:
    row = re.search(rf"^\| `{variable(name)}` \| (.*?) \|", REFERENCE, re.M)
    assert row, f"{variable(name)} has no row in docs/reference.md"
    default = Settings.model_fields[name].default
    if default is not None:
        written = row[1].strip("`")
        assert str(default).removesuffix(".0") == written


def test_no_setting_is_documented_that_does_not_exist() -> None:
    documented = set(re.findall(r"^\| `([A-Z]+_\w+)` \|", REFERENCE, re.M))
    assert documented == {variable(name) for name in Settings.model_fields}


def test_every_command_is_documented() -> None:
    names = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    } | {group.name for group in app.registered_groups}
    documented = set(re.findall(r"^\| `perdure (\w+)", REFERENCE, re.M))
    assert names == documented


def _classes(base: type[errors.PerdureError]) -> list[type[errors.PerdureError]]:
    return [base, *(found for child in base.__subclasses__() for found in _classes(child))]


def test_every_error_code_is_documented_beside_its_class() -> None:
    for kind in _classes(errors.PerdureError):
        if kind.__module__ == "perdure.errors":
            assert re.search(rf"^\| `{kind.code}` \| {kind.__name__} \|", REFERENCE, re.M), kind


def test_every_exact_code_in_the_source_is_documented() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    codes = {
        code
        for form in (r'\bcode="([a-z_]+)"', r'Permanent\(\s*"([a-z_]+)"', r'Refused\(\s*\d+,\s*"([a-z_]+)"')
        for code in re.findall(form, source)
    }
    stages_own = {"empty_document"}
    undocumented = {code for code in codes - stages_own if f"`{code}`" not in REFERENCE}
    assert not undocumented


def test_every_state_and_alias_is_documented() -> None:
    for word in (*State, *ALIASES):
        assert re.search(rf"\b{word}\b", REFERENCE), word


def test_the_readme_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    code = re.search(r"```python\n# books.py\n(.*?)```", README, re.S)
    shown = re.search(r"\$ python books\.py\n(.*?)\n\n", README, re.S)
    assert code is not None
    assert shown is not None
    (tmp_path / "books.py").write_text(code[1])
    ran = subprocess.run(
        [sys.executable, "books.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.splitlines() == [line.strip() for line in shown[1].splitlines()]
    again = subprocess.run(
        [sys.executable, "books.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert again.stdout.startswith("exists")


def test_every_extra_is_in_the_readme() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    table = README.partition("| extra | brings |")[2].partition("A command or setting")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == set(extras) - {"dev"}
