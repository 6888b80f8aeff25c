"""`perdure status`: the store at a glance, what needs a person first; once, or live."""

from __future__ import annotations

import asyncio
import json as jsonlib
from contextlib import suppress
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from perdure.cli.dependencies import calls, services, troubled
from perdure.cli.drawing import STYLES, console, plain, table
from perdure.cli.saying import say, visible
from perdure.cli.stop import Stop
from perdure.operate.status import Facts, overview
from perdure.operate.words import clock, shown, since, until

if TYPE_CHECKING:
    from perdure.service import AsyncPerdure

WATCH_S = 2.0
SHARES_MAX = 3  # organisations that are named for a worker
SEVERITY = {"critical": "bold red", "warning": "yellow", "notice": "dim"}


def show_overview(facts: Facts, to: Console | None = None) -> None:
    """Print the overview."""
    plain(to or console(), *drawn(facts))


async def watch(app: AsyncPerdure, as_json: bool, every_s: float = WATCH_S) -> None:
    """Show it anew until Ctrl-C: in a terminal in its place, else a line whenever the headline changes."""
    stop, out = Stop(), console()
    lively = out.is_terminal and not out.is_dumb_terminal and not as_json
    with stop.on_signals():
        if lively:
            with Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
                while not stop.asked.is_set():
                    live.update(Group(*drawn(await _facts(app))), refresh=True)
                    await _pause(stop, every_s)
            return
        told = ""
        while not stop.asked.is_set():
            facts = await _facts(app)
            if as_json:
                print(jsonlib.dumps(facts), flush=True)
            elif facts["headline"] != told:
                told = facts["headline"]
                say(f"{clock(facts['now_ms'])}  {told}", flush=True)
            await _pause(stop, every_s)


async def _facts(app: AsyncPerdure) -> Facts:
    return {**await overview(app.store), "store": shown(app.url)}


async def _pause(stop: Stop, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.asked.wait()


# --- drawing -------------------------------------------------------------------------------------


def drawn(facts: Facts) -> list[RenderableType]:
    """The page: the headline, what else needs a person, and then what there is."""
    worst = facts["problems"][0]["severity"] if facts["problems"] else "notice"
    style = "bold green" if worst == "notice" else SEVERITY[worst]
    page: list[RenderableType] = [Text(visible(facts["headline"]), style=style)]
    others = facts["problems"] if worst == "notice" else facts["problems"][1:]
    for one in others:
        press = f": `{one['press']}`" if one["press"] else ""
        page.append(Text(visible(f"  {one['text']}{press}"), style=SEVERITY[one["severity"]]))
    for title, body in (
        (f"Documents: {sum(facts['documents'].values()):,}", _documents(facts)),
        ("Queues", _queues(facts)),
        ("Workers", _workers(facts)),
        ("Services that are down, limited or failing", _services(facts)),
        ("Calls that are worth a look", _calls(facts)),
        ("Dead, the largest groups", _dead(facts)),
        ("Outbox", _outbox(facts)),
    ):
        if body is not None:
            page += [Text(), Text(title, style="bold"), body]
    return [*page, Text(), *_rest(facts)]


def _documents(facts: Facts) -> RenderableType:
    return Text("   ").join(
        Text.assemble((f"{n:,}", "bold"), f" {state}", style=STYLES.get(state, "") if n else "dim")
        for state, n in facts["documents"].items()
    )


def _queues(facts: Facts) -> RenderableType:
    shown = table("queue", "ready", "running", "waiting", "held", "over limit", "oldest", "workers")
    for q in facts["queues"]:
        name = f"{q['name']} (paused)" if q["paused"] else q["name"]
        counted = (q["ready"] + q["stopped"], q["running"], q["waiting"], q["held"], q["over_limit"])
        numbers = (f"{n:,}" for n in counted)
        shown.add_row(name, *numbers, since(q["ready_since_ms"], facts["now_ms"]), f"{q['workers']:,}")
    return shown if facts["queues"] else Text("none yet", style="dim")


def _workers(facts: Facts) -> RenderableType:
    now, workers = facts["now_ms"], facts["workers"]
    hint = Text("none: start one with perdure worker", style="dim")
    if not workers:
        return hint
    shown = table("worker", "id", "in hand", "sandbox", "last sign of life", "up for", "")
    for w in workers:
        life = Text("alive", style="green") if w["alive"] else Text("gone", style="red")
        if w["alive"] and w["silent_since_ms"] is not None:
            life = Text(f"silent for {since(w['silent_since_ms'], now)}", style="red")
        age, up = since(w["beat_ms"], now, "ago"), since(w["started_ms"], now)
        about = (_slots(w), w["sandbox"] or "")
        shown.add_row(w["name"], str(w["id"]), *about, age, up if w["alive"] else "", life)
    if any(w["alive"] for w in workers):
        return Group(shown, *(Text(_shares(w), style="dim") for w in workers if w["organisations"]))
    return Group(shown, Text("none is alive: start one with perdure worker", style="red"))


def _slots(worker: Facts) -> str:
    """Documents in hand, of how many slots, and those beside for large ones."""
    if worker["slots"] is None:
        return str(worker["in_hand"])
    return f"{worker['in_hand']} of {worker['slots']}+{worker['large_slots']}"


def _shares(worker: Facts) -> str:
    """The organisations that have most of it."""
    shares = worker["organisations"]
    told = [
        f"{one['org']} {one['in_hand']}" + (f" ({one['large']} large)" if one["large"] else "")
        for one in shares[:SHARES_MAX]
    ]
    return (
        f"{worker['name']} works for "
        + ", ".join(told)
        + (f" and {len(shares) - SHARES_MAX} more" if len(shares) > SHARES_MAX else "")
    )


def _services(facts: Facts) -> RenderableType | None:
    amiss = [d for d in facts["dependencies"] if d["state"] != "up" or d["breaker"] != "closed"]
    return services(amiss, facts["now_ms"]) if amiss else None


def _calls(facts: Facts) -> RenderableType | None:
    found = troubled(facts["calls"])
    return calls(found) if found else None


def _dead(facts: Facts) -> RenderableType | None:
    shown = table("number", "group", "stage", "code", "last", "what to do")
    for one in facts["dead"]["groups"]:
        last = since(one["last_ms"], facts["now_ms"], "ago")
        stage = f"{one['job']}: {one['stages'][0]}" if one["job"] else one["stages"][0]
        cells = (one["fingerprint"][:8], stage, one["code"], last, one["action"])
        shown.add_row(f"{one['count']:,}", *cells)
    return shown if facts["dead"]["groups"] else None


def _outbox(facts: Facts) -> RenderableType | None:
    """What other services have not been told yet, and why."""
    n, reason = facts["outbox"]["waiting"], facts["outbox"]["reason"]
    if not n:
        return None
    told = reason or "no relay took them yet: do workers have RABBITMQ_HOST?"
    age = since(facts["outbox"]["since_ms"], facts["now_ms"])
    return Text(visible(f"{n:,} event{'s' * (n != 1)} to be published, the oldest for {age}: {told}"))


def _rest(facts: Facts) -> list[RenderableType]:
    lines: list[RenderableType] = []
    if facts["fallbacks"]["degraded"]:
        fallbacks = "Fallbacks stood in: {degraded:,}   Made good since: {repaired:,}"
        lines.append(Text(fallbacks.format(**facts["fallbacks"])))
    tier = facts["escalation"]
    if tier["tier"] > 1:
        lines.append(
            Text(f"Escalation: tier {tier['tier']}, {tier['name']}; see `perdure runbook {tier['runbook']}`")
        )
    if (looked_ms := facts["audit"]["looked_ms"]) is not None:
        difference, ago = facts["audit"]["difference"], since(looked_ms, facts["now_ms"], "ago")
        lines.append(Text(f"Audit: difference {difference:,}, {ago}"))
    durability = "   ".join(f"{name} {value}" for name, value in facts["durability"].items())
    if "store" in facts:
        lines.append(Text(visible(f"Store: {facts['store']}"), overflow="fold"))
    lines.append(Text(f"Commits: {durability}"))
    due = facts["next_due_ms"]
    last = f"Late writes refused: {facts['late_writes_refused']:,}"
    lines.append(Text(last + (f"   Next one due: {until(due, facts['now_ms'])}" if due is not None else "")))
    return lines
