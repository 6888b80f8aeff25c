"""How commands draw: tables without lines, titles in bold, and nothing that a log or a pipe has no use for."""

from __future__ import annotations

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

NUMBERS = frozenset(
    {
        "ready", "running", "waiting", "held", "over limit", "in hand", "id", "version", "size", "dead", "number",
        "at once", "per second", "let in", "waiting for room", "documents", "workers",
        "operations", "retried", "times", "then well", "failed", "added (p95)",
    }
)  # fmt: skip
STYLES = {"dead": "red", "held": "yellow", "waiting": "yellow", "running": "green"}


def console() -> Console:
    """Where it goes: what documents bring along is text, never markup."""
    return Console(highlight=False, markup=False, emoji=False)


def table(*titles: str) -> Table:
    """Columns; those of numbers to the right."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for title in titles:
        justify: JustifyMethod = "right" if title in NUMBERS else "left"
        made.add_column(title, justify=justify, overflow="fold", no_wrap=title == "document")
    return made


def part(out: Console, title: str, *body: RenderableType) -> None:
    """A titled part of a page."""
    out.print(Text(title, style="bold"))
    plain(out, *body)
    out.print()


def plain(out: Console, *body: RenderableType) -> None:
    """As it is on a terminal; a file has no use for blanks at the ends of lines."""
    if out.is_terminal:
        out.print(Group(*body))
        return
    with out.capture() as captured:
        out.print(Group(*body))
    out.print("\n".join(line.rstrip() for line in captured.get().splitlines()), soft_wrap=True)
