"""A command whose extra is missing says what to install, with exit status 2 and without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import perdure.watch
from perdure.cli.main import app
from perdure.errors import EXTRAS, ExtraMissing
from perdure.service import AsyncPerdure
from tests.doors.command import environment

#: Runs the command as if no module of an extra were installed.
WITHOUT = f"""
import sys
GONE = {sorted(EXTRAS)!r}

class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in GONE:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name.partition(".")[0] in GONE else found(name, *more)
sys.meta_path.insert(0, Gone())
from perdure.cli.main import main
main()
"""
PNG = b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR" + bytes(17)
ID = "01970a5e-5c1b-7d34-a7ce-6f0a2d3c9b11"
#: Every command with arguments that lead into it; those that go on by themselves are stopped by what they are given.
COMMANDS = {
    "add": ["--text", "a word", "--work"], "worker": ["nowhere:app"], "migrate": [], "status": [], "dependencies": [],
    "search": ["word"], "rerun": ["--from", "embed", "--dry-run"], "sweep": ["--once"], "demo": ["--help"],
    "bench": ["--store", "postgres", "--quick"], "list": [], "show": [ID], "why": [ID], "timeline": [ID],
    "requeue": [ID], "cancel": [ID], "priority": [ID, "1"], "pause": ["documents"], "resume": ["documents"],
    "hold": ["openai"], "release": ["openai"], "limit": [], "acts": [], "audit": [], "serve": ["--port", "0"],
    "simulate": ["--plot", "chart.png", "--seeds", "1"], "metrics": [], "rules": [], "version": [],
    "runbook": [], "content": [ID], "delete": [ID], "events": ["--help"],
    "key list": [], "dead groups": [], "webhook list": [],
}  # fmt: skip
NEEDS = {"serve": "api", "bench": "trial", "simulate": "plot"}


def without_extras(directory: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments], cwd=directory, env=environment(**more), capture_output=True,
        text=True, timeout=500, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bare")
    assert without_extras(made, "migrate").returncode == 0
    return made


def test_every_command_is_tried() -> None:
    names = {
        command.name or command.callback.__name__ for command in app.registered_commands if command.callback
    }
    names |= {str(group.name) for group in app.registered_groups}
    assert names == {name.partition(" ")[0] for name in COMMANDS}


@pytest.mark.parametrize(
    "command",
    [name if name in NEEDS else pytest.param(name, marks=pytest.mark.full) for name in sorted(COMMANDS)],
)
def test_a_command_runs_or_says_what_to_install(command: str, directory: Path) -> None:
    ended = without_extras(directory, *command.split(), *COMMANDS[command])
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.returncode == 0 or ended.stderr.endswith("]\n"), ended.stderr
    if command in NEEDS:
        assert (ended.returncode, "[extra_missing]" in ended.stderr) == (2, True)
        assert f"pip install 'perdure[{NEEDS[command]}]'" in ended.stderr


def test_an_image_is_refused_at_the_door_where_nothing_processes_images(directory: Path) -> None:
    (directory / "photo.png").write_bytes(PNG)
    ended = without_extras(directory, "add", "photo.png")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert (
        "photo.png: image/png is an image; to process images run: pip install 'perdure[images]'"
        in ended.stderr
    )


def test_what_the_settings_need_is_looked_for_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RABBITMQ_HOST", "localhost")
    for module in ("perdure.watch.bus", "perdure.watch.broker"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr(perdure.watch, "bus", raising=False)
    monkeypatch.setitem(sys.modules, "aio_pika", None)
    with pytest.raises(ExtraMissing, match=r"perdure\[rabbitmq\]"):
        AsyncPerdure(f"sqlite:///{tmp_path}/a.db").check_settings()


@pytest.mark.parametrize(
    ("variables", "extra"),
    [
        ({"PERDURE_BLOBS": "s3://bucket/blobs"}, "s3"),
        ({"PERDURE_EMBEDDER": "wordllama"}, "embed"),
        ({"PERDURE_EMBEDDER": "minilm"}, "minilm"),
        ({"RABBITMQ_HOST": "localhost"}, "rabbitmq"),
    ],
)
def test_a_setting_that_needs_an_extra_names_it(
    variables: dict[str, str], extra: str, directory: Path
) -> None:
    ended = without_extras(directory, "add", "--text", "another word", "--work", **variables)
    assert ended.returncode == 2
    assert f"pip install 'perdure[{extra}]'" in ended.stderr
    assert "Traceback" not in ended.stderr
