"""One mutant: a copy of the sources with the bug in it, and pytest on that copy. The working tree is not touched."""

from __future__ import annotations

import compileall
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from perdure.core.frozen import frozen
from tests.mutants.imported import VARIABLE
from tests.mutants.table import ROOT, SOURCES, Mutant

#: Statuses of pytest that answer the question; any other means that the tests did not run.
PASSED, FAILED = 0, 1
#: Signals by which stage code kills the process that it runs in.
CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
TIMEOUT_S = 300.0
#: Of one test: the slowest of those that are named takes a few seconds.
TEST_TIMEOUT_S = 60


class Broken(Exception):
    """The tests could not be run, so nothing is known about the mutant."""


@frozen
class Verdict:
    """What became of a mutant: the test that found it, or how the tests ended; None if it survived."""

    mutant: Mutant
    found_by: str | None
    seconds: float


def copied(directory: Path) -> Path:
    """A copy of the sources, compiled, so that copies of it are imported quickly."""
    copy = directory / "sources"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    compileall.compile_dir(copy, quiet=2)
    return copy


def tried(mutant: Mutant, sources: Path) -> Verdict:
    """Plant the mutant in a copy of `sources` and run its tests. Broken where they could not be run."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="perdure-mutant-", ignore_cleanup_errors=True) as directory:
        copy = Path(directory) / "src"
        shutil.copytree(sources, copy)
        mutant.plant(copy)
        for compiled in (mutant.path(copy).parent / "__pycache__").glob(f"{mutant.path(copy).stem}.*.pyc"):
            compiled.unlink()
        status, output = run(copy, mutant.tests, ("-x",))
    return Verdict(mutant, _found_by(mutant, status, output), time.monotonic() - began_s)


def baseline(sources: Path, mutants: Iterable[Mutant], jobs: int) -> None:
    """The tests of all mutants on sources without a bug. Broken unless they pass."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    status, output = run(sources, tests, ("-n", str(jobs), "--dist=worksteal"), timeout_s=4 * TIMEOUT_S)
    if status != PASSED:
        raise Broken(f"the tests do not pass without a mutant\n{output}")


def run(
    sources: Path, tests: Sequence[str], options: Sequence[str] = (), timeout_s: float = TIMEOUT_S
) -> tuple[int | None, str]:
    """The exit status of pytest (None: it was killed after the timeout) and its output."""
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.imported", "--tb=line",
        f"--timeout={TEST_TIMEOUT_S}", *options, *tests,
    ]  # fmt: skip
    path = os.pathsep.join((str(sources), str(ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, VARIABLE: str(sources)}
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=told, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with suppress(ProcessLookupError):  # also what the tests left running
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        told.seek(0)
        return status, told.read()


def _found_by(mutant: Mutant, status: int | None, output: str) -> str | None:
    """What told of the mutant: a test that failed, or the end of its process. An error before a test begins tells
    nothing (the server may be missing), nor does a signal that others send."""
    if status is None:
        return "timeout"
    if status == PASSED:
        return None
    if -status in CRASHES:
        return f"the process of the tests died of {signal.Signals(-status).name}"
    failed = [line for line in output.splitlines() if line.startswith("FAILED ")]
    if status != FAILED or not failed:
        raise Broken(f"mutant {mutant.name}: pytest ended with status {status}, no test failed\n{output}")
    return failed[0].removeprefix("FAILED ").partition(" - ")[0]
