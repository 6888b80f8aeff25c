"""How documents on their way are shown: a table that lives in a terminal, or a line for each change."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from perdure.cli.drawing import STYLES, console
from perdure.cli.saying import say
from perdure.cli.sources import shown
from perdure.core.frozen import frozen
from perdure.operate.status import STATES

LINES_AROUND = 5  # heading, what is left out, totals, problem, and the prompt
#: Where not all have room: those that move, and those that somebody should look at.
TELLING = ("running", "dead", "held", "waiting", "cancelled")

States = Mapping[str, Mapping[str, None]]  # state → ids


@frozen
class Seen:
    """A document at the last look."""

    id: str
    name: str
    state: str
    stage: str
    saved: int  # items of its stage, such as pages
    attempt: int
    attempts_max: int
    why: str = ""
    due_ms: int | None = None


class Screen(Protocol):
    """Where they are shown; `show` is called after every look."""

    def __enter__(self) -> Screen: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(
        self, seen: Mapping[str, Seen], states: States, changed: Sequence[Seen], problem: str
    ) -> None: ...


class Lines:
    """A line for each change, with the time since we began, and totals at the end; with `as_json` an object each."""

    def __init__(self, as_json: bool = False) -> None:
        self._json = as_json
        self._began_s = time.monotonic()
        self._told: dict[str, tuple[str, str, int]] = {}
        self._problem = ""
        self._states: States = {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        say(f"perdure: {totals(self._states)}", file=sys.stderr)

    def show(self, seen: Mapping[str, Seen], states: States, changed: Sequence[Seen], problem: str) -> None:
        self._states = states
        for one in changed:
            told = (one.state, one.stage, one.attempt)
            if told != self._told.get(one.id, ("queued", one.stage, 0)):
                say(json.dumps(asdict(one)) if self._json else self._line(one))
            self._told[one.id] = told
        if problem and problem != self._problem:
            say(f"perdure: {problem}", file=sys.stderr)
        self._problem = problem
        sys.stdout.flush()

    def _line(self, one: Seen) -> str:
        stage = "" if one.state in ("done", "cancelled") else one.stage
        why = f" – {shown(one.why)}" if one.why else ""
        attempt = f", attempt {one.attempt} of {one.attempts_max}" if one.attempt > 1 else ""
        passed = time.monotonic() - self._began_s
        return f"{passed:6.1f} s  {one.state:9} {stage:9} {_called(one)}{attempt}{why}"


class Board:
    """A table that stays where it is; a list that is too long for the terminal is folded."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=8, redirect_stderr=sys.stderr.isatty())

    def __enter__(self) -> Board:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, seen: Mapping[str, Seen], states: States, changed: Sequence[Seen], problem: str) -> None:
        room = max(3, self._console.height - LINES_AROUND)
        folded = sum(map(len, states.values())) > room
        ids = [id_ for state in TELLING for id_ in states.get(state, ())] if folded else list(seen)
        below = [Text(f"… and {len(ids) - room:,} more", style="dim")] if len(ids) > room else []
        below.append(totals(states))
        below += [Text(problem, style="yellow")] if problem else []
        rows = [seen[id_] for id_ in ids[:room]]
        self._live.update(Group(*([_table(rows, self._console.width)] if rows else []), *below))


def totals(states: States) -> Text:
    """How many are in each state."""
    return Text("   ").join(
        Text.assemble((f"{len(states[state]):,}", "bold"), f" {state}", style=STYLES.get(state, ""))
        for state in STATES
        if states.get(state)
    )


def screen(as_json: bool) -> Screen:
    """What suits standard output."""
    out = console()
    lively = out.is_terminal and not out.is_dumb_terminal and not as_json
    return Board(out) if lively else Lines(as_json)


def _table(rows: Sequence[Seen], width: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("document", no_wrap=True, overflow="ellipsis", max_width=width // 3)
    for title in ("state", "stage", "saved", "attempt"):
        table.add_column(title, no_wrap=True, justify="right" if title == "saved" else "left")
    table.add_column()  # the only one that gives way, so it is not `no_wrap`
    for one in rows:
        table.add_row(*_cells(one))
    return table


def _cells(one: Seen) -> tuple[Text, ...]:
    moving = one.state not in ("done", "cancelled")
    attempt = f"{one.attempt} of {one.attempts_max}" if one.attempt and moving else ""
    cells = (
        _called(one), one.state, one.stage if moving else "", f"{one.saved:,}" if one.saved else "", attempt,
        shown(one.why),
    )  # fmt: skip
    styles = ("", STYLES.get(one.state, ""), "", "", "", "dim")
    return tuple(
        Text(cell, style=style, no_wrap=True, overflow="ellipsis")
        for cell, style in zip(cells, styles, strict=True)
    )


def _called(one: Seen) -> str:
    return shown(one.name) if one.name else one.id
