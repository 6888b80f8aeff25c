"""The command as a user runs it: a process, its output, its exit status."""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "perdure")

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["tests.doors.preloaded"])


def environment(**more: str) -> dict[str, str]:
    """Ours without what would change the command's behaviour; output as a pipe of 80 columns gets it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PERDURE_") and name not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM")
    }
    return {**kept, "COLUMNS": "80", "TERM": "dumb", **more}


def perdure(
    *arguments: str, cwd: Path | None = None, timeout: float = 120, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run `perdure ARGUMENTS` to its end in a process of its own, forked from one that has the modules loaded.

    An import that a command lacks does not show, nor what the interpreter says when it ends: use `COMMAND` for that.
    """
    with tempfile.TemporaryDirectory() as directory:
        out, err = Path(directory, "out"), Path(directory, "err")
        process = _FORKS.Process(
            target=_run, args=(arguments, cwd or Path.cwd(), environment(**more), out, err)
        )
        process.start()
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(["perdure", *arguments], timeout)
        return subprocess.CompletedProcess(
            arguments, process.exitcode or 0, out.read_text("utf-8"), err.read_text("utf-8")
        )


def _run(arguments: tuple[str, ...], cwd: Path, variables: dict[str, str], out: Path, err: Path) -> None:
    for stream, file in ((sys.stdout, out), (sys.stderr, err)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), stream.fileno())
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["perdure", *arguments]
    sys.path.insert(0, "")
    runpy.run_module("perdure", run_name="__main__")


def succeeded(*arguments: str, cwd: Path | None = None, timeout: float = 120, **more: str) -> str:
    """The standard output of a command that must succeed."""
    ended = perdure(*arguments, cwd=cwd, timeout=timeout, **more)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def refused(
    status: int, code: str, *arguments: str, cwd: Path | None = None, timeout: float = 120, **more: str
) -> str:
    """The message of a command that must end with this status and one line on standard error, the code at its end;
    beside it there may be the line that a store was created."""
    ended = perdure(*arguments, cwd=cwd, timeout=timeout, **more)
    lines = complaints(ended.stderr)
    assert (ended.returncode, len(lines)) == (status, 1), ended.stderr
    assert lines[0].endswith(f" [{code}]")
    assert ended.stdout == ""
    return lines[0]


def complaints(errors: str) -> list[str]:
    """The lines on standard error, without the one that a store was created."""
    return [line for line in errors.splitlines() if not line.startswith("perdure: created a new store: ")]


def facts(*arguments: str, cwd: Path | None = None) -> dict[str, Any]:
    """What `perdure status --json` says."""
    said: dict[str, Any] = json.loads(succeeded("status", "--json", *arguments, cwd=cwd))
    return said
