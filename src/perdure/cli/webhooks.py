"""`perdure webhook`: who is told of what happens."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import JsonOption, ReasonOption, StoreOption, WhoOption
from perdure.cli.saying import say

if TYPE_CHECKING:
    from perdure.service import AsyncPerdure

commands = typer.Typer(help="Webhooks: who is told of what happens to documents.", no_args_is_help=True)
OrgOption = Annotated[str, typer.Option(help="The organisation that is meant.")]


@commands.command("add")
def add(
    url: Annotated[str, typer.Argument(help="Where to send events, signed, as JSON.")],
    event: Annotated[
        list[str] | None,
        typer.Option(
            help="Only these (may be repeated); by default done, dead, held, degraded and repaired."
        ),
    ] = None,
    org: OrgOption = "default",
    reason: ReasonOption = "",
    who: WhoOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Tell a URL of what happens from now on; prints the secret that its signatures are checked with."""
    from dataclasses import asdict

    from perdure.cli.opened import opened

    async def act(app: AsyncPerdure) -> None:
        made = await app.add_webhook(url, events=event or (), org=org, who=who, reason=reason)
        if json:
            print(jsonlib.dumps(asdict(made)))
            return
        say(made.secret)
        say(f"perdure: webhook {made.id} of {org} is told of {', '.join(made.events)}", file=sys.stderr)

    opened(store, act, create=True)


@commands.command("list")
def list_(org: OrgOption = "default", store: StoreOption = None, json: JsonOption = False) -> None:
    """An organisation's webhooks, and how many deliveries wait, were sent or given up."""
    from perdure.cli.opened import opened

    async def act(app: AsyncPerdure) -> None:
        found, counts = await app.webhooks(org), await app.store.delivery_counts(org)
        for one in found:
            n = {state: counts.get(one.id, {}).get(state, 0) for state in ("waiting", "sent", "dead")}
            if json:
                print(jsonlib.dumps({"id": one.id, "url": one.url, "events": one.events, **n}))
            else:
                say(f"{one.id}  {one.url}  {n['waiting']} waiting, {n['sent']} sent, {n['dead']} dead")
        if not found and not await _hinted(app, org) and not json:
            hint = f"`perdure webhook add URL{'' if org == 'default' else f' --org {org}'}` makes one"
            say(f"perdure: organisation {org} has no webhooks; {hint}", file=sys.stderr)
        elif found and not json:
            say(f"perdure: webhooks of organisation {org}", file=sys.stderr)

    opened(store, act)


@commands.command("remove")
def remove(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The webhook's id.")],
    org: OrgOption = "default",
    reason: ReasonOption = "",
    who: WhoOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Tell a webhook nothing more."""
    from perdure.cli.opened import opened

    async def act(app: AsyncPerdure) -> None:
        whole = await app.remove_webhook(id_, org=org, who=who, reason=reason)
        say(jsonlib.dumps({"id": whole, "answer": "removed"}) if json else f"removed {whole}")

    opened(store, act)


@commands.command("deliveries")
def deliveries(
    state: Annotated[str | None, typer.Option(help="Only those that are waiting, sent or dead.")] = None,
    webhook: Annotated[str | None, typer.Option(help="Only those to this one.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000)] = 50,
    org: OrgOption = "default",
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """What was sent, waits, or was given up and why."""
    from dataclasses import asdict

    from perdure.cli.opened import opened
    from perdure.cli.words import clock

    async def act(app: AsyncPerdure) -> None:
        found = await app.deliveries(org=org, webhook=webhook, state=state, limit=limit)
        if not found:
            await _hinted(app, org)
        for one in found:
            if json:
                print(jsonlib.dumps(asdict(one)))
                continue
            when = f"next {clock(one.due_ms)}" if one.ended_ms is None else clock(one.ended_ms)
            why = f"  {one.error}" if one.error and one.state != "sent" else ""
            tries = f"{one.tries} {'try' if one.tries == 1 else 'tries'}"
            say(f"{one.id}  {one.state}  {one.name}  {one.document_id}  {tries}, {when}{why}")

    opened(store, act)


@commands.command("retry")
def retry(
    id_: Annotated[
        str | None, typer.Argument(metavar="ID", help="One delivery; otherwise all dead ones.")
    ] = None,
    org: OrgOption = "default",
    reason: ReasonOption = "",
    who: WhoOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Send again what was given up."""
    from perdure.cli.opened import opened
    from perdure.errors import InputInvalid

    async def act(app: AsyncPerdure) -> None:
        number = await app.retry_deliveries(id_, org=org, who=who, reason=reason)
        if not number:
            await _hinted(app, org)
        if not number and id_ is not None:
            message = (
                f"there is no dead delivery {id_} here; `perdure webhook deliveries --state dead` lists them"
            )
            raise InputInvalid(message, code="delivery_unknown")
        words = f"{number:,} {'delivery is' if number == 1 else 'deliveries are'} sent again"
        say(jsonlib.dumps({"deliveries": number}) if json else words)

    opened(store, act)


async def _hinted(app: AsyncPerdure, org: str) -> bool:
    """Say which organisations have webhooks if this one has none; whether there was something to say."""
    having = {one.org for one in await app.webhooks()}
    if not having or org in having:
        return False
    others = " or --org ".join(sorted(having)[:3])
    say(f"perdure: organisation {org} has no webhooks; others have: --org {others}", file=sys.stderr)
    return True
