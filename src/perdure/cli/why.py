"""`perdure why` and `perdure timeline`: what a document waits for, and what happened to it."""

from __future__ import annotations

import json as jsonlib
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from perdure.cli.options import DocumentArgument, JsonOption, StoreOption
from perdure.cli.saying import say

if TYPE_CHECKING:
    from perdure.operate.timeline import Happening


def why(document: DocumentArgument, store: StoreOption = None, json: JsonOption = False) -> None:
    """Say in one sentence what a document waits for, for how long, and what happens next or what to press."""
    from perdure.cli.opened import opened

    found = opened(store, lambda app: app.why(document))
    print(jsonlib.dumps(asdict(found), indent=2)) if json else say(found.sentence)


def timeline(document: DocumentArgument, store: StoreOption = None, json: JsonOption = False) -> None:
    """Show all that happened to a document, in order and with durations."""
    from perdure.cli.opened import opened

    found = opened(store, lambda app: app.timeline(document))
    if json:
        print(jsonlib.dumps({"timeline": [asdict(one) for one in found]}, indent=2))
    else:
        show_timeline(found)


def show_timeline(happenings: Sequence[Happening]) -> None:
    """A line each: the time in UTC, how long it took, what it was; the date where it changes. Repeats are folded."""
    from rich.text import Text

    from perdure.cli.drawing import console
    from perdure.operate.words import clock, span

    out, day, folded = console(), "", 0
    styles = {"now": "bold", "state": "bold", "act": "cyan", "wait": "dim"}
    for n, one in enumerate(happenings):
        if _repeats(happenings, n):
            folded += 1
            continue
        if folded:
            out.print(Text(f"{'':19}… and {folded:,} more like these", style="dim"))
            folded = 0
        date, time = clock(one.at_ms).split(" ")
        if date != day:
            out.print(Text(f"{date} (UTC)", style="dim"))
            day = date
        took = span(one.took_ms) if one.took_ms is not None else ""
        head = f"{time.rstrip('Z')}  {took:>7}  "
        text = Text(f"{one.job}: {one.text}" if one.job else one.text, style=styles.get(one.kind, ""))
        for number, each in enumerate(text.wrap(out, max(20, out.width - len(head)))):
            each.rstrip()
            out.print(Text(head if number == 0 else " " * len(head)) + each, soft_wrap=True)


def _repeats(happenings: Sequence[Happening], n: int) -> bool:
    """Whether this one and its neighbour are as the four before them, but for numbers."""
    if n < 4 or n + 2 >= len(happenings):
        return False
    texts = [re.sub(r"\d+", "", one.text) for one in happenings[n - 4 : n + 1]]
    return texts[4] == texts[2] == texts[0] and texts[3] == texts[1]


COMMANDS = (why, timeline)
