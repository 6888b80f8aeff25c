"""The command as a user runs it: a process, its output, its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMAND = (sys.executable, "-m", "perdure")


def environment(**more: str) -> dict[str, str]:
    """Ours without what would change the command's behaviour; output as a pipe of 80 columns gets it."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PERDURE_") and name not in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TERM")
    }
    return {**kept, "COLUMNS": "80", "TERM": "dumb", **more}


def perdure(
    *arguments: str, cwd: Path | None = None, timeout: float = 30, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run `perdure ARGUMENTS` to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env=environment(**more),
        timeout=timeout,
        check=False,
    )


def succeeded(*arguments: str, cwd: Path | None = None, timeout: float = 30, **more: str) -> str:
    """The standard output of a command that must succeed."""
    ended = perdure(*arguments, cwd=cwd, timeout=timeout, **more)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def refused(status: int, code: str, *arguments: str, cwd: Path | None = None, **more: str) -> str:
    """The message of a command that must end with this status and one line on standard error, the code at its end."""
    ended = perdure(*arguments, cwd=cwd, timeout=30, **more)
    lines = ended.stderr.splitlines()
    assert (ended.returncode, len(lines)) == (status, 1), ended.stderr
    assert lines[0].endswith(f" [{code}]")
    assert ended.stdout == ""
    return lines[0]


def facts(*arguments: str, cwd: Path | None = None) -> dict[str, Any]:
    """What `perdure status --json` says."""
    said: dict[str, Any] = json.loads(succeeded("status", "--json", *arguments, cwd=cwd))
    return said
