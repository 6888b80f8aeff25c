"""Plant each mutant of the table in a copy of the sources and run the tests that must find it.

python -m tests.mutants --jobs 2              all of them
python -m tests.mutants NAME …                some of them

The exit status is 1 if fewer than 95 % are caught, 2 if nothing can be said: a mutant does not apply, a test fails
without a mutant, or tests could not be run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.conftest import make_files_in_memory, postgres_for_all
from tests.mutants.running import Broken, Verdict, baseline, copied, tried
from tests.mutants.table import SOURCES, Mutant, NotApplicable, mutants

CAUGHT_MIN = 0.95


def main() -> int:
    asked = _asked()
    try:
        chosen = _chosen(asked.names)
        for mutant in chosen:
            mutant.text(SOURCES)
        return _status(_run(chosen, asked.jobs))
    except (NotApplicable, Broken) as error:
        print(error, file=sys.stderr)
        return 2


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="of mutants; all of them by default")
    parser.add_argument("--jobs", type=int, default=1, help="how many are tried at the same time")
    return parser.parse_args()


def _chosen(names: Sequence[str]) -> list[Mutant]:
    known = {mutant.name: mutant for mutant in mutants()}
    if unknown := sorted(set(names) - known.keys()):
        raise NotApplicable(f"there is no mutant {', '.join(unknown)}")
    return [known[name] for name in names] or list(known.values())


def _run(chosen: Sequence[Mutant], jobs: int) -> list[Verdict]:
    """Try them, and print each verdict when it is known."""
    warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR is not set")  # as for pytest
    make_files_in_memory()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="perdure-mutants-") as directory, postgres_for_all():
        sources = copied(Path(directory))
        baseline(sources, chosen, jobs)
        print(f"without a mutant all tests pass ({time.monotonic() - began_s:.0f} s)", flush=True)
        with ThreadPoolExecutor(jobs) as pool:
            trying = [pool.submit(tried, mutant, sources) for mutant in chosen]
            try:
                return [_told(done.result()) for done in as_completed(trying)]
            finally:
                pool.shutdown(cancel_futures=True)


def _told(verdict: Verdict) -> Verdict:
    word = "caught" if verdict.found_by else "SURVIVED"
    print(f"{word:8} {verdict.mutant.name:36} {verdict.seconds:5.1f} s  {verdict.found_by or ''}", flush=True)
    return verdict


def _status(verdicts: Sequence[Verdict]) -> int:
    survivors = [verdict.mutant for verdict in verdicts if verdict.found_by is None]
    caught = len(verdicts) - len(survivors)
    print(f"\n{caught} of {len(verdicts)} mutants caught ({caught / len(verdicts):.1%})")
    for mutant in survivors:
        print(f"survived: {mutant.name} ({mutant.file}): {mutant.breaks}")
    return 0 if caught >= CAUGHT_MIN * len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
