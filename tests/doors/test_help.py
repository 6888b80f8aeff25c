"""`perdure --help` loads little, every command explains itself, and a slip is answered with how to do it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import __version__
from perdure.cli import main
from tests.doors.command import COMMAND, complaints, environment, perdure, refused, succeeded

COMMANDS = ("add", "worker", "migrate", "status", "rerun", "demo", "version")


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


@pytest.mark.full
def test_commands_load_what_they_need_and_end_in_silence(tmp_path: Path) -> None:
    """In fresh interpreters, unlike most tests of commands."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, *arguments, "--store", f"sqlite:///{tmp_path}/perdure.db"]
        return subprocess.run(
            command, env=environment(), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )

    for arguments in (
        ("add", "--text", "a"),
        ("status", "--json"),
        ("list",),
        ("dead", "groups"),
    ):
        ended = run(*arguments)
        assert (ended.returncode, complaints(ended.stderr)) == (0, []), arguments
    ended = run("search", "a")
    assert (ended.returncode, ended.stderr) == (0, "perdure: 1 document not done yet; perdure status\n")
    ended = run("status", "no-such-document")
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1), ended.stderr


def test_an_interrupt_while_it_is_loaded_ends_it_quietly(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    for arguments in (["-m", "perdure"], ["-c", "from perdure.__main__ import main; main()"]):
        ended = subprocess.run(
            [sys.executable, *arguments, "status"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=False,
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
