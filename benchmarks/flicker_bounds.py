"""For flicker.py: the bounds that a run must keep, and those that it missed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from perdure.operate.simulate.backlog import drain, median
from perdure.operate.simulate.model import Model

#: The laboratory may differ from what was measured by this share of it.
NEAR = 0.25
SEEDS = 15


@dataclass
class Bounds:
    """Looks at each bound of the parts that ran."""

    looked: int = 0
    missed: list[str] = field(default_factory=list)

    def most(self, what: str, value: float | None, bound: float) -> None:
        """At most so much; None: it never happened."""
        self._look(value is not None and value <= bound, f"{what}: {_word(value)}, at most {bound:g}")

    def least(self, what: str, value: float | None, bound: float) -> None:
        """At least so much."""
        self._look(value is not None and value >= bound, f"{what}: {_word(value)}, at least {bound:g}")

    def played(self, what: str, model: Model, measured: Mapping[str, float | None]) -> None:
        """Print what the laboratory plays beside what was measured; each number must be near it."""
        runs = [drain(model, seed) for seed in range(SEEDS)]
        found = median(runs)
        beside = []
        for name, value in measured.items():
            lab = found[name]
            ratio = f" ({lab / value:.2f} of it)" if lab is not None and value else ""
            beside.append(f"{name} {_word(lab)}{ratio}")
            near = lab == value or (
                value is not None and lab is not None and abs(lab - value) <= NEAR * value
            )
            played = sorted(one for run in runs if (one := getattr(run, name)) is not None)
            spread = f" ({_word(played[0])} to {_word(played[-1])})" if played else ""
            bound = f"not within {NEAR:.0%} of {_word(value)}"
            self._look(near, f"{what}: the laboratory says {name} {_word(lab)}{spread}, {bound}")
        print(f"          laboratory: {', '.join(beside)}", flush=True)

    def sum_up(self, check: bool) -> int:
        """Print how many bounds were kept and, to check them, the missed ones; the status to exit with."""
        print(f"{self.looked - len(self.missed)} of {self.looked} bounds kept", flush=True)
        for words in self.missed if check else ():
            print(f"missed: {words}", file=sys.stderr)
        return int(check and bool(self.missed))

    def _look(self, kept: bool, words: str) -> None:
        self.looked += 1
        if not kept:
            self.missed.append(words)
            print(f"          MISSED {words}", flush=True)


def _word(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"
