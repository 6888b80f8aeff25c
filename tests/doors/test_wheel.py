"""The wheel, installed without extras into an environment of its own outside of the tree: what a newcomer has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doors.command import environment
from tests.doors.test_extras import COMMANDS, NEEDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def bin_(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, uv = tmp_path_factory.mktemp("wheel"), str(Path(sys.executable).with_name("uv"))
    for command in (
        [uv, "build", "--wheel", "--quiet", "--out-dir", str(place), str(ROOT)],
        [uv, "venv", "--quiet", "--python", sys.executable, str(place / "venv")],
    ):
        subprocess.run(command, check=True, timeout=300)
    (wheel,) = place.glob("*.whl")
    install = [uv, "pip", "install", "--quiet", "--python", str(place / "venv/bin/python"), "-c"]
    subprocess.run([*install, str(ROOT / "constraints.txt"), str(wheel)], check=True, timeout=300)
    return place / "venv" / "bin"


def run(bin_: Path, directory: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [bin_ / program, *arguments], cwd=directory, env=environment(), capture_output=True, text=True, timeout=500,
        check=False,
    )  # fmt: skip


def test_the_help_names_the_commands_that_are_tried_below(bin_: Path, tmp_path: Path) -> None:
    helped = run(bin_, tmp_path, "perdure", "--help").stdout
    names = set(re.findall(r"^│ ([a-z]+) ", helped, re.M))
    assert names == {command.partition(" ")[0] for command in COMMANDS}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_runs_or_says_what_to_install(command: str, bin_: Path, tmp_path: Path) -> None:
    ended = run(bin_, tmp_path, "perdure", *command.split(), *COMMANDS[command])
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.returncode == 0 or ended.stderr.endswith("]\n"), ended.stderr
    if command in NEEDS:
        assert f"pip install 'perdure[{NEEDS[command]}]'" in ended.stderr


def test_the_first_example_of_the_readme_prints_what_the_readme_says(bin_: Path, tmp_path: Path) -> None:
    example = re.search(r"```python\n# books\.py\n(.*?)```", README, re.S)
    printed = re.search(r"    \$ python books\.py\n((?:    .+\n)+)", README)
    assert example is not None
    assert printed is not None
    (tmp_path / "books.py").write_text(example[1])
    ended = run(bin_, tmp_path, "python", "books.py")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == re.sub(r"^    ", "", printed[1], flags=re.M)


def test_what_the_wheel_lacks_is_said_by_the_library_too(bin_: Path, tmp_path: Path) -> None:
    ended = run(
        bin_, tmp_path, "python", "-c", "import perdure.client, perdure.testing, perdure.pipelines.image"
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "ImportError: images need Pillow: pip install 'perdure[images]'"
