"""A plugin of pytest: the run ends with `WRONG_SOURCES` unless the package under test is the copy that was named, in
this process and in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import perdure

#: The directory that perdure must be imported from.
VARIABLE = "PERDURE_MUTANT_SOURCES"
#: An exit status that pytest does not use.
WRONG_SOURCES = 42


def pytest_sessionstart(session: pytest.Session) -> None:
    wanted = Path(os.environ[VARIABLE]) / "perdure" / "__init__.py"
    asked = [sys.executable, "-c", "import perdure; print(perdure.__file__)"]
    child = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    for found in (perdure.__file__, child):
        if Path(found) != wanted:
            pytest.exit(f"perdure was imported from {found}, not from {wanted}", returncode=WRONG_SOURCES)
