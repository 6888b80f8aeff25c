"""Programs and files of Debian packages, for the tests outside of `make test`."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from tests.suites import VARIABLE

ROOT = Path(__file__).parents[1]


def install(*packages: str) -> None:
    """Make sure that the packages are there: as root on Debian they are installed, elsewhere the test fails and says
    which are missing."""
    assert os.environ.get(VARIABLE) != "quick", (
        f"make test needs no Debian package: mark it full ({packages})"
    )
    # a fixed place: test processes start together, and each run has a TMPDIR of its own
    with Path(f"/tmp/perdure-system-packages-{os.getuid()}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        ended = subprocess.run(
            [ROOT / "scripts" / "system-packages", *packages], capture_output=True, text=True, check=False
        )
    assert ended.returncode == 0, ended.stderr
