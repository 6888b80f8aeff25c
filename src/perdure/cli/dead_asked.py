"""Which dead documents a command means, and whether whoever typed it is sure."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

import typer

from perdure.core.frozen import frozen
from perdure.errors import InputInvalid
from perdure.operate.choosing import FAILED, DeadOptions
from perdure.operate.words import count

FEW = 10  # that are done without asking
PER_S = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


@frozen
class Asked:
    """Ids, or options."""

    ids: tuple[str, ...]
    options: DeadOptions

    def chosen(self) -> DeadOptions:
        """The options alone, for what takes no ids."""
        if self.ids:
            raise InputInvalid(
                f"{self.ids[0]!r} is no NAME.failed; one document is shown by `perdure dead inspect`"
            )
        return self.options


def asked(names: Sequence[str], options: Mapping[str, Any], everything: bool) -> Asked:
    """What was typed; InputInvalid where nothing was and `everything` is not meant."""
    given = {name: value for name, value in options.items() if value is not None}
    failed = [name for name in names if name.endswith(FAILED)]
    ids = [name for name in names if not name.endswith(FAILED)]
    if len(failed) > 1 or (failed and ids):
        raise InputInvalid("give ids, or one NAME.failed")
    if failed:
        given["failed"] = failed[0]
    if not given and not ids and not everything:
        raise InputInvalid("say which: ids, NAME.failed, options such as --group, or --all")
    return Asked(tuple(ids), cast(DeadOptions, given))


def per_second(rate: str) -> float:
    """`20/s`, `300/m`, `20`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:/([a-z]+))?", rate.strip().lower())
    if not found or (found[2] or "s") not in PER_S or float(found[1]) == 0:
        raise InputInvalid(f"a rate is written like 20/s or 300/m, not {rate!r}", code="rate_invalid")
    return float(found[1]) / PER_S[found[2] or "s"]


def sure(number: int, verb: str, words: str, yes: bool, few: int = FEW) -> bool:
    """Whether that many are meant: said already, or asked for. InputInvalid where nobody can be asked."""
    if yes or number <= few:
        return True
    what = f"{verb} {count(number, 'dead document')} ({words})"
    if not sys.stdin.isatty():
        raise InputInvalid(f"this would {what}; look with --dry-run, then say --yes", code="confirm_needed")
    return typer.confirm(f"{what[0].upper()}{what[1:]}?", err=True)
