"""What was found, as tables for people and as one JSON object for programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from perdure.operate.simulate.experiment import Found
from perdure.operate.simulate.measure import Row, Spread
from perdure.operate.simulate.model import Model
from perdure.operate.simulate.policy import WORDS

COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("recovery", "recovery_s", lambda value: f"{value:.1f} s"),
    ("load", "load", lambda value: f"{value:.2f}"),
    ("peak", "peak", lambda value: f"{value:.1f}"),
    ("ok fault", "ok_fault", lambda value: f"{value * 100:.0f} %"),
    ("ok all", "ok", lambda value: f"{value * 100:.1f} %"),
    ("p99", "p99_s", lambda value: f"{value:.1f} s"),
    ("done", "done", lambda value: f"{value * 100:.1f} %"),
    ("calls/job", "requests_per_job", lambda value: f"{value:.2f}"),
    ("killed", "killed", lambda value: f"{value * 100:.1f} %"),
)


def facts(found: Sequence[Found], seeds: int) -> dict[str, Any]:
    """Everything that was measured, ready for JSON; of each measure the mean over the seeds and the worst."""
    return {
        "seeds": seeds,
        "faults": [
            {
                "fault": one.model.fault,
                "model": asdict(one.model),
                "policies": {row.policy: _numbers(row) for row in one.rows},
            }
            for one in found
        ],
    }


def _numbers(row: Row) -> dict[str, Any]:
    numbers = asdict(row)
    del numbers["policy"]
    return {
        name: {word: _rounded(number) for word, number in value.items()}
        if isinstance(value, dict)
        else list(value)
        for name, value in numbers.items()
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 4)


def table(found: Found) -> Table:
    """One fault: a line for each policy, the mean over the seeds."""
    drawn = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="dim")
    drawn.add_column("policy", no_wrap=True)
    for title, _, _ in COLUMNS:
        drawn.add_column(title, justify="right", no_wrap=True)
    for row in found.rows:
        ours = "bold" if row.policy == "ours" else ""
        drawn.add_row(WORDS[row.policy], *(_cell(row, name, words) for _, name, words in COLUMNS), style=ours)
    return drawn


def _cell(row: Row, name: str, words: Callable[[float], str]) -> Text:
    value: Spread = getattr(row, name)
    if value.mean is None:
        return Text("never", style="red")
    if value.never:
        return Text(f"{words(value.mean)}*", style="red")
    return Text(words(value.mean))


def title(model: Model, seeds: int) -> str:
    """What was simulated, in a line."""
    fault = model.fault[0].upper() + model.fault[1:]
    low_s, high_s = model.again_s
    return (
        f"{fault}: {model.clients} clients, {model.rate:g} calls/s, capacity {model.capacity:g}/s, "
        f"timeout {model.timeout_s:g} s; jobs try again after {low_s:g}-{high_s:g} s; "
        f"mean of {seeds} seed{'s' if seeds > 1 else ''}"
    )


def notes(found: Sequence[Found]) -> list[str]:
    """What a reader of the tables must know."""
    said = []
    for one in found:
        said += [
            f"* {WORDS[row.policy]}, {one.model.fault}: {row.recovery_s.never} seeds never recovered; "
            "the mean is of the others"
            for row in one.rows
            if row.recovery_s.never and row.recovery_s.mean is not None
        ]
        said += [
            f"{WORDS[row.policy]}, {one.model.fault}: {row.unfinished.mean * 100:.1f} % of jobs had not ended"
            for row in one.rows
            if row.unfinished.mean
        ]
    return said


def trouble(model: Model) -> str:
    """What is wrong with the service that a backlog meets, in words."""
    if model.refuse:
        return f"no more than {model.capacity:g} requests/s are answered for {model.fault_s:g} s"
    if model.share == 0:
        return f"nothing is answered for {model.fault_s:g} s"
    words = [f"{model.flicker:.0%} of requests fail"] if model.flicker else []
    if model.throttle:
        asked = f", which asks to wait {model.after_s:g} s" if model.after_s else ""
        words.append(f"{model.throttle:.0%} get a 429{asked}")
    return " and ".join(words)


def backlog(model: Model, found: Mapping[str, float | None]) -> Table:
    """Workers of a fleet beside a plain loop, at one backlog."""
    shown = Table(box=None, pad_edge=False)
    for heading in ("", "ours", "plain loop"):
        shown.add_column(heading, justify="right" if heading else "left")

    def row(name: str, form: str, ours: float | None, loop: float | None = None) -> None:
        shown.add_row(name, *("" if value is None else form.format(value) for value in (ours, loop)))

    if found["took_s"] is None:
        shown.add_row("all done after", "not in 50 min", f"{found['loop_s']:.1f} s")

    else:
        row("all done after", "{:.1f} s", found["took_s"], found["loop_s"])
    row("requests", "{:,.0f}", found["requests"], found["loop_requests"])
    row("attempts charged", "{:.0f}", found["charged"])
    row("documents dead", "{:.0f}", found["dead"])
    row("longest put off", "{:.1f} s", found["put_off_s"])
    if model.throttle or model.share == 0:
        row("back, the last document done, after", "{:.1f} s", found["rest_s"])
    if model.share == 0:
        row("first answer after the outage", "{:.1f} s", found["first_s"])
    if model.refuse:
        row("asked in the fault, of the capacity", "{:.2f}", found["asked"], found["loop_asked"])
        row("answered in the fault, of the capacity", "{:.2f}", found["answered"])
        row("back to 0.9 of the usual after", "{:.1f} s", found["back_s"])
    return shown
