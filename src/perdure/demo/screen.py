"""How the demo is shown: a table that lives in a terminal, or plain lines as things happen."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from perdure.demo.play import Play
from perdure.demo.table import Signs, table

REFRESH_HZ = 10


class Lines:
    """A line for everything that happens: for files, pipes and terminals that cannot move their cursor."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.signs = Signs.for_encoding(console.encoding)
        self._began_s = time.monotonic()

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def tell(self, line: str, *, loud: bool = False) -> None:
        self.console.print(Text("  ").join(self._line(line, loud)), soft_wrap=True)
        self.console.file.flush()

    def show(self, play: Play) -> None:
        return None

    def put(self, *parts: RenderableType) -> None:
        """Print; without the blanks at the ends of lines where nobody can tell."""
        if self.console.is_terminal:
            self.console.print(Group(*parts))
            return
        with self.console.capture() as captured:
            self.console.print(Group(*parts))
        for line in captured.get().splitlines():
            self.console.print(Text(line.rstrip()), soft_wrap=True)

    def _line(self, line: str, loud: bool) -> tuple[Text, Text]:
        passed = f"{time.monotonic() - self._began_s:5.1f} s"
        return Text(passed, style="dim", no_wrap=True), Text(line, style="bold red" if loud else "")


class Board(Lines):
    """A table that stays below the lines, and is gone when it is closed."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=REFRESH_HZ, transient=True)

    def __enter__(self) -> Board:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def tell(self, line: str, *, loud: bool = False) -> None:
        hanging = Table.grid(padding=(0, 2, 0, 0))
        hanging.add_row(*self._line(line, loud))
        self.console.print(hanging)

    def show(self, play: Play) -> None:
        self._live.update(Group(Text(), _heading(play), table(play, self.signs)))


def _heading(play: Play) -> Text:
    heading = Text(no_wrap=True, overflow="ellipsis")
    for worker in play.fleet.workers:
        gone = play.kill is not None and play.kill.worker is worker
        state = "killed" if gone else f"pid {worker.pid}" if worker.number in play.worker_ids else "starting"
        heading.append(f"worker {worker.number} {state}", style="bold red" if gone else "green").append("   ")
    counts = ((state, play.count_in(state)) for state in ("queued", "running", "waiting", "done", "dead"))
    return heading.append(", ".join(f"{n} {state}" for state, n in counts if n))


def screen() -> Lines:
    """What suits standard output."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a sign still shows the rest
    console = Console(highlight=False, markup=False, emoji=False)
    return Board(console) if console.is_terminal and not console.is_dumb_terminal else Lines(console)
