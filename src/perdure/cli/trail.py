"""How acts and limits are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from perdure.cli.drawing import console, plain, table
from perdure.cli.words import clock
from perdure.store.records import Act, LimitRecord


def show_acts(acts: Sequence[Act], limit: int, as_json: bool) -> None:
    """The newest first, and how to go on."""
    after = acts[-1].id if len(acts) == limit else None
    if as_json:
        print(json.dumps({"acts": [asdict(act) for act in acts], "after": after}, indent=2))
        return
    out = console()
    for act in acts:
        out.print(f"{clock(act.at_ms)}  {act.who}  {act.verb} {act.target}", soft_wrap=True)
        if act.reason:
            out.print(f"    {act.reason}", style="dim", soft_wrap=True)
    if not acts:
        out.print("Nobody has done anything of the kind.")
    if after is not None:
        out.print(f"more: --after {after}", style="dim")


def show_limits(limits: Sequence[LimitRecord], as_json: bool) -> None:
    """What bounds each key."""
    if as_json:
        print(json.dumps({"limits": [asdict(one) for one in limits]}, indent=2))
        return
    out = console()
    shown = table("key", "at once", "per second", "let in", "waiting for room")
    for one in limits:
        bounds = ("any" if bound is None else f"{bound:g}" for bound in (one.concurrency, one.rate_per_s))
        shown.add_row(one.key, *bounds, f"{one.used:,}", f"{one.parked:,}")
    plain(out, shown if limits else "No key has a limit.")
