"""`perdure audit`: whether all that was accepted is there. Exit status: 0 it is, 1 there are differences."""

from __future__ import annotations

import json as jsonlib
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import JsonOption, ReasonOption, StoreOption, WhoOption

if TYPE_CHECKING:
    from perdure.operate.audit import Audit
    from perdure.service import AsyncPerdure

DIFFERENCES = 1


def audit(
    store: StoreOption = None,
    recount: Annotated[
        bool,
        typer.Option("--recount", help="First count anew what is there; changes counters, nothing else."),
    ] = False,
    reason: ReasonOption = "",
    who: WhoOption = None,
    json: JsonOption = False,
) -> None:
    """Check that all that was accepted is there and belongs together: what is wrong, where, and what to do."""
    from perdure.cli.opened import opened

    found = opened(store, lambda app: _audit(app, recount, who, reason))
    if json:
        told = asdict(found) | {"difference": found.difference, "clean": found.clean}
        print(jsonlib.dumps(told, indent=2))
    else:
        show(found)
    raise typer.Exit(0 if found.clean else DIFFERENCES)


async def _audit(app: AsyncPerdure, recount: bool, who: str | None, reason: str) -> Audit:
    """With a line that tells how far it is, where somebody looks."""
    from perdure.cli.drawing import console
    from perdure.operate.audit import Progress

    out, seen = console(stderr=True), 0
    with out.status("looking at documents") as line:

        def told(progress: Progress) -> None:
            nonlocal seen
            seen += progress.rows
            line.update(f"looking at {progress.what}: {seen:,} so far")

        shown = told if sys.stderr.isatty() else None
        return await app.audit(recount=recount, progress=shown, who=who, reason=reason)


def show(found: Audit) -> None:
    """The balance, and a line for each check; what was found is told below it."""
    from rich.text import Text

    from perdure.cli.drawing import console

    out, b, states = console(), found.balance, found.states
    parts = {
        "done": states.get("done", 0), "in progress": states.get("open", 0), "dead": states.get("dead", 0),
        "cancelled": states.get("cancelled", 0), "purged": b.purged,
    }  # fmt: skip
    there = " + ".join(f"{n:,} {word}" for word, n in parts.items())
    sign = "=" if b.difference == 0 else "≠"
    out.print(
        Text(f"{b.accepted:,} accepted {sign} {there}", style="bold" if b.difference == 0 else "bold red")
    )
    out.print(f"difference {b.difference:,}; {found.looked_at:,} rows looked at")
    out.print()
    for check in found.checks:
        out.print(Text(f"{check.found:10,}  {check.name}", style="" if check.found else "dim"))
        if check.found:
            for example in filter(None, check.examples):
                out.print(f"{'':12}{example}")
            out.print(Text(f"{'':12}{check.advice}", style="yellow"))


COMMANDS = (audit,)
