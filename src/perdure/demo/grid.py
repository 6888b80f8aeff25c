"""The demo as a table: documents down, stages across, and in each cell which worker did it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from perdure.demo.ledger import BEGAN, ENDED
from perdure.demo.play import STAGES, Play
from perdure.demo.shelf import Book
from perdure.store.records import Status

WORKER_STYLES = {1: "cyan", 2: "green"}
STATE_STYLES = {"done": "", "dead": "red", "waiting": "yellow", "queued": "dim", "running": "bold"}


@dataclass(frozen=True, slots=True)
class Signs:
    """The marks of a cell."""

    saved: str = "✓"
    running: str = "▸"
    cut: str = "†"
    failed: str = "✗"
    none: str = "·"

    @classmethod
    def for_encoding(cls, encoding: str) -> Signs:
        """Marks that a terminal of this encoding can write."""
        try:
            "✓▸†✗·".encode(encoding)
        except (UnicodeEncodeError, LookupError):
            return cls("+", ">", "%", "x", ".")
        return cls()

    @property
    def legend(self) -> Text:
        return Text(
            f"{self.saved}1 saved by worker 1   {self.running}2 running at worker 2   "
            f"{self.cut} cut off by the kill   {self.failed} failed",
            style="dim",
            no_wrap=True,
            overflow="ellipsis",
        )


def grid(play: Play, signs: Signs) -> Table:
    """Every document and every stage."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("document", no_wrap=True, min_width=15)
    for stage in STAGES:
        table.add_column(stage, no_wrap=True, min_width={"count": 10}.get(stage, 5))
    table.add_column("", no_wrap=True, overflow="ellipsis")
    for book in play.books:
        status = play.statuses.get(book.name)
        cells = [_cell(play, book, status, stage, signs) for stage in STAGES]
        table.add_row(book.name, *cells, _state(play, status))
    return table


def _state(play: Play, status: Status | None) -> Text:
    if status is None:
        return Text("")
    if play.kill and status.name in play.kill.in_hand and status.name not in play.resumed_ms:
        return Text("its worker is gone", style="red")
    words = f"dead {status.error_code}" if status.state == "dead" else status.state
    return Text(words, style=STATE_STYLES.get(status.state, ""))


def _cell(play: Play, book: Book, status: Status | None, stage: str, signs: Signs) -> Text:
    """The runs of one stage of one document, oldest first, and whether it is saved."""
    runs = _runs(play, book.name, stage)
    if status is None or not runs:
        return Text(signs.none, style="dim")
    saved = status.state == "done" or (
        status.stage in STAGES and STAGES.index(stage) < STAGES.index(status.stage or "")
    )
    killed = play.kill.worker if play.kill and book.name in play.kill.in_hand else 0
    marks: list[tuple[str, str]] = []
    for number, (worker, ended) in enumerate(runs, 1):
        last, style = number == len(runs), WORKER_STYLES.get(worker, "")
        if last and saved:
            marks.append((f"{signs.saved}{worker}", style))
        elif last and ended is None and worker != killed and status.state == "running":
            marks.append((f"{signs.running}{worker}", f"bold {style}"))
        elif worker == killed and ended is not False:
            marks.append((f"{signs.cut}{worker}", "red"))
        elif last and ended:
            marks.append((f"{signs.running}{worker}", style))  # about to be saved
        else:
            marks.append((signs.failed, "yellow"))
    cell = Text(" ").join(Text(mark, style=style) for mark, style in marks)
    if stage == "count":
        cell.append(_paragraphs(play, book), style="dim")
    return cell


def _runs(play: Play, name: str, stage: str) -> list[tuple[int, bool | None]]:
    """(worker, True ended | False failed | None neither) of each run, by the ledger."""
    runs: list[tuple[int, bool | None]] = []
    for entry in play.ledger.entries:
        if (entry.document, entry.stage, entry.item) != (name, stage, None):
            continue
        if entry.what == BEGAN:
            runs.append((entry.worker, None))
        else:
            runs[-1] = (entry.worker, entry.what == ENDED)
    return runs


def _paragraphs(play: Play, book: Book) -> str:
    """How many paragraphs each worker counted: ` 8` or ` 3+5`."""
    by: dict[int | None, int] = {}
    for entry in play.ledger.entries:
        if entry.document == book.name and entry.item is not None and entry.what == ENDED:
            by[entry.item] = entry.worker
    counted = Counter(by.values())
    return " " + "+".join(str(counted[worker]) for worker in sorted(counted)) if counted else ""
