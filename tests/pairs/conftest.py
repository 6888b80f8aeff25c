"""Adds up what the pairs came to."""

from __future__ import annotations

from typing import Any

import pytest

PROPERTY = "pair"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The number of pairs, interleavings and violations of the run, by all processes."""
    told = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "call"
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if told:
        interleavings, violations = (sum(numbers) for numbers in zip(*told, strict=True))
        terminalreporter.write_line(
            f"{len(told)} pairs, {interleavings} interleavings, {violations} violations"
        )
