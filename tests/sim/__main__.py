"""Replay a seed with all that happened in it, or play many and count.

python -m tests.sim 179                     one seed, told line by line
python -m tests.sim 0..2000                 many; failures, what happened how often, seeds per second
python -m tests.sim 0..2000 --pairs         in how many of them each two features met
python -m tests.sim 7 --bug no_fence        with a planted bug
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from contextlib import nullcontext

from tests.sim.mutations import BUGS
from tests.sim.pairs import Pair, table
from tests.sim.promises import PROMISES
from tests.sim.run import simulate


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__.partition("\n")[0])
    parser.add_argument("seeds", help="N, or FIRST..END")
    parser.add_argument("--bug", choices=sorted(BUGS), help="planted while the seeds are played")
    parser.add_argument("--pairs", action="store_true", help="in how many seeds each two features met")
    asked = parser.parse_args()
    with BUGS[asked.bug].planted() if asked.bug else nullcontext():
        if ".." in asked.seeds:
            play(range(*map(int, asked.seeds.split(".."))), asked.pairs)
        else:
            replay(int(asked.seeds))


def replay(seed: int) -> None:
    """Tell one seed."""
    story = simulate(seed, tell=True)
    print(*story.log, sep="\n")
    print(f"seed {seed}: {story.error or 'every promise was kept'}")
    if story.promise is not None:
        print(f"broken: {PROMISES[story.promise]}")


def play(seeds: range, pairs: bool = False) -> None:
    """Play many; those that failed, and what happened or which features met."""
    seen: Counter[str] = Counter()
    met: Counter[Pair] = Counter()
    began_s = time.process_time()
    failed = 0
    for seed in seeds:
        story = simulate(seed)
        seen += story.seen
        met.update(story.pairs)
        if story.error is not None:
            failed += 1
            print(f"seed {seed}: {story.error}", flush=True)
    seconds = time.process_time() - began_s
    if pairs:
        print(table(met, len(seeds)))
    for what, times in () if pairs else sorted(seen.items()):
        print(f"{times:9} {what}")
    print(f"{len(seeds)} seeds, {failed} failed, {len(seeds) / seconds:.1f} per second of CPU")


if __name__ == "__main__":
    main()
