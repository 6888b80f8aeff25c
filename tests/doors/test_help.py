"""`perdure --help` answers at once, every command explains itself, and a slip is answered with how to do it."""

from __future__ import annotations

import statistics
import subprocess
import time

import pytest

from perdure import __version__
from perdure.cli import main
from tests.doors.command import COMMAND, environment, perdure, refused, succeeded

COMMANDS = ("add", "worker", "migrate", "status", "rerun", "demo", "version")


def test_help_is_quick(capsys: pytest.CaptureFixture[str]) -> None:
    def once() -> float:
        began_s = time.perf_counter()
        subprocess.run([*COMMAND, "--help"], env=environment(), stdout=subprocess.DEVNULL, check=True)
        return time.perf_counter() - began_s

    median_s = statistics.median(once() for _ in range(5))
    with capsys.disabled():
        print(f"\nperdure --help: {median_s * 1000:.0f} ms (300 are allowed on a quiet machine)")
    assert median_s < 1.0


def test_help_loads_nothing_heavy() -> None:
    script = "import sys, perdure.cli.main; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ("apsw", "asyncpg", "pydantic", "structlog", "asyncio", "perdure.app", "perdure.store.sql_store")
    ended = subprocess.run(
        [COMMAND[0], "-c", script, *heavy], env=environment(), capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"


def test_help_names_every_command() -> None:
    said = succeeded("--help")
    for command in COMMANDS:
        assert f" {command} " in said


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    said = succeeded(command, "--help")
    assert f"perdure {command}" in said
    explained = getattr(main, command).__doc__
    assert " ".join(explained.split()) in " ".join(said.split())


def test_version() -> None:
    assert succeeded("version") == f"{__version__}\n"


def test_an_unknown_command_is_a_usage_error() -> None:
    ended = perdure("sink")
    assert ended.returncode == 2
    assert "No such command 'sink'" in ended.stderr


def test_no_command_shows_the_help() -> None:
    ended = perdure()
    assert ended.returncode == 2
    assert ended.stdout.strip() == succeeded("--help").strip()


def test_a_wrong_setting_is_named_with_what_is_wrong() -> None:
    said = refused(2, "setting_invalid", "status", PERDURE_CONCURRENCY="many")
    assert "PERDURE_CONCURRENCY is 'many'" in said
