"""The table of mutants fits the present sources, and the command that tries them says what it saw."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import __main__ as command
from tests.mutants.running import Broken, Verdict, _found_by, copied, run, tried
from tests.mutants.table import ROOT, SOURCES, Mutant, NotApplicable, mutants

BACKOFF = "tests/core/test_backoff.py"


def mutant(old: str, new: str, tests: tuple[str, ...] = (BACKOFF,)) -> Mutant:
    return Mutant("made-up", "core/backoff.py", "Made up.", old, new, tests)


def test_every_mutant_applies_and_names_tests_that_exist() -> None:
    wrong, table = [], mutants()
    for one in table:
        try:
            compile(one.text(SOURCES), one.file, "exec")
        except (NotApplicable, SyntaxError) as error:
            wrong.append(str(error))
        for test in one.tests:
            path, _, function = test.partition("::")
            file = ROOT / path
            if not file.is_file() or f"def {function.partition('[')[0]}" not in file.read_text():
                wrong.append(f"mutant {one.name}: there is no test {test}")

    assert wrong == []
    assert len(table) >= 40
    assert [name for name, n in Counter(one.name for one in table).items() if n > 1] == []


@pytest.mark.parametrize("old", ["not in the file", "exponent"])
def test_a_text_that_does_not_occur_once_is_refused_with_the_name_of_the_mutant(old: str) -> None:
    with pytest.raises(NotApplicable, match="made-up"):
        mutant(old, "").text(SOURCES)


@pytest.mark.parametrize(("caught", "status"), [(20, 0), (19, 0), (18, 1)])
def test_fewer_than_95_of_100_are_a_failure(
    caught: int, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    verdicts = [Verdict(mutant("a", "b"), "a test" if n < caught else None, 1.0) for n in range(20)]

    assert command._status(verdicts) == status
    assert f"{caught} of 20 mutants caught" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "output", "told"),
    [
        (0, "3 passed", None),
        (1, "FAILED tests/a.py::test_b[c] - assert 1 == 2\n1 failed", "tests/a.py::test_b[c]"),
        (None, "", "timeout"),
        (-11, "", "the process of the tests died of SIGSEGV"),
    ],
)
def test_what_counts_as_found(status: int | None, output: str, told: str | None) -> None:
    assert _found_by(mutant("a", "b"), status, output) == told


@pytest.mark.parametrize(
    ("status", "output"), [(1, "ERROR tests/a.py::test_b - no server"), (2, ""), (-9, "")]
)
def test_tests_that_did_not_run_prove_nothing(status: int, output: str) -> None:
    with pytest.raises(Broken, match="made-up"):
        _found_by(mutant("a", "b"), status, output)


@pytest.mark.full
def test_a_bug_is_found_in_a_copy_and_no_other_change_is(tmp_path: Path) -> None:
    sources = copied(tmp_path)
    line = "bound = min(self.base_ms * 2**exponent, cap_ms)"

    found = tried(mutant(line, line.replace("2**", "3**")), sources).found_by

    assert found is not None
    assert found.startswith(f"{BACKOFF}::test_")
    assert tried(mutant(line, f"{line}  # the same"), sources).found_by is None
    with pytest.raises(Broken, match="ended with status"):  # a package that cannot be imported proves nothing
        tried(mutant("EXPONENT_MAX = 62", "import nothing_of_the_kind"), sources)


@pytest.mark.full
def test_tests_that_do_not_end_are_killed(tmp_path: Path) -> None:
    endless = tmp_path / "test_endless.py"
    endless.write_text("import time\ndef test_it() -> None:\n    time.sleep(600)\n")

    assert run(SOURCES, [str(endless)], timeout_s=10)[0] is None


@pytest.mark.full
def test_another_copy_than_the_one_under_test_is_noticed(tmp_path: Path) -> None:
    elsewhere = copied(tmp_path)
    asked = "import os, sys; os.environ['PERDURE_MUTANT_SOURCES'] = sys.argv[1]; import pytest; "
    asked += "sys.exit(pytest.main(['-q', '-p', 'tests.mutants.imported', 'tests/core/test_lane.py']))"

    ended = subprocess.run(
        [sys.executable, "-c", asked, str(elsewhere)], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert "perdure was imported from" in ended.stdout + ended.stderr
    assert ended.returncode == 42
