"""How one document is shown: what it is, what is saved of it, and the attempts that ended."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perdure.cli.drawing import STYLES, console, part, table
from perdure.cli.saying import visible
from perdure.operate.status import Facts
from perdure.operate.words import clock, since, size, span, until


def show_document(facts: Facts, to: Console | None = None) -> None:
    """Print one document."""
    out, now = to or console(), facts["now_ms"]
    head = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    head.add_column(style="dim", no_wrap=True)
    head.add_column(overflow="fold")
    for label, value in _document_lines(facts, now):
        head.add_row(label, value)
    part(out, f"Document {facts['id']}", head)
    stages = table("stage", "version", "saved", "took", "size")
    for s in facts["stages"]:
        stage = s["stage"] if s["generation"] == 1 else f"{s['stage']} (generation {s['generation']})"
        stages.add_row(
            stage, str(s["version"]), clock(s["saved_ms"]), span(s["duration_ms"]), size(s["size"])
        )
    part(out, "Stages saved", stages if facts["stages"] else Text("none yet", style="dim"))
    by_job: dict[str, list[Facts]] = {}
    for attempt in facts["attempts"]:
        by_job.setdefault(attempt["job"].partition("/")[2], []).append(attempt)
    part(out, "Attempts that ended", *_attempt_lines(by_job.pop("", [])))
    for job, attempts in by_job.items():
        part(out, f"Attempts of its follow-up job {job}", *_attempt_lines(attempts))


def _attempt_lines(attempts: list[Facts]) -> list[RenderableType]:
    """A line for each, and below it what happened: a column of its own would be too narrow."""
    cells = [
        (
            _number(a), clock(a["started_ms"]), span(a["ended_ms"] - a["started_ms"]), a["stage"],
            f"worker {a['worker']}" if a["worker"] else "elsewhere", a["outcome"],
        )
        for a in attempts
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines: list[RenderableType] = []
    for attempt, row in zip(attempts, cells, strict=True):
        padded = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        line = Text(visible("  ".join(padded)) + "  ", overflow="fold")
        lines.append(line.append(row[-1], style=STYLES.get(row[-1], "" if row[-1] == "done" else "yellow")))
        lines.append(Padding(Text(happened(attempt), style="dim", overflow="fold"), (0, 0, 0, widths[0] + 2)))
    return lines or [Text("none has ended yet", style="dim")]


def _document_lines(facts: Facts, now: int) -> list[tuple[str, RenderableType]]:
    """What there is to say about it; what is not so is left out."""
    state = Text(facts["state"], style=STYLES.get(facts["state"], ""))
    if facts["stage"] is not None and facts["state"] != "done":
        state.append(visible(f" at stage {facts['stage']}"), style="default")
    if facts["remote"]:
        state.append(", in another service", style="default")
    marks = ["suspect"] if facts["suspect"] and facts["finished_ms"] is None else []
    marks += ["degraded"] if facts["degraded"] else []
    state.append("".join(f", {mark}" for mark in marks), style="default")
    claims = f", {facts['claims']} claims" if facts["claims"] > facts["attempts_made"] else ""
    attempts = (
        f"{facts['attempts_made']} of {facts['attempts_max']}{claims}, generation {facts['generation']}"
    )
    error = facts["error"]
    code = next(
        (_code(a) for a in reversed(facts["attempts"]) if error and a["error_code"] == error["code"]),
        error and error["code"],
    )
    beat, due, ended = facts["last_heartbeat_ms"], facts["next_due_ms"], facts["finished_ms"]
    lines: list[tuple[str, RenderableType | None]] = [
        ("name", facts["name"] or None),
        ("state", state),
        ("why", facts["why"] if facts["state"] != "done" else None),
        ("error", f"{code}: {error['message']}" if error else None),
        ("held by", facts["held_by"] if facts["state"] == "held" else None),
        ("next due", until(due, now) if due is not None else None),
        ("attempts", attempts),
        ("pipeline", f"{facts['pipeline']}, collection {facts['collection']}, organisation {facts['org']}"),
        ("came in", f"{clock(facts['created_ms'])}, {since(facts['created_ms'], now, 'ago')}"),
        ("ended", f"{clock(ended)}, {since(ended, now, 'ago')}" if ended is not None else None),
        ("last beat", since(beat, now, "ago") if beat is not None and facts["state"] == "running" else None),
    ]
    return [(label, value) for label, value in lines if value is not None]


def _number(attempt: Facts) -> str:
    """Its number; one that was given back has none of its own."""
    generation = f"g{attempt['generation']} " if attempt["generation"] > 1 else ""
    return f"{generation}{attempt['attempt'] if attempt['charged'] else '–'}"


def happened(attempt: Facts) -> str:
    """The error, why it was decided so, and when it is tried again; nothing is said twice."""
    message, why = attempt["message"] or "", attempt["why"]
    status = f" (HTTP {attempt['status_code']})" if attempt["status_code"] else ""
    said = f"{_code(attempt)}: {message}{status}" if message and message not in why else ""
    delay = f"; again after {span(attempt['delay_ms'])}" if attempt["delay_ms"] else ""
    return " – ".join(part for part in (said, f"{why}{delay}") if part)


def _code(attempt: Facts) -> str:
    """The error's code, and the class of one that is not ours: its message alone may say little."""
    code = str(attempt["error_code"])
    return f"{code}: {attempt['error_type']}" if code == "unexpected" else code
