"""`perdure sweep`: what the workers' leader does all the time, once or every so often, by hand or from a timer.

Exit status: 0 all went well, 3 some of it failed (see `problems`), 1 it did not come to its end, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import NamedTuple

from rich.table import Table

from perdure.cli.drawing import console
from perdure.cli.opened import opened
from perdure.cli.progress import progress
from perdure.cli.saying import say
from perdure.cli.stop import Stop
from perdure.engine.stuck import StuckRun
from perdure.operate.sweeping import Sweep
from perdure.service import AsyncPerdure

FAILURE, PARTIAL = 1, 3
EXIT = {"success": 0, "partial": PARTIAL, "failure": FAILURE}
COLUMNS = ("stuck", "requeued", "skipped_backoff", "max_retries_exceeded", "starved")


class Noted(NamedTuple):
    """What the trail says of it."""

    reason: str
    who: str | None


#: What is done after each sweep; it tells what went wrong, or None.
After = Callable[[], Awaitable[str | None]]


def run(
    store: str | None,
    once: bool,
    interval_s: float | None,
    as_json: bool,
    reason: str = "",
    who: str | None = None,
) -> int:
    """The whole command; its exit status."""
    return opened(store, lambda app: _run(app, once, interval_s, as_json, Noted(reason, who)))


async def _run(app: AsyncPerdure, once: bool, interval_s: float | None, as_json: bool, noted: Noted) -> int:
    after = _pushing(app)
    if once:
        return await _sweep(app, as_json, True, after, noted)
    stop, every_s = Stop(), interval_s or app.stuck_policy.interval_s
    with stop.on_signals():
        while not stop.asked.is_set():
            await _sweep(app, as_json, False, after, noted)
            try:
                await asyncio.wait_for(stop.asked.wait(), every_s)
            except TimeoutError:
                continue
    return 0


def _pushing(app: AsyncPerdure) -> After | None:
    """What brings the counts of each sweep to a Pushgateway, where that is asked for."""
    if not app.settings.pushes:
        return None
    from perdure.watch.push import Pusher

    return Pusher(app.settings.gateway(), app.url, app.store, app.measure().boards).push


async def _sweep(
    app: AsyncPerdure, as_json: bool, bar_wanted: bool, after: After | None, noted: Noted
) -> int:
    """One sweep, told; the exit status that it stands for."""
    with progress(bar_wanted) as bar:
        total = None if bar.disable else await app.store.jobs_there()
        task = bar.add_task("looking for stuck documents", total=total)

        def told(run: StuckRun) -> None:
            bar.update(task, completed=run.looked_at)

        sweep = await app.sweeping(told, reason=noted.reason, who=noted.who)
    print(json.dumps(asdict(sweep))) if as_json else show(sweep)
    status = EXIT[sweep.status]
    if after is not None and (problem := await after()):
        say(f"perdure: {problem}", file=sys.stderr)
        status = status or PARTIAL
    sys.stdout.flush()
    return status


def show(sweep: Sweep) -> None:
    """A line, a table of what is stuck where something is, and the problems."""
    say(_line(sweep))
    found = sorted({name for column in COLUMNS for name in getattr(sweep, column)})
    if found:
        table = Table(
            "collection", *(column.replace("_", " ") for column in COLUMNS), box=None, pad_edge=False
        )
        for name in found:
            table.add_row(name, *(f"{getattr(sweep, column).get(name, 0):,}" for column in COLUMNS))
        console().print(table, soft_wrap=True)
    if sweep.left:
        say(
            f"  {sweep.left:,} expired leases are left to their workers, which are alive; restart one that is frozen"
        )
    for file in sweep.archived:
        say(f"  exported to {file}")
    for problem in sweep.problems:
        say(f"  {problem}")
    if hidden := sum(sweep.errors.values()) - len(sweep.problems):
        say(f"  and {hidden:,} more")


def _line(sweep: Sweep) -> str:
    if sweep.busy:
        return "another sweep looks for stuck documents right now; leases, due documents and old rows were seen to"
    moved = {
        "recovered": sweep.recovered, "promoted": sweep.promoted, "lent": sweep.lent, "queue rows pruned": sweep.pruned,
        "documents purged": sweep.purged,
    }  # fmt: skip
    parts = [f"{n:,} {word}" for word, n in moved.items() if n]
    total = sum(sweep.stuck.values())
    stuck = f"{total:,} stuck" if total else "nothing is stuck"
    return f"{sweep.status}: {', '.join([stuck, *parts])} ({sweep.looked_at:,} jobs, {sweep.duration_ms / 1000:.1f} s)"
