"""`perdure delete`, `content` and `events`: take a document away, read what came in, see what happens."""

from __future__ import annotations

import json as jsonlib
import sys
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.options import DocumentArgument, JsonOption, ReasonOption, StoreOption, WhoOption
from perdure.cli.saying import say, visible

if TYPE_CHECKING:
    from perdure.service import AsyncPerdure
    from perdure.store.feed import Happened

PAGE = 1_000
LOOK_S = 0.5


def delete(
    document: DocumentArgument,
    cancel: Annotated[bool, typer.Option("--cancel", help="End it first where it is in progress.")] = False,
    reason: ReasonOption = "",
    who: WhoOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a document that has ended, with everything that is its own; its children stay."""
    from perdure.cli.operator import acted, answered

    deleted = acted(store, document, lambda app, id_: app.delete(id_, cancel=cancel, reason=reason, who=who))
    answered(*deleted, json)


def content(
    document: DocumentArgument,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - is standard output.")
    ] = "-",
    store: StoreOption = None,
) -> None:
    """Write what came in as a document, byte for byte."""
    from perdure.cli.opened import opened
    from perdure.errors import InputInvalid
    from perdure.store.private import open_private

    found: bytes = opened(store, lambda app: app.content(document))
    if output != "-":
        try:
            with open(output, "wb", opener=lambda path, flags: open_private(path, flags, 0o600)) as file:
                file.write(found)
        except OSError as error:
            raise InputInvalid(
                f"{output} cannot be written: {error.strerror}", code="file_unwritable"
            ) from None
        say(f"{len(found):,} bytes in {output}")
        return
    if sys.stdout.isatty() and not _is_plain(found):
        told = "a terminal would obey or cannot show what is in the content; write it to a file with --output FILE"
        raise InputInvalid(told, code="file_unwritable")
    sys.stdout.buffer.write(found)
    sys.stdout.buffer.flush()


def _is_plain(found: bytes) -> bool:
    """Whether it is text of which a terminal obeys nothing but ends of lines and tabs."""
    try:
        text = found.decode()
    except UnicodeDecodeError:
        return False
    plain = text.replace("\r\n", "\n")
    return visible(plain, lines=True) == plain


def events(
    org: Annotated[str, typer.Option(help="The organisation that is meant.")] = "default",
    name: Annotated[
        list[str] | None, typer.Option(help="Only these (may be repeated): document.done, document.dead …")
    ] = None,
    document: Annotated[str | None, typer.Option(help="Only those of this document.")] = None,
    after: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Only those after this one, as --json names it.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most the last N.", min=1, max=10_000)] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show what happened to documents, the newest last: done, dead, held, requeued …"""
    from perdure.cli.opened import opened
    from perdure.errors import InputInvalid
    from perdure.store.feed import NAMES, START

    if unknown := sorted(set(name or ()) - set(NAMES)):
        known = ", ".join(NAMES)
        raise InputInvalid(f"there is no event {unknown[0]!r}; there are {known}", code="event_unknown")

    async def run(app: AsyncPerdure) -> None:
        import asyncio

        from perdure.operate.whole_ids import whole

        known = await whole(app.store, document, org) if document is not None else None
        meant = known[1] if known is not None else document  # it may be deleted by now

        def wanted(one: Happened) -> bool:
            return (not name or one.name in name) and meant in (None, one.document_id)

        place, last = after or START, deque[Any](maxlen=limit)
        while page := await app.happened(org=org, after=place, limit=PAGE):
            place = page[-1].place
            last.extend(filter(wanted, page))
        for one in last:
            _show(one, json)
        while follow:
            for one in (page := await app.happened(org=org, after=place, limit=PAGE)):
                place = one.place
                if wanted(one):
                    _show(one, json)
            sys.stdout.flush()
            if not page:
                await asyncio.sleep(LOOK_S)

    with suppress(KeyboardInterrupt):
        opened(store, run)


def _show(one: Happened, as_json: bool) -> None:
    if as_json:
        facts = {"place": one.place, "at_ms": one.at_ms, "name": one.name, "document_id": one.document_id}
        print(jsonlib.dumps({**facts, **one.data}))
        return
    at = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(one.at_ms / 1000))
    more = " ".join(f"{key}={value}" for key, value in one.data.items() if not isinstance(value, dict))
    say(f"{at}  {one.name}  {one.document_id}  {more}".rstrip())


COMMANDS = (delete, content, events)
