"""Print how long each pattern of the sources takes on the text that it is worst with: `python -m tests.patterns`.

The exit status is 1 if the time of one grows faster than the text.
"""

from __future__ import annotations

import sys

from tests.patterns.found import patterns, sources
from tests.patterns.timing import LONG, timed


def main() -> int:
    found, hidden = patterns(sources())
    table = sorted((timed(one) for one in found), key=lambda one: (one.fails, one.long_s), reverse=True)
    print(f"{'ms at ' + str(LONG):>12}  {'growth':>6}  method     place and text")
    for one in table:
        growth = f"×{one.growth:.1f}" if one.growth else "-"
        again = "".join(map(ascii, one.pump))[:70]
        mark = "FAILS " if one.fails else ""
        print(
            f"{one.long_s * 1000:12.2f}  {growth:>6}  {one.found.method:9}  {mark}{one.found.place}  {again}"
        )
    for unseen in hidden:
        print(f"UNSEEN {unseen.place}: {unseen.why}")
    return int(any(one.fails for one in table) or bool(hidden))


if __name__ == "__main__":
    sys.exit(main())
