"""How `perdure dependencies` shows the services that stages need, and how calls to them went.

`--json` has of the facts of `operate.status` the keys now_ms, dependencies and calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perdure.cli.drawing import console, plain, table
from perdure.operate.status import Facts
from perdure.operate.urgency import BOUNDS, grade
from perdure.operate.words import line, since, span, until

STYLES = {"down": "red", **dict.fromkeys(("ramping", "pressed", "paused", "flickering"), "yellow")}
GRADES = {"look": "yellow", "alarm": "red"}


def show_dependencies(facts: Facts, to: Console | None = None) -> None:
    """Print them as tables."""
    out = to or console()
    plain(out, services(facts["dependencies"], facts["now_ms"]) if facts["dependencies"] else NONE)
    if facts["calls"]:
        out.print()
        plain(out, calls(facts["calls"]))


NONE = "No stage needs a dependency."


def services(dependencies: Sequence[Facts], now_ms: int) -> Table:
    """Up or down, since when, why, by whom; how it answers, what that allows and what is asked of it."""
    shown = table(
        "name",
        "state",
        "breaker",
        "since",
        "why",
        "by",
        "held",
        "next probe",
        "answers",
        "requests",
        "retries",
    )
    for d in dependencies:
        probe = until(d["probe_at_ms"], now_ms) if d["probe_at_ms"] is not None else ""
        ramp = f" {d['ramp_per_s']:.0f}/s" if d["ramp_per_s"] is not None else ""
        state = Text(d["state"] + ramp, style=STYLES.get(d["state"], ""))
        shown.add_row(
            d["name"], state, d["breaker"], since(d["since_ms"], now_ms), line(d["reason"] or ""),
            d["held_by"] or "", f"{d['held']:,}" if d["held"] else "", probe,
            "" if d["success_share"] is None else f"{d['success_share']:.0%}",
            _requests(d, now_ms),
            "" if d["tokens"] >= d["tokens_max"] else f"{d['tokens']:.0f} of {d['tokens_max']:.0f} left",
        )  # fmt: skip
    return shown


def _requests(d: Facts, now_ms: int) -> str:
    """How many all workers make, those that are not back, and what they wait for: a pause, or their turns."""
    rate = f"{d['rate_per_s']:.3g}/s" if d["rate_per_s"] else ""
    if d["limit_per_s"] is not None:
        rate = f"{d['rate_per_s']:.3g}/s of {d['limit_per_s']:.3g}/s"
    if d["paused_until_ms"] is not None:
        rate = f"paused, go out {until(d['paused_until_ms'], now_ms)}"
    flying = f"{d['in_flight']:,} in flight" if d["in_flight"] else ""
    return ", ".join(filter(None, (rate, flying)))


def calls(kpis: Sequence[Facts]) -> Table:
    """How calls went; yellow is worth a look, red an alarm."""
    shown = table("calls of 24 h", "operations", "retried", "times", "then well", "failed", "added (p95)")
    for k in kpis:
        times, added = k["retries_per_retried"], k["p95_added_ms"]
        told = {
            "retry_rate": _share(k["retry_rate"]),
            "retries_per_retried": "" if times is None else f"{times:.1f}",
            "success_after_retry": _share(k["success_after_retry"]),
            "failure_rate": _share(k["failure_rate"]),
            "p95_added_ms": "" if added is None else span(added),
        }
        marked = [Text(words, style=GRADES.get(grade(name, k[name]), "")) for name, words in told.items()]
        shown.add_row(k["api_name"], f"{k['operations']:,}", *marked)
    return shown


def troubled(kpis: Sequence[Facts]) -> list[Facts]:
    """Those that are worth a look."""
    return [k for k in kpis if any(grade(name, k[name]) for name in BOUNDS)]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
