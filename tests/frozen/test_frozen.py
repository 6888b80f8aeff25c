"""No name, option, route, field, metric or default changes unless a person reads the difference."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frozen.surfaces import SURFACES, written

ADVICE = (
    "if that is wanted: .venv/bin/python -m tests.frozen, then read the difference and say it in CHANGELOG.md"
)


@pytest.mark.parametrize("surface", sorted(SURFACES))
def test_nothing_that_programs_rely_on_has_changed(surface: str) -> None:
    frozen = set(Path(__file__).with_name(f"{surface}.txt").read_text().splitlines())
    present = set(written(surface).splitlines())
    missing, added = sorted(frozen - present), sorted(present - frozen)
    assert (missing, added) == ([], []), f"{surface}: missing {missing}, added {added}; {ADVICE}"
