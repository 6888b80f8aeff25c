"""Numbers of one dependency that people may change, each with a variable of the environment.

    PERDURE_DEPENDENCY_OPENAI_TOKENS=30  PERDURE_DEPENDENCY_OPENAI_PATIENCE_S=5

The environment goes before `Dependency(name, knobs=Knobs(…))` in code: those who operate the service decide last. All
processes of a fleet need the same numbers; workers and the rounds of the store read them here.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace

from perdure.core.frozen import frozen
from perdure.errors import PolicyInvalid, SettingInvalid

PREFIX = "PERDURE_DEPENDENCY_"


@frozen
class Knobs:
    """How patiently a dependency is dealt with. PolicyInvalid for numbers that cannot be."""

    tokens: float = 10.0  # budget: retries that may go out at once after a quiet time, of each worker
    earned: float = 0.1  # budget: retries that each success allows in the long run
    floor_per_s: float = (
        0.5  # limiter: requests a second that each worker may make, however badly it is answered
    )
    patience_s: float = 2.0  # patience: how long a call of a job waits in its slot for its turn
    patience_outside_s: float = 2.0  # patience: how long a call outside of jobs waits, after any pause
    slot_s: float = 5.0  # patience: how long a call keeps its slot if its stage would repeat others
    failures: float = 10.0  # breaker: more of them in a row open it
    failing_share: float = 0.5  # breaker: it is half open while this share of recent requests failed, ...
    failing_least: float = 20.0  # ... of at least this number, ...
    failing_window_s: float = 10.0  # ... in this time
    probe_s: float = 4.0  # breaker: the first probe comes after this, ...
    probe_max_s: float = 60.0  # ... and each other one after this at the latest

    def __post_init__(self) -> None:
        for word, (least, most) in BOUNDS.items():
            value = getattr(self, word)
            if type(value) not in (int, float) or not least <= value <= most:
                raise PolicyInvalid(f"{word} must be a number from {least:g} to {most:g}, not {value!r}")
        if self.probe_s > self.probe_max_s:
            raise PolicyInvalid(f"probe_s ({self.probe_s:g}) is above probe_max_s ({self.probe_max_s:g})")


BOUNDS: dict[str, tuple[float, float]] = {
    "tokens": (1, 10_000), "earned": (0.001, 10), "floor_per_s": (0.01, 10_000), "patience_s": (0.1, 60),
    "patience_outside_s": (0.1, 3_600), "slot_s": (0, 600), "failures": (1, 10_000), "failing_share": (0.05, 1),
    "failing_least": (1, 10_000), "failing_window_s": (1, 3_600), "probe_s": (0.1, 3_600), "probe_max_s": (1, 86_400),
}  # fmt: skip
DEFAULT = Knobs()
_given: dict[str, Knobs] = {}


def give(name: str, knobs: Knobs) -> None:
    """From now on the code of this process wants these for a dependency."""
    _given[name] = knobs


def knobs_of(name: str) -> Knobs:
    """The numbers of a dependency. Raises: SettingInvalid for a variable that cannot be used."""
    knobs, found = _given.get(name, DEFAULT), _environment()
    numbers: dict[str, float] = {}
    for word in BOUNDS:
        variable = f"{PREFIX}{_shouted(name)}_{word.upper()}"
        if text := found.get(variable, "").strip():
            numbers[word] = _number(variable, text)
    try:
        return replace(knobs, **numbers) if numbers else knobs
    except PolicyInvalid as error:
        raise SettingInvalid(f"{PREFIX}{_shouted(name)}_*: {error}") from None


def usable_knobs_of(name: str) -> Knobs:
    """The numbers of a dependency, for those who only look or sweep: without variables that cannot be used."""
    try:
        return knobs_of(name)
    except SettingInvalid:
        return _given.get(name, DEFAULT)


def _shouted(name: str) -> str:
    return name.upper().replace("-", "_")


def _environment() -> dict[str, str]:
    """Variables of dependencies in capital letters, as all settings may be written in small ones."""
    names = sorted(os.environ, reverse=True)  # capital letters come first in order and count most
    return {name.upper(): os.environ[name] for name in names if name[: len(PREFIX)].upper() == PREFIX}


def knob_of(variable: str) -> str | None:
    """The knob that a variable of the environment sets; None: it is no such variable."""
    rest = variable.upper().removeprefix(PREFIX)
    # the longest first: PROBE_MAX_S ends like no other, but names of dependencies may
    words = sorted(BOUNDS, key=len, reverse=True)
    found = (word for word in words if len(rest) > len(word) + 1 and rest.endswith(f"_{word.upper()}"))
    return next(found, None) if rest != variable.upper() else None


def check() -> None:
    """Raises: SettingInvalid for the first variable of any dependency that cannot be used."""
    given = {_shouted(name): name for name in _given}
    names = set()
    for variable, text in sorted(_environment().items()):
        word = knob_of(variable)
        if word is not None and text.strip():
            least, most = BOUNDS[word]
            if not least <= _number(variable, text.strip()) <= most:
                raise SettingInvalid(
                    f"{variable} is {text!r}; it must be a number from {least:g} to {most:g}"
                )
            names.add(variable.removeprefix(PREFIX).removesuffix(f"_{word.upper()}"))
    for name in sorted(names):  # numbers that are right by themselves may not fit each other
        knobs_of(given.get(name, name.lower()))


def _number(variable: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SettingInvalid(f"{variable} is {text!r}; it must be a number")
    return value
