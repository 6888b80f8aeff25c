"""How commands draw: tables without lines, titles in bold, and nothing that a log or a pipe has no use for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from perdure.cli.saying import visible

NUMBERS = frozenset(
    {
        "ready", "running", "waiting", "held", "over limit", "in hand", "id", "version", "size", "dead", "number",
        "at once", "per second", "let in", "waiting for room", "documents", "workers",
        "operations", "retried", "times", "then well", "failed", "added (p95)",
    }
)  # fmt: skip
STYLES = {"dead": "red", "held": "yellow", "waiting": "yellow", "running": "green"}


class Safe(Console):
    """A console on which text of others is text: no markup, no escape sequences, and a string is one line."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, stderr=stderr)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(visible(segment.text, lines=True), segment.style)


def console(stderr: bool = False) -> Console:
    """Return where commands draw."""
    return Safe(stderr)


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


def unwrapped(out: Console, title: str, text: str) -> None:
    """A titled part whose lines stay as long as they are."""
    out.print(Text(title, style="bold"))
    for line in text.splitlines():
        out.print(Text(f"  {line}".rstrip()), soft_wrap=True)
    out.print()


def plain(out: Console, *body: RenderableType) -> None:
    """As it is on a terminal; a file has no use for blanks at the ends of lines."""
    if out.is_terminal:
        out.print(Group(*body))
        return
    with out.capture() as captured:
        out.print(Group(*body))
    for line in captured.get().split("\n")[:-1]:
        out.print(Text(line.rstrip()), soft_wrap=True)
