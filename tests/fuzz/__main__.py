"""Fuzz the readers of files: `python -m tests.fuzz --minutes 120`; `--kind pdf --seed 7` repeats one."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
from pathlib import Path

from tests.fuzz import corpus
from tests.fuzz.campaign import Campaign, cases


def main() -> int:
    """0 if there is no finding, 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, help="files in all")
    parser.add_argument("--minutes", type=float, help="time to run, unless --count is given")
    parser.add_argument("--kind", choices=corpus.KINDS, action="append", help="only files of this kind")
    parser.add_argument("--seed", type=int, help="first seed of each kind; alone with --kind: that one file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="files read at a time")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz-files"), help="where findings are kept")
    given = parser.parse_args()
    seed = random.randrange(1 << 40) if given.seed is None else given.seed
    count = given.count
    if count is None and given.minutes is None:
        count = 1 if given.kind and given.seed is not None else 2_000
    print(f"seeds from {seed}", flush=True)
    campaign = Campaign(given.jobs, given.keep)
    account = asyncio.run(campaign.run(cases(given.kind or corpus.KINDS, seed, count, given.minutes)))
    for finding in account.findings:
        print(f"\nFINDING {finding.outcome}: {finding.error}")
        print(f"repeat it: python -m tests.fuzz --kind '{finding.kind}' --seed {finding.seed}")
    print(*account.lines(), sep="\n")
    if account.findings:
        print(f"the files of the findings are in {given.keep}")
    return 1 if account.findings else 0


if __name__ == "__main__":
    sys.exit(main())
