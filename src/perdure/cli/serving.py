"""`perdure serve` and `perdure key`: the HTTP door and who may use it."""

from __future__ import annotations

import json as jsonlib
import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.options import BUILTIN, JsonOption, ReasonOption, StoreOption, WhoOption
from perdure.cli.saying import say

if TYPE_CHECKING:
    from perdure.service import AsyncPerdure

keys = typer.Typer(help="API keys: who may use the HTTP API, as whom and for what.", no_args_is_help=True)


def serve(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="Where the app is, for example books:app.")
    ] = BUILTIN,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.", min=0, max=65_535)] = 3001,
    workers: Annotated[int, typer.Option(help="Workers beside the server.", min=0, max=64)] = 1,
    no_worker: Annotated[
        bool, typer.Option("--no-worker", help="Only the server; workers run elsewhere.")
    ] = False,
    open_: Annotated[
        bool, typer.Option("--open", help="No key is needed; for trials, on loopback only.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Run the HTTP API with a worker beside it. SIGTERM stops both gently."""
    import asyncio

    from perdure.engine.tuning import compute_in_one_thread, switch_threads_soon

    compute_in_one_thread(os.environ)  # before numpy is loaded
    switch_threads_soon()
    from perdure.api.serve import Serving, check
    from perdure.api.serve import serve as run
    from perdure.cli.target import load_app
    from perdure.cli.words import shown
    from perdure.engine.title import set_title

    set_title(f"perdure serve {target}")
    serving = Serving(target, store, host, port, 0 if no_worker else workers, open_)
    check(serving)
    service = load_app(target).service
    if store is not None:
        service.use(store)

    def ready(bound: int) -> None:
        at = f"[{host}]" if ":" in host else host
        new = ", a new store," if service.store.created else ""
        say(
            f"perdure: serving {shown(service.url)}{new} on http://{at}:{bound}, docs at /docs",
            file=sys.stderr,
        )

    raise typer.Exit(asyncio.run(run(service, serving, ready)))


@keys.command("add")
def key_add(
    org: Annotated[str, typer.Argument(help="The organisation that it belongs to.")],
    name: Annotated[str, typer.Option(help="What it is for.")] = "",
    scope: Annotated[
        list[str] | None,
        typer.Option(help="read, write or operate (may be repeated); by default read and write."),
    ] = None,
    reason: ReasonOption = "",
    who: WhoOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Make a key and print it: now and never again."""
    from dataclasses import asdict

    from perdure.cli.opened import opened

    async def act(app: AsyncPerdure) -> None:
        key, shown = await app.add_key(org, name, scope or ["read", "write"], who, reason)
        if json:
            print(jsonlib.dumps({**asdict(key), "key": shown}))
            return
        say(shown)
        say(
            f"perdure: key {key.id} of {org} ({', '.join(key.scopes)}); it is not shown again",
            file=sys.stderr,
        )

    opened(store, act, create=True)


@keys.command("list")
def key_list(store: StoreOption = None, json: JsonOption = False) -> None:
    """All keys, without their secrets."""
    from dataclasses import asdict

    from perdure.cli.opened import opened
    from perdure.cli.words import clock

    async def act(app: AsyncPerdure) -> None:
        found = await app.store.keys()
        if json:
            print(jsonlib.dumps([asdict(key) for key in found]))
            return
        for key in found:
            used = f"last used {clock(key.used_ms)}" if key.used_ms else "never used"
            state = f"revoked {clock(key.revoked_ms)}" if key.revoked_ms else used
            say(f"{key.id}  {key.org}  {','.join(key.scopes)}  {state}  {key.name}".rstrip())
        if not found:
            say("perdure: there is none; `perdure key add ORGANISATION` makes one", file=sys.stderr)

    opened(store, act)


@keys.command("revoke")
def key_revoke(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The key's id.")],
    reason: ReasonOption = "",
    who: WhoOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """A key is good for nothing from now on."""
    from perdure.cli.opened import opened

    async def act(app: AsyncPerdure) -> None:
        whole = await app.revoke_key(id_, who, reason)
        say(jsonlib.dumps({"id": whole, "answer": "revoked"}) if json else f"revoked {whole}")

    opened(store, act)
