"""The values that a policy can have. An error names the argument, its value, and the values that are allowed."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from perdure.calls.dependency import Dependency
from perdure.calls.jitter import FullJitter
from perdure.calls.timing import Timing
from perdure.core.naming import NAME, NAME_RULE
from perdure.errors import PolicyInvalid

if TYPE_CHECKING:
    from perdure.calls.policy import Policy

Fits = Callable[[Any], bool]


def _seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is(*kinds: type) -> Fits:
    return lambda value: isinstance(value, kinds)


def _or_none(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def _ends(value: Any) -> bool:
    return value in ("reschedule", "raise") if isinstance(value, str) else callable(value)


#: By argument: which values fit, and the same in words.
RULES: dict[str, tuple[Fits, str]] = {
    "retries": (lambda value: type(value) is int and value >= 0, "a whole number, 0 or more"),
    "backoff": (_is(FullJitter), "a FullJitter(base_s, cap_s)"),
    "total_s": (_or_none(_seconds), "a number of seconds above 0, or None"),
    "attempt_s": (_or_none(_seconds), "a number of seconds above 0, or None"),
    "hint_cap_s": (_seconds, "a number of seconds above 0"),
    "reschedule_s": (_seconds, "a number of seconds above 0"),
    "classify": (callable, "a function that takes the error and returns a Verdict"),
    "on_exhausted": (_ends, '"reschedule", "raise" or a function'),
    "idempotent": (_is(bool), "True or False"),
    "key": (_or_none(lambda value: isinstance(value, str) and value != ""), "a text that is not empty, or None"),
    "best_effort": (_is(bool), "True or False"),
    "operation": (lambda value: isinstance(value, str) and value != "", "a text that is not empty"),
    "timing": (_is(Timing), "a Timing"),
}  # fmt: skip


def check_name(name: object) -> None:
    """Raises: PolicyInvalid if no dependency can have this name."""
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise PolicyInvalid(f"policy {name!r}: its name must be {NAME_RULE}")


def check_policy(policy: Policy) -> None:
    """Raises: PolicyInvalid for the first value that a policy cannot have."""
    for argument, (fits, allowed) in RULES.items():
        value = getattr(policy, argument)
        if not fits(value):
            raise PolicyInvalid(f"policy {policy.name}: {argument} must be {allowed}, not {value!r}")


def check_dependency(name: str, dependency: object) -> None:
    """Raises: PolicyInvalid if this is not the state of a service."""
    if dependency is not None and not isinstance(dependency, Dependency):
        raise PolicyInvalid(f"policy {name}: dependency must be a Dependency, or None, not {dependency!r}")


def check_changes(name: str, changes: Collection[str], known: Collection[str]) -> None:
    """Raises: PolicyInvalid if one of these arguments of `but` does not exist."""
    unknown = sorted(set(changes) - set(known))
    if unknown:
        given, allowed = ", ".join(unknown), ", ".join(sorted(known))
        raise PolicyInvalid(f"policy {name}: but() does not take {given}; it takes {allowed}")
