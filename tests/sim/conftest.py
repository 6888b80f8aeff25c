"""`make sim` prints which features met in its worlds, whichever process played them."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.sim.pairs import Pair, table


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    noted = [dict(report.user_properties) for report in reports if getattr(report, "when", "") == "call"]
    worlds = sum(one.get("worlds", 0) for one in noted)
    if "SEEDS" not in os.environ or not worlds:
        return
    met: Counter[Pair] = Counter()
    for one in noted:
        met.update({(first, second): times for first, second, times in one.get("pairs", ())})
    terminalreporter.section("in how many worlds two features met")
    terminalreporter.write_line(table(met, worlds))
