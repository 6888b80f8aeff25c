"""What `perdure dependencies` knows: the services that stages need, which are down, and how calls to them went.

Every key is always there; times are milliseconds since 1970 in the store's own clock.

    now_ms
    dependencies  [{name state since_ms reason held_by held probe_at_ms probes ramp_per_s nominal_per_s}]
    calls         [{api_name operations retry_rate success_after_retry retries_per_retried p95_added_ms failure_rate}]

`held` counts documents that wait for it; `calls` are those of the last 24 hours.
"""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perdure.operate.status import Facts
from perdure.operate.urgency import grade
from perdure.operate.words import since, span, until

NUMBERS = ("held", "operations", "retried", "times", "then well", "failed", "added (p95)")
STYLES = {"down": "red", "ramping": "yellow"}


def show_dependencies(facts: Facts, console: Console | None = None) -> None:
    """Print them as tables."""
    out, now_ms = console or Console(highlight=False, markup=False, emoji=False), facts["now_ms"]
    table = _table("name", "state", "since", "why", "by", "held", "next probe")
    for d in facts["dependencies"]:
        probe = until(d["probe_at_ms"], now_ms) if d["probe_at_ms"] is not None else ""
        ramp = f" {d['ramp_per_s']:.0f}/s" if d["ramp_per_s"] is not None else ""
        table.add_row(
            d["name"], Text(d["state"] + ramp, style=STYLES.get(d["state"], "")), since(d["since_ms"], now_ms),
            d["reason"] or "", d["held_by"] or "", str(d["held"] or ""), probe,
        )  # fmt: skip
    out.print(table if facts["dependencies"] else "No stage needs a dependency.")
    if facts["calls"]:
        table = _table(
            "calls of 24 h", "operations", "retried", "times", "then well", "failed", "added (p95)"
        )
        for k in facts["calls"]:
            times, added = k["retries_per_retried"], k["p95_added_ms"]
            told = {
                "retry_rate": _share(k["retry_rate"]),
                "retries_per_retried": "" if times is None else f"{times:.1f}",
                "success_after_retry": _share(k["success_after_retry"]),
                "failure_rate": _share(k["failure_rate"]),
                "p95_added_ms": "" if added is None else span(added),
            }
            marked = [Text(words, style=_style(name, k[name])) for name, words in told.items()]
            table.add_row(k["api_name"], str(k["operations"]), *marked)
        out.print()
        out.print(table)


def _style(name: str, value: float | None) -> str:
    """Yellow for what is worth a look, red for an alarm."""
    return {"look": "yellow", "alarm": "red"}.get(grade(name, value), "")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title, justify="right" if title in NUMBERS else "left", overflow="fold")
    return table
