"""How far a command is: a bar on a terminal, and nothing in a log or a pipe."""

from __future__ import annotations

import sys

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from perdure.cli.drawing import console


def progress(shown: bool = True) -> Progress:
    """A bar for each task; it goes when the work is done."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        console=console(stderr=True), transient=True, disable=not (shown and sys.stderr.isatty()),
    )  # fmt: skip
