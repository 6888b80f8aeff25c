"""What operators type to change something; every act is in the trail that `perdure acts` shows.

An act that is refused tells why on standard error and ends with status 1.
"""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.options import (
    BUILTIN,
    DocumentArgument,
    JsonOption,
    ReasonOption,
    StoreOption,
    WhoOption,
)
from perdure.cli.saying import say

if TYPE_CHECKING:
    from perdure.service import AsyncPerdure

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
DependencyArgument = Annotated[
    str, typer.Argument(metavar="DEPENDENCY", help="The dependency, as stages name it in `needs`.")
]


def requeue(
    document: DocumentArgument,
    at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Not before: +2h, +90s, 06:30 (UTC), or 2027-01-31T06:30+01:00."),
    ] = None,
    stage: Annotated[
        str | None, typer.Option("--from", metavar="STAGE", help="Run anew from this stage on.")
    ] = None,
    only: Annotated[
        bool,
        typer.Option("--only", help="With --from: those after it only where what they read has changed."),
    ] = False,
    reason: ReasonOption = "",
    who: WhoOption = None,
    target: Annotated[
        str, typer.Option("--app", metavar="MODULE:APP", help="The app that has its pipeline.")
    ] = BUILTIN,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Start a finished document again, now or later, with fresh attempts; what is saved is not done twice."""
    from perdure.cli.main import service
    from perdure.errors import PipelineUnknown

    due = moment(at, datetime.now(UTC)) if at is not None else None

    async def run(app: AsyncPerdure, id_: str) -> str:
        try:
            return await app.requeue(id_, from_stage=stage, only=only, at=due, reason=reason, who=who)
        except PipelineUnknown as error:
            raise PipelineUnknown(f"{error}; name the app that has it with --app MODULE:APP") from None

    when = f", not before {due:%Y-%m-%d %H:%M:%SZ}" if due is not None else ""
    answered(*acted(store, document, run, service(target, store)), json, when)


def cancel(
    document: DocumentArgument, reason: ReasonOption = "", who: WhoOption = None, store: StoreOption = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """End a document now, whatever it is doing."""
    answered(*acted(store, document, lambda app, id_: app.cancel(id_, reason=reason, who=who)), json)


def priority(
    document: DocumentArgument,
    value: Annotated[
        str,
        typer.Argument(metavar="N", help="From -100 to 100, higher first; or `first`, before all others."),
    ],
    reason: ReasonOption = "",
    who: WhoOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Give a document that waits for its turn another priority. A negative one is written after --."""
    from perdure.errors import InputInvalid

    if value == "first":
        raised = acted(store, document, lambda app, id_: app.raise_(id_, reason=reason, who=who))
        return answered(*raised, json)
    try:
        number = int(value)
    except ValueError:
        raise InputInvalid(f"a priority is a number from -100 to 100, or `first`, not {value!r}") from None
    changed = acted(store, document, lambda app, id_: app.priority(id_, number, reason=reason, who=who))
    return answered(*changed, json)


def pause(
    queue: QueueArgument, reason: ReasonOption = "", who: WhoOption = None, store: StoreOption = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Let no worker take anything more from a queue; what is running goes on."""
    _act(store, lambda app: app.pause(queue, reason=reason, who=who))
    _changed(queue, "paused", f"{queue} is paused; `perdure resume {queue}` lets it go on", json)


def resume(
    queue: QueueArgument, reason: ReasonOption = "", who: WhoOption = None, store: StoreOption = None,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Let workers take from a paused queue again."""
    _act(store, lambda app: app.resume(queue, reason=reason, who=who))
    _changed(queue, "running", f"{queue} goes on", json)


NewOption = Annotated[bool, typer.Option("--new", help="A name that nothing has yet is meant.")]


def hold(
    dependency: DependencyArgument,
    reason: Annotated[str, typer.Option(help="Why, for whoever looks.")] = "held by hand",
    new: NewOption = False,
    who: WhoOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Hold the documents that need a dependency, until somebody releases it."""
    told = _to_dependency(
        store, lambda app: app.hold(dependency, reason, who=who, new=new), dependency, "held"
    )
    _changed(dependency, "down", told, json)


def release(
    dependency: DependencyArgument,
    reason: ReasonOption = "",
    who: WhoOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Let the documents that wait for a dependency go on, at once."""
    told = _to_dependency(store, lambda app: app.release(dependency, reason, who=who), dependency, "released")
    _changed(dependency, "up", told, json)


def limit(
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="org:NAME, dependency:NAME or a concurrency key; none: show all."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="At most so many of its documents at once.", min=1)
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="At most so many of them started per second.")
    ] = None,
    lift: Annotated[bool, typer.Option("--none", help="No limit any more.")] = False,
    new: NewOption = False,
    reason: ReasonOption = "",
    who: WhoOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Bound the documents of an organisation, dependency or key; show limits."""
    from perdure.cli.trail import show_limits
    from perdure.errors import InputInvalid

    changes = lift or concurrency is not None or rate is not None
    if (changes and key is None) or (lift and (concurrency is not None or rate is not None)):
        raise InputInvalid("a limit takes a KEY and --concurrency, --rate or both; or --none")

    async def run(app: AsyncPerdure) -> Any:
        if changes and key is not None:
            await app.limit(key, concurrency=concurrency, rate_per_s=rate, reason=reason, who=who, new=new)
        found = await app.limits(key)
        if not found and key is not None:
            await app.known_limit_key(key)
        return found

    show_limits(_act(store, run), json)


def acts(
    who: Annotated[str | None, typer.Option(help="Only what this one did.")] = None,
    verb: Annotated[str | None, typer.Option(help="Only such acts: requeue, cancel, pause, hold …")] = None,
    target: Annotated[
        str | None, typer.Option(help="Only on this document, queue, dependency, key or organisation.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Not before: -2h, 06:30 (UTC), or 2027-01-31T06:30+01:00."),
    ] = None,
    after: Annotated[int | None, typer.Option(metavar="ACT", help="Go on after this one.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=10_000)] = 50,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show what was done by whom, when, to what and why; the newest first."""
    from perdure.cli.trail import show_acts

    begin = moment(since, datetime.now(UTC), forward=False) if since is not None else None
    found = _act(
        store,
        lambda app: app.acts(who=who, verb=verb, target=target, since=begin, after=after, limit=limit),
    )
    show_acts(found, limit, json)


COMMANDS = (requeue, cancel, priority, pause, resume, hold, release, limit, acts)

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(text: str, now: datetime, forward: bool = True) -> datetime:
    """A time as people type it: from now (`+2h`, `-30m`), of the day in UTC (the next or the last), or in full."""
    from perdure.errors import InputInvalid

    word = text.strip()
    try:
        if word[:1] in "+-" and word[-1:] in _UNITS:
            return now + timedelta(**{_UNITS[word[-1]]: float(word[:-1])})
        if len(word) <= 5 and ":" in word:
            clock = datetime.strptime(word, "%H:%M")
            found = now.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
            if forward and found < now:
                return found + timedelta(days=1)
            return found - timedelta(days=1) if not forward and found > now else found
        full = datetime.fromisoformat(word)
        return full if full.tzinfo is not None else full.replace(tzinfo=UTC)
    except (ValueError, OverflowError, IndexError):
        message = f"{text!r} is not a time: write +2h, -30m, 06:30 (UTC) or 2027-01-31T06:30+01:00"
        raise InputInvalid(message) from None


def _act(
    address: str | None, act: Callable[[AsyncPerdure], Awaitable[Any]], given: AsyncPerdure | None = None
) -> Any:
    from perdure.cli.opened import opened

    return opened(address, act, given)


def _changed(name: str, state: str, words: str, as_json: bool) -> None:
    """Print what it is now, as the HTTP API answers it or in words."""
    say(jsonlib.dumps({"name": name, "state": state}) if as_json else words)


def acted(
    address: str | None, document: str, act: Callable[[AsyncPerdure, str], Awaitable[str]],
    given: AsyncPerdure | None = None,
) -> tuple[str, str]:  # fmt: skip
    """Do something to a document whose id may be abbreviated: its whole id, and the answer."""

    async def run(app: AsyncPerdure) -> tuple[str, str]:
        from perdure.operate.whole_ids import whole

        found = await whole(app.store, document, None)
        id_ = document if found is None else found[1]
        return id_, await act(app, id_)

    found: tuple[str, str] = _act(address, run, given)
    return found


def answered(document: str, answer: str, as_json: bool = False, more: str = "") -> None:
    """Print it; one that refuses is a failure."""
    if as_json:
        print(jsonlib.dumps({"id": document, "answer": answer}), flush=True)
    if answer.startswith("refused"):
        code = "document_unknown" if "no such document" in answer else "move_forbidden"
        say(f"perdure: {answer} [{code}]", file=sys.stderr)
        raise typer.Exit(1)
    if not as_json:
        say(f"{answer}{more}")


def _to_dependency(
    address: str | None, act: Callable[[AsyncPerdure], Awaitable[None]], name: str, done: str
) -> str:
    """Do something to a dependency; what to tell."""

    async def run(app: AsyncPerdure) -> int:
        await act(app)
        return next((d.held for d in await app.dependencies() if d.name == name), 0)

    held = _act(address, run)
    wait = f"; {held:,} document{'s wait' if held != 1 else ' waits'} for it" if held else ""
    return f"{name} is {done}{wait}"
