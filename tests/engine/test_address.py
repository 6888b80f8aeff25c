"""A fresh process finds a stage by its address, whether it is in a module or in the script that was started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.engine.address import find_pipeline, load_module
from perdure.engine.pipeline import Pipeline, find, find_target, module_address
from perdure.errors import PipelineUnknown, StageUnknown

local = Pipeline("address-local")


@local.stage
def first(doc: object) -> int:
    return 1


def run(program: str, *, cwd: Path, arguments: tuple[str, ...] = ("-c",)) -> str:
    command = [sys.executable, *arguments, program]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


SCRIPT = """
import sys
from dataclasses import dataclass
from perdure.engine.address import stop_if_loading
from perdure.engine.pipeline import Pipeline
import neighbour

@dataclass
class Text:
    markdown: str

books = Pipeline("books")

@books.stage
def extract(doc) -> Text:
    return Text(neighbour.WORD)

@books.on_dead
def tell(doc, failure, ctx): ...

{end}
"""

START = """
def main():
    stop_if_loading()          # what an app does when it starts
    print(extract.target)
    print(books.hooks["dead"].stages[0].target)

try:
    main()
except Exception:
    sys.exit("swallowed")
after = 1
"""

GUARDED = """
if __name__ == "__main__":
    print(extract.target)
    print(books.hooks["dead"].stages[0].target)
"""

FIND = """
import json, sys
from perdure.engine.pipeline import find_target
for target in json.loads(sys.argv[1]):
    stage = find_target(target)
    assert find_target(target) is stage
    print(stage.fn(None, *([None, None] if stage.name == "tell" else [])))
"""


def find_elsewhere(targets: list[str], cwd: Path) -> list[str]:
    command = [sys.executable, "-c", FIND, json.dumps(targets)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "neighbour.py").write_text("WORD = 'sand'")
    return tmp_path / "shop"


@pytest.mark.parametrize("start", [START, GUARDED], ids=["unguarded", "guarded"])
@pytest.mark.parametrize("name", ["books.py", "books"])
def test_a_script_is_found_by_its_path_and_its_start_does_not_run(shop: Path, start: str, name: str) -> None:
    script = shop / name
    script.write_text(SCRIPT.format(end=start))
    targets = run(str(script), cwd=shop.parent, arguments=()).splitlines()
    assert targets == [f"{script}:books.extract", f"{script}:books.on_dead.tell"]
    assert find_elsewhere(targets, shop.parent) == ["Text(markdown='sand')", "None"]


def test_a_module_started_with_m_is_found_by_its_name(shop: Path) -> None:
    (shop / "books.py").write_text(
        SCRIPT.format(end=START).replace("import neighbour", "from . import neighbour")
    )
    targets = run("shop.books", cwd=shop.parent, arguments=("-m",)).splitlines()
    assert targets[0] == "shop.books:books.extract"
    assert find_elsewhere(targets, shop.parent) == ["Text(markdown='sand')", "None"]


def test_at_a_prompt_a_stage_has_no_address_but_runs(tmp_path: Path) -> None:
    end = """
try:
    extract.target
except Exception as error:
    print(type(error).__name__, books.module, extract(None))
"""
    program = SCRIPT.format(end=end).replace("import neighbour", "").replace("neighbour.WORD", "'x'")
    assert run(program, cwd=tmp_path) == "PipelineInvalid None Text(markdown='x')"


def test_what_is_not_there_is_said_so(tmp_path: Path) -> None:
    assert module_address(first.fn) == __name__
    assert find(__name__, "address-local", "first") is first
    assert find_target(first.target) is first
    assert find_pipeline("address-local") is local
    with pytest.raises(StageUnknown, match="no stage 'second'"):
        find(__name__, "address-local", "second")
    with pytest.raises(PipelineUnknown, match="address-other"):
        find(__name__, "address-other", "first")
    with pytest.raises(PipelineUnknown, match="no script"):
        load_module(str(tmp_path / "missing.py"))
    with pytest.raises(PipelineUnknown, match="no module"):
        load_module("perdure_missing")


def test_a_module_that_fails_to_load_is_not_left_half_loaded(tmp_path: Path) -> None:
    script = tmp_path / "broken.py"
    script.write_text("import sys\nraise ZeroDivisionError")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            load_module(str(script))
