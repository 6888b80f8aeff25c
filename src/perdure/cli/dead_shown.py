"""How dead documents, their groups and one of them are shown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.padding import Padding
from rich.text import Text

from perdure.cli.drawing import console, part, plain, table, unwrapped
from perdure.cli.saying import visible
from perdure.operate.dead import DeadPage, Inspected
from perdure.operate.groups import Group
from perdure.operate.words import clock, count, line, since, size

CANARY = 10  # that are suggested
SHORT = 8  # letters of a fingerprint that tell groups apart
STYLES = {
    "wait": "yellow",
    "requeue": "green",
    "look": "red",
    "raise": "yellow",
    "purge": "dim",
    "fix": "yellow",
}


def show_page(page: DeadPage, now_ms: int, as_json: bool) -> None:
    """A page of the list, and how to go on."""
    if as_json:
        print(json.dumps({"documents": [asdict(d) for d in page.documents], "after": page.after}, indent=2))
        return
    out = console()
    if not page.documents:
        out.print("No dead documents of that kind.")
        return
    for one in page.documents:
        out.print(
            Text.assemble(
                (one.id, "bold"),
                visible(f"  {since(one.died_ms, now_ms, 'ago')}  {one.collection}  {_what(one.job)}{one.stage}  "),
                (visible(one.error_code), "red"), f"  group {one.fingerprint[:SHORT]}",
            ),
            soft_wrap=True,
        )  # fmt: skip
        out.print(f"    {line(one.message)}", style="dim", soft_wrap=True)
    if page.after is not None:
        out.print(f"more: --after {page.after}", style="dim", soft_wrap=True)


def show_groups(groups: Sequence[Group], now_ms: int, as_json: bool) -> None:
    """The largest first, each with what to do."""
    if as_json:
        print(json.dumps({"groups": [asdict(group) for group in groups]}, indent=2))
        return
    out = console()
    if not groups:
        out.print("No dead documents of that kind.")
    for group in groups:
        number = count(group.count, "follow-up job" if group.job else "document")
        seen = f"last {since(group.last_ms, now_ms, 'ago')}, first {since(group.first_ms, now_ms, 'ago')}"
        out.print(
            Text.assemble(
                (group.fingerprint[:SHORT], "bold"), f"  {number}  ",
                visible(f"{_what(group.job)}{', '.join(group.stages)}  {group.error_type} "),
                (visible(group.code), "red"), f"  {seen}",
            ),
            soft_wrap=True,
        )  # fmt: skip
        out.print(f"    {line(group.message)}", soft_wrap=True)
        out.print(
            f"    of {', '.join(group.collections)}; for example {group.example}", style="dim", soft_wrap=True
        )
        out.print(
            Text.assemble("    ", (group.action, STYLES.get(group.action, "")), visible(f": {group.advice}")),
            soft_wrap=True,
        )
        if group.action in ("look", "fix", "raise"):
            out.print(f"    perdure dead inspect {group.example}", soft_wrap=True)
        if group.action == "requeue":
            out.print(
                f"    perdure dead requeue --group {group.fingerprint[:SHORT]} --canary {CANARY}",
                soft_wrap=True,
            )


def _what(job: str) -> str:
    """What is put before the stage of a follow-up job."""
    return f"{job}: " if job else ""


def show_inspected(found: Inspected, now_ms: int, as_json: bool) -> None:
    """One document."""
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    out, one = console(), found.document
    facts = table("", "")
    facts.show_header = False
    for name, value in (
        ("document", f"{one.id}  {line(one.name)}"), ("of", f"{one.org}, {one.collection}, pipeline {one.pipeline}"),
        *([("job", one.job)] if one.job else []),
        ("died", f"{clock(one.died_ms)} ({since(one.died_ms, now_ms, 'ago')}) in {one.stage}, generation "
                 f"{one.generation}, after {count(one.attempts, 'attempt')}"),
        ("cause", f"{one.error_type} {one.error_code}" + (f", status {one.status_code}" if one.status_code else "")),
        ("group", one.fingerprint), ("size", size(one.size)), ("saved", ", ".join(found.saved) or "nothing"),
        ("advice", f"{found.action}: {found.advice}"),
    ):  # fmt: skip
        facts.add_row(name, value)
    plain(out, facts)
    out.print()
    part(out, "Message", Padding(Text(one.message), (0, 0, 0, 2)))
    if found.traceback:
        unwrapped(out, "Traceback", visible(found.traceback, lines=True))
    if found.meta:
        part(out, "Metadata", Text(json.dumps(found.meta, ensure_ascii=False, indent=2)))
    attempts = table("at", "claim", "stage", "outcome", "why")
    for attempt in found.attempts:
        number = f"{attempt.generation}.{attempt.claim}"
        attempts.add_row(clock(attempt.ended_ms), number, attempt.stage, attempt.outcome, line(attempt.why))
    part(out, "Attempts", attempts)
    if found.acts:
        acts = table("at", "who", "act", "reason")
        for act in found.acts:
            acts.add_row(clock(act["at_ms"]), act["who"], act["verb"], act["reason"])
        part(out, "Acts", acts)
