"""A line for each document: how far it is, which parts of it are saved, which attempt it is at, and its state."""

from __future__ import annotations

import time
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from perdure.cli.words import span
from perdure.demo.play import STAGES, Play
from perdure.demo.shelf import BOOK, Book
from perdure.store.records import Status

BAR = 8


@dataclass(frozen=True, slots=True)
class Signs:
    """The marks of a table."""

    saved: str = "●"
    now: str = "◐"
    ahead: str = "○"
    failed: str = "✗"
    full: str = "━"
    empty: str = "─"

    @classmethod
    def for_encoding(cls, encoding: str) -> Signs:
        """Marks that a terminal of this encoding can write."""
        try:
            "●◐○✗━─".encode(encoding)
        except (UnicodeEncodeError, LookupError):
            return cls("#", ">", ".", "x", "#", "-")
        return cls()


def table(play: Play, signs: Signs) -> Table:
    """Every document as it stands."""
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim", expand=False)
    made.add_column("document", no_wrap=True)
    made.add_column("stage", no_wrap=True, min_width=len(STAGES) + 1 + max(map(len, STAGES)))
    made.add_column("parts saved", no_wrap=True, min_width=BAR + 6)
    made.add_column("try", no_wrap=True)
    made.add_column("state", no_wrap=True, overflow="ellipsis", min_width=26)
    for book in play.books:
        status = play.statuses.get(book.name)
        if status is None:
            made.add_row(book.name)
            continue
        tries = f"{status.attempts_made}/{status.attempts_max}" if status.attempts_made else ""
        made.add_row(
            book.name,
            stages(status, signs),
            parts(play, book, status, signs),
            tries,
            state(play, status, signs),
        )
    return made


def stages(status: Status, signs: Signs) -> Text:
    """A mark for each stage, and the name of the one it is at."""
    if status.state == "done":
        return Text(signs.saved * len(STAGES), style="green")
    at = STAGES.index(status.stage) if status.stage in STAGES else 0
    mark = {"dead": signs.failed, "running": signs.now}.get(status.state, signs.ahead)
    style = {"dead": "red", "running": "bold cyan", "waiting": "yellow"}.get(status.state, "dim")
    marks = Text(signs.saved * at, style="green").append(mark, style=style)
    return marks.append(signs.ahead * (len(STAGES) - at - 1), style="dim").append(
        f" {STAGES[at]}", style=style
    )


def parts(play: Play, book: Book, status: Status, signs: Signs) -> Text:
    """How many of its pages, chapters or sections are saved; a bar where one can watch them."""
    saved = book.parts if status.state == "done" or status.stage in STAGES[2:] else 0
    if book.name != BOOK:
        return Text(f"{saved}/{book.parts}" if saved else "", style="dim")
    saved = max(saved, len(play.pages))
    full = BAR * saved // book.parts
    bar = Text(signs.full * full, style="cyan").append(signs.empty * (BAR - full), style="dim")
    return bar.append(f" {saved}/{book.parts}")


def state(play: Play, status: Status, signs: Signs) -> Text:
    """In a few words."""
    if play.kill and status.name in play.kill.in_hand and not _taken_up(play, status):
        return Text("its worker is gone", style="bold red")
    match status.state:
        case "done":
            return Text(f"done after {span((status.finished_ms or 0) - status.created_ms)}", style="green")
        case "dead":
            return Text(f"{signs.failed} {status.error_code}", style="red")
        case "waiting" if status.run_at_ms is not None:
            left_s = max(0.0, status.run_at_ms / 1000 - time.time())
            last = play.attempts.get(status.name, [])[-1:]
            code = last[0].error_code if last else "put off"
            return Text(f"again in {left_s:.1f} s, {code}", style="yellow")
        case "running":
            return Text("running", style="bold")
        case other:
            return Text(other, style="dim")


def _taken_up(play: Play, status: Status) -> bool:
    """Whether somebody has noticed that its worker died."""
    return any(attempt.error_code == "worker_lost" for attempt in play.attempts.get(status.name, ()))
