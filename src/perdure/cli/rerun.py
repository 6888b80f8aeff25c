"""`perdure rerun`: finished documents run again from a stage on.

Ctrl-C ends it after the page under way, `--limit` after so many; it says then with which `--after` the rest is run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from rich.progress import TaskID

from perdure.cli.opened import opened
from perdure.cli.progress import progress
from perdure.cli.saying import say, say_lines
from perdure.cli.stop import STOPPED, Stop
from perdure.errors import InputInvalid
from perdure.operate.rerun import KEYS, Rerun, RerunOptions
from perdure.service import AsyncPerdure


def conditions(where: Sequence[str]) -> dict[str, str]:
    """`model=old` and the like."""
    if not where:
        raise InputInvalid(
            f"say which documents: --where with {', '.join(KEYS)}; for all, --where state=done"
        )
    found: dict[str, str] = {}
    for one in where:
        name, sign, value = one.partition("=")
        if not sign:
            raise InputInvalid(f"--where takes NAME=VALUE, for example model=old, not {one!r}")
        if name in found:
            raise InputInvalid(
                f"--where {name} is given twice; all conditions must hold, so ask once for each"
            )
        found[name] = value
    return found


def run(app: AsyncPerdure, options: RerunOptions, as_json: bool = False) -> int:
    """The whole command; its exit status."""
    stopped, found = opened(None, lambda app: _rerun(app, options), app)
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        say_lines(_told(found, bool(options.get("dry_run"))))
    if found.last is not None:
        word = "stopped" if stopped else "these are not all"
        say(f"perdure: {word}; go on with --after {found.last}", file=sys.stderr)
    return STOPPED if stopped else 0


async def _rerun(app: AsyncPerdure, options: RerunOptions) -> tuple[bool, Rerun]:
    stop, found = Stop(), Rerun()
    with stop.on_signals(), progress() as bar:
        task: TaskID | None = None
        async for found in app.rerunning(**options):
            if task is None:  # asked for only now: a mistake is told without a bar
                total = sum((await app.store.tally()).documents.values())
                task = bar.add_task("looking at documents", total=total)
            bar.update(task, completed=found.looked_at)
            if stop.asked.is_set():
                break
    return stop.asked.is_set(), found


def _told(found: Rerun, dry_run: bool) -> str:
    parts = [f"{found.found:,} found"]
    parts.append("a dry run: nothing was requeued" if dry_run else f"{found.requeued:,} requeued")
    parts += [f"{found.running:,} skipped: running"] if found.running else []
    parts += [f"{found.refused:,} refused"] if found.refused else []
    models = ", ".join(f"{name or '(none)'}: {n:,}" for name, n in sorted(found.models.items()))
    return ", ".join(parts) + (f"\nsaved by {models}" if dry_run and models else "")
