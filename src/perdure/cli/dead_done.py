"""Requeue, export, import and purge as commands: answers as they come, a bar on a terminal, totals at the end.

Ctrl-C ends them after the step under way; the same command goes on with those that are left.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeVar

from perdure.cli.dead_asked import Asked, sure
from perdure.cli.dead_shown import show_groups
from perdure.cli.opened import opened
from perdure.cli.progress import progress
from perdure.cli.saying import say
from perdure.cli.stop import STOPPED, Stop
from perdure.core.frozen import frozen
from perdure.errors import InputInvalid
from perdure.operate.choosing import Choice, count
from perdure.operate.groups import groups
from perdure.operate.requeue import CANARY_WAIT_S, Canary, Requeued, RequeueOptions
from perdure.operate.words import count as counted
from perdure.operate.words import span
from perdure.service import AsyncPerdure

T = TypeVar("T")
EACH = 20  # up to so many every answer is printed
GROUPS = 10  # that a dry run shows


@frozen
class Purge:
    """How to purge."""

    output: str | None
    no_export: bool
    dry_run: bool
    yes: bool
    each: bool
    reason: str
    who: str | None


class Telling:
    """Prints answers: all of a few, of many only those that are not as they should be."""

    def __init__(self, good: Iterable[str], each: bool, as_json: bool, quiet: bool = False) -> None:
        self.good, self.each, self.as_json, self.quiet = set(good), each, as_json, quiet

    def __call__(self, answers: Iterable[tuple[str, str]], total: int) -> None:
        for id_, answer in answers:
            if self.as_json and not self.quiet:
                print(json.dumps({"id": id_, "answer": answer}))
            elif self.each or total <= EACH or answer not in self.good:
                say(f"{id_} {answer}", file=sys.stderr if self.quiet else sys.stdout)

    def end(self, words: str, **facts: Any) -> None:
        out = sys.stderr if self.quiet else sys.stdout
        say(json.dumps(facts) if self.as_json else words, file=out)


def requeue(
    app: AsyncPerdure, asked: Asked, how: RequeueOptions, *, yes: bool, each: bool, as_json: bool
) -> int:
    """The whole command; its exit status."""

    async def run(app: AsyncPerdure) -> int:
        choice = await app.choose(asked.ids, **asked.options)
        number = await count(app.store, choice)
        limit = how.get("limit")
        number = number if limit is None else min(number, limit)
        if how.get("dry_run"):
            return await _dry_run(app, choice, number, "requeued", how, as_json)
        if not sure(number, "requeue", choice.words, yes):
            return 1
        telling = Telling(["requeued"], each, as_json)
        if how.get("canary") and number:
            await _say_who_waits(app, how)
        stopped, told = await _followed(
            app.requeuing(choice, how),
            "requeueing",
            lambda told: told.requeued + told.refused,
            telling,
            _canary,
        )
        told = told or Requeued()
        words = [f"{told.requeued:,} of {told.found:,} requeued"]
        words += [f"{told.refused:,} refused"] if told.refused else []
        words += [_canary(told)] if told.canary is not None else []
        facts = asdict(told) | {"stopped": told.stopped or ("by Ctrl-C" if stopped else "")}
        telling.end(", ".join(words), **{k: v for k, v in facts.items() if k != "answers"})
        if told.stopped:
            say(f"perdure: stopped: {told.stopped}", file=sys.stderr)
        badly = told.refused or told.stopped or (told.canary and told.canary.done < told.canary.sent)
        return _ended(stopped, bool(badly))

    return opened(None, run, app)


async def _say_who_waits(app: AsyncPerdure, how: RequeueOptions) -> None:
    """Where nobody works the canaries never end, and this would wait without a word."""
    longest = span(int(how.get("canary_wait_s", CANARY_WAIT_S) * 1000))
    works = any(worker.kind == "worker" for worker in await app.store.workers())
    hint = "" if works else "; no worker is running, start one: perdure worker"
    say(f"perdure: waits up to {longest} for the canaries to end{hint}", file=sys.stderr)


def _canary(told: Requeued) -> str:
    canary = told.canary or Canary()
    parts = {
        "done": canary.done,
        "dead": canary.dead,
        "cancelled": canary.cancelled,
        "not ended": canary.left,
    }
    return f"canary of {canary.sent}: " + ", ".join(
        f"{n} {word}" for word, n in parts.items() if n or word == "done"
    )


async def _dry_run(
    app: AsyncPerdure, choice: Choice, number: int, word: str, how: RequeueOptions, as_json: bool
) -> int:
    """What would be done."""
    found = await groups(app.store, choice.where, GROUPS) if choice.keys is None else []
    if as_json:
        refused = [{"id": id_, "answer": answer} for id_, answer in choice.refused]
        facts = {"dry_run": True, "found": number, "groups": [asdict(g) for g in found], "refused": refused}
        print(json.dumps(facts, indent=2))
        return 0
    for id_, answer in choice.refused:
        say(f"{id_} {answer}")
    fresh = (
        ", from the beginning"
        if how.get("fresh")
        else ", each from where it died"
        if word == "requeued"
        else ""
    )
    say(f"a dry run: {counted(number, 'dead document')} would be {word}{fresh}; nothing was changed")
    if found:
        show_groups(found, await app.store.now_ms(), False)
    return 0


def export(
    app: AsyncPerdure, asked: Asked, target: str, who: str | None, as_json: bool, reason: str = ""
) -> int:
    """The whole command; its exit status. What it says does not go where the documents go."""

    async def run(app: AsyncPerdure) -> int:
        choice = await app.choose(asked.ids, **asked.options)
        telling = Telling((), True, as_json, quiet=target == "-")
        doing = app.exporting(choice, target, who, reason)
        stopped, told = await _followed(doing, "exporting", lambda told: told.exported + told.failed, telling)
        if told is not None and not stopped:
            words = f"{told.exported:,} of {told.found:,} exported to {target}"
            words += f", {told.failed:,} failed" if told.failed else ""
            telling.end(words, found=told.found, exported=told.exported, failed=told.failed, file=target)
        elif target != "-":
            say("perdure: stopped; there is no file", file=sys.stderr)
        return _ended(stopped, told is None or told.failed > 0)

    return opened(None, run, app)


def import_(
    app: AsyncPerdure, source: str, who: str | None, each: bool, as_json: bool, reason: str = ""
) -> int:
    """The whole command; its exit status."""

    async def run(app: AsyncPerdure) -> int:
        stop, told = Stop(), None
        with stop.on_signals():
            async with aclosing(app.importing(source, who, reason)) as doing:
                async for told in doing:
                    for a in told.answers:
                        if as_json:
                            print(json.dumps({"line": a.number, "id": a.id, "answer": a.answer}))
                        elif each or told.lines <= EACH or a.answer not in ("imported", "exists"):
                            say(f"line {a.number}: {a.id} {a.answer}".replace(":  ", ": "))
                    if stop.asked.is_set():
                        break
        lines, good, there, bad = (
            (told.lines, told.imported, told.exists, told.refused) if told else (0, 0, 0, 0)
        )
        words = f"{good:,} of {counted(lines, 'line')} imported"
        words += f", {there:,} there already" if there else ""
        words += f", {bad:,} refused" if bad else ""
        facts = {"lines": lines, "imported": good, "exists": there, "refused": bad}
        say(json.dumps(facts) if as_json else words)
        return _ended(stop.asked.is_set(), bad > 0)

    return opened(None, run, app)


def purge(app: AsyncPerdure, asked: Asked, how: Purge, as_json: bool) -> int:
    """The whole command; its exit status."""
    if how.no_export and how.output is not None:
        raise InputInvalid("--output and --no-export do not go together")
    if how.no_export and not how.yes and not how.dry_run:
        raise InputInvalid("--no-export deletes them for ever; say --confirm as well", code="confirm_needed")
    default = f"perdure-purged-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl.gz"
    target = None if how.no_export else how.output or default

    async def run(app: AsyncPerdure) -> int:
        choice = await app.choose(asked.ids, **asked.options)
        number = await count(app.store, choice)
        if how.dry_run:
            return await _dry_run(app, choice, number, "purged", RequeueOptions(), as_json)
        if not sure(number, "purge", choice.words, how.yes, few=0):
            return 1
        telling = Telling(["purged"], how.each, as_json)
        doing = app.purging(choice, target, how.reason, how.who)
        stopped, told = await _followed(doing, "purging", lambda told: told.purged + told.refused, telling)
        assert told is not None
        file = target if target is not None and told.exported else None
        words = f"{told.purged:,} of {told.found:,} purged" + (
            f", {told.refused:,} refused" if told.refused else ""
        )
        words += f"; {told.exported:,} are in {file}" if file else ""
        facts = {
            "found": told.found,
            "exported": told.exported,
            "purged": told.purged,
            "refused": told.refused,
        }
        telling.end(words, **facts, file=file)
        return _ended(stopped, told.refused > 0)

    return opened(None, run, app)


def _ended(stopped: bool, badly: bool) -> int:
    if stopped:
        say("perdure: stopped; the same command goes on with those that are left", file=sys.stderr)
    return STOPPED if stopped else int(badly)


async def _followed(
    doing: AsyncGenerator[T, None], what: str, far: Callable[[Any], int], telling: Telling,
    more: Callable[[Any], str] | None = None,
) -> tuple[bool, T | None]:  # fmt: skip
    """Run it to its end or to Ctrl-C; whether it was stopped, and what it told last."""
    stop, told = Stop(), None
    with stop.on_signals(), progress() as bar:
        task = bar.add_task(what, total=None)
        async with aclosing(doing):
            async for told in doing:
                facts: Any = told
                telling(facts.answers, facts.found)
                words = f"{what}; {more(facts)}" if more and facts.canary else what
                bar.update(task, completed=far(told), total=facts.found, description=words)
                if stop.asked.is_set():
                    break
    return stop.asked.is_set(), told
