"""Processes say what they are: `ps` shows a worker as a worker."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from pathlib import Path
from perdure.engine.title import set_title
set_title("perdure worker books:app")
print(Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode())
set_title("x" * 10_000)
print(len(Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0")) < 10_000, sys.argv[1])
"""


def test_the_command_line_is_the_title() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, "kept"], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == "perdure worker books:app\nTrue kept\n"
