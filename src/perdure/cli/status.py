"""What `perdure status` knows: facts that can be JSON, and the same facts as tables.

Times are milliseconds since 1970 in the store's own clock, which `now_ms` reads; every key is always there.

    overview   now_ms, documents {queued running waiting held done dead cancelled}, next_due_ms, late_writes_refused,
               fallbacks {degraded repaired},
               queues [{name paused ready running waiting held over_limit stopped remote ready_since_ms}],
               workers [{id name queues alive in_hand started_ms beat_ms late_writes_refused}],
               lanes_down [{name since_ms reason}],
               outbox {waiting since_ms reason}
    document   now_ms, id, org, collection, pipeline, name, state, stage, held_by, generation, attempts_made,
               attempts_max, claims, suspect, degraded, remote, next_due_ms, last_heartbeat_ms, created_ms, finished_ms,
               error {code message} or null,
               stages [{stage generation version model saved_ms duration_ms size}],
               attempts [{job generation claim attempt charged stage worker started_ms ended_ms outcome error_type
               error_code status_code message delay_ms why requests {dependency: number}}]

`stopped` counts what waits in a paused queue, `over_limit` what waits for room under a concurrency limit, `remote` what
of the running ones other services work on; `outbox` what they have not been told yet. `fallbacks` counts, since the
store was made, how often one stood in for a stage (`degraded`) and how often that was made good (`repaired`).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perdure.cli.words import clock, since, size, span, until
from perdure.core.model import TERMINAL, State
from perdure.errors import DocumentUnknown
from perdure.store.records import Attempt
from perdure.store.sql_store import SqlStore

Facts = dict[str, Any]

STATES = tuple(str(state) for state in State if state is not State.PARKED)
NUMBERS = ("ready", "running", "waiting", "held", "over limit", "in hand", "id", "version", "size")
STYLES = {"dead": "red", "held": "yellow", "waiting": "yellow", "running": "green"}


# --- facts -----------------------------------------------------------------------------------


async def overview_facts(store: SqlStore) -> Facts:
    """The whole store at one moment."""
    tally, live = await store.tally(), await store.live()
    ended = {str(state): tally.documents.get(state, 0) for state in TERMINAL}
    return {
        "now_ms": await store.now_ms(),
        "documents": {state: ended.get(state, live.get(state, 0)) for state in STATES},
        "next_due_ms": tally.next_due_ms,
        "late_writes_refused": tally.fenced,
        "fallbacks": {name: await store.counted(name) for name in ("degraded", "repaired")},
        "queues": await _queue_facts(store, tally.queues),
        "workers": await _worker_facts(store),
        "lanes_down": [
            {"name": lane.name, "since_ms": lane.down_since_ms, "reason": lane.reason or ""}
            for lane in await store.lanes()
            if lane.down_since_ms is not None
        ],
        "outbox": asdict(await store.outbox_state()),
    }


async def _queue_facts(store: SqlStore, jobs: dict[str, dict[str, int]]) -> list[Facts]:
    words = {
        "ready": "queued", "running": "running", "waiting": "waiting", "held": "held", "over_limit": "parked",
        "stopped": "paused", "remote": "remote",
    }  # fmt: skip
    facts: list[Facts] = [
        {"name": queue.name, "paused": queue.paused, "ready_since_ms": queue.ready_since_ms}
        | {word: jobs.get(queue.name, {}).get(state, 0) for word, state in words.items()}
        for queue in await store.queues()
    ]
    for queue in facts:
        queue["running"] += queue["remote"]
    return facts


async def _worker_facts(store: SqlStore) -> list[Facts]:
    workers = [worker for worker in await store.workers() if worker.kind == "worker"]
    gone = await store.missing([worker.id for worker in workers])
    return [
        {
            "id": w.id, "name": w.name, "queues": list(w.queues), "alive": w.id not in gone, "in_hand": w.running,
            "started_ms": w.started_ms, "beat_ms": w.beat_ms, "late_writes_refused": w.fenced,
        }
        for w in workers
    ]  # fmt: skip


async def document_facts(store: SqlStore, document_id: str) -> Facts:
    """One document with its stages and attempts; DocumentUnknown."""
    org = await store.find(document_id)
    status = await store.status(org, document_id) if org is not None else None
    if org is None or status is None:
        raise DocumentUnknown(f"there is no document {document_id} in this store; check the id and --store")
    facts = asdict(status)
    code, message = facts.pop("error_code"), facts.pop("error_message")
    facts["next_due_ms"] = facts.pop("run_at_ms")
    saves = await store.saves(org, document_id, status.pipeline)
    return {
        "now_ms": await store.now_ms(),
        **facts,
        "error": None if code is None else {"code": code, "message": message},
        "stages": [
            {
                "stage": s.stage, "generation": s.generation, "version": s.version, "model": s.model,
                "saved_ms": s.saved_ms, "duration_ms": s.duration_ms, "size": s.size,
            }
            for s in saves
        ],
        "attempts": [attempt_facts(attempt) for attempt in await store.attempts(org, document_id)],
    }  # fmt: skip


def attempt_facts(attempt: Attempt) -> Facts:
    facts = asdict(attempt)
    del facts["document_id"], facts["fingerprint"]
    return {"job": facts.pop("job_key"), **facts}


# --- tables ----------------------------------------------------------------------------------


def show_overview(facts: Facts, console: Console | None = None) -> None:
    """Print the overview."""
    out, now = console or _console(), facts["now_ms"]
    counts = Text("   ").join(
        Text.assemble((str(n), "bold"), f" {state}", style=STYLES.get(state, "") if n else "dim")
        for state, n in facts["documents"].items()
    )
    _part(out, f"Documents: {sum(facts['documents'].values())}", counts)
    queues = _table("queue", "ready", "running", "waiting", "held", "over limit", "oldest ready")
    for q in facts["queues"]:
        name = f"{q['name']} (paused)" if q["paused"] else q["name"]
        ready = q["ready"] + q["stopped"]
        counted = (ready, q["running"], q["waiting"], q["held"], q["over_limit"])
        queues.add_row(name, *map(str, counted), since(q["ready_since_ms"], now))
    _part(out, "Queues", queues if facts["queues"] else Text("none yet", style="dim"))
    workers = _table("worker", "id", "in hand", "last sign of life", "up for", "")
    for w in facts["workers"]:
        life = Text("alive", style="green") if w["alive"] else Text("gone", style="red")
        age, up = since(w["beat_ms"], now, "ago"), since(w["started_ms"], now)
        workers.add_row(w["name"], str(w["id"]), str(w["in_hand"]), age, up if w["alive"] else "", life)
    _part(
        out,
        "Workers",
        workers if facts["workers"] else Text("none: start one with perdure worker", style="dim"),
    )
    if facts["lanes_down"]:
        lanes = _table("needs", "down for", "reason")
        for lane in facts["lanes_down"]:
            lanes.add_row(Text(lane["name"], style="yellow"), since(lane["since_ms"], now), lane["reason"])
        _part(out, "Down, and held because of it", lanes)
    if facts["outbox"]["waiting"]:
        _part(out, "Outbox", _outbox_line(facts["outbox"], now))
    if facts["fallbacks"]["degraded"]:
        out.print(
            "Fallbacks stood in: {degraded:,}   Made good since: {repaired:,}".format(**facts["fallbacks"])
        )
    due = facts["next_due_ms"]
    line = f"Late writes refused: {facts['late_writes_refused']}"
    out.print(line + (f"   Next one due: {until(due, now)}" if due is not None else ""))


def _outbox_line(outbox: Facts, now: int) -> Text:
    """What other services have not been told yet, and why."""
    n, reason = (
        outbox["waiting"],
        outbox["reason"] or "no relay took them yet: do workers have RABBITMQ_HOST?",
    )
    age = since(outbox["since_ms"], now)
    return Text(f"{n} event{'s' * (n != 1)} to be published, the oldest for {age}: {reason}")


def show_document(facts: Facts, console: Console | None = None) -> None:
    """Print one document."""
    out, now = console or _console(), facts["now_ms"]
    head = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    head.add_column(style="dim", no_wrap=True)
    head.add_column(overflow="fold")
    for label, value in _document_lines(facts, now):
        head.add_row(label, value)
    _part(out, f"Document {facts['id']}", head)
    stages = _table("stage", "version", "saved", "took", "size")
    for s in facts["stages"]:
        stage = s["stage"] if s["generation"] == 1 else f"{s['stage']} (generation {s['generation']})"
        stages.add_row(
            stage, str(s["version"]), clock(s["saved_ms"]), span(s["duration_ms"]), size(s["size"])
        )
    _part(out, "Stages saved", stages if facts["stages"] else Text("none yet", style="dim"))
    _part(out, "Attempts that ended", *_attempt_lines(facts))


def _attempt_lines(facts: Facts) -> list[RenderableType]:
    """A line for each, and below it what happened: a column of its own would be too narrow."""
    cells = [
        (
            _number(a, facts["id"]), clock(a["started_ms"]), span(a["ended_ms"] - a["started_ms"]), a["stage"],
            f"worker {a['worker']}" if a["worker"] else "elsewhere", a["outcome"],
        )
        for a in facts["attempts"]
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines: list[RenderableType] = []
    for attempt, row in zip(facts["attempts"], cells, strict=True):
        line = Text(
            "  ".join(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)) + "  "
        )
        style = STYLES.get(row[-1], "" if row[-1] == "done" else "yellow")
        lines.append(line.append(row[-1], style=style))
        lines.append(Padding(Text(happened(attempt), style="dim", overflow="fold"), (0, 0, 0, widths[0] + 2)))
    return lines or [Text("none has ended yet", style="dim")]


def _document_lines(facts: Facts, now: int) -> list[tuple[str, RenderableType]]:
    """What there is to say about it; what is not so is left out."""
    state = Text(facts["state"], style=STYLES.get(facts["state"], ""))
    if facts["stage"] is not None and facts["state"] != "done":
        state.append(f" at stage {facts['stage']}", style="default")
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


def _number(attempt: Facts, document_id: str) -> str:
    """Its number; one that was given back has none of its own. A follow-up job is named."""
    name = attempt["job"].removeprefix(f"doc-{document_id}").lstrip("/")
    number = str(attempt["attempt"]) if attempt["charged"] else "–"
    generation = f"g{attempt['generation']} " if attempt["generation"] > 1 else ""
    return f"{generation}{number}{f' {name}' if name else ''}"


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


# --- words -----------------------------------------------------------------------------------


def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False)


def _part(out: Console, title: str, *body: RenderableType) -> None:
    out.print(Text(title, style="bold"))
    if out.is_terminal:
        out.print(Group(*body))
    else:  # a file has no use for blanks at the ends of lines
        with out.capture() as captured:
            out.print(Group(*body))
        out.print("\n".join(line.rstrip() for line in captured.get().splitlines()), soft_wrap=True)
    out.print()


def _table(*titles: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for title in titles:
        table.add_column(title, justify="right" if title in NUMBERS else "left", overflow="fold")
    return table
