"""Dead documents deleted for good, with everything that is theirs; exported before, unless nobody wants them back."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

from perdure.core.frozen import frozen
from perdure.operate.choosing import Choice, count, documents_of, pages
from perdure.operate.export import PAGE, Target, Writer, export, line
from perdure.store.blobs import Blobs
from perdure.store.dead import Key
from perdure.store.sql_store import SqlStore

BATCH = 50  # that go in one transaction


@frozen
class Purged:
    """How far it is: of `found` documents so many are in the file, and so many are gone."""

    found: int = 0
    exported: int = 0
    purged: int = 0
    refused: int = 0
    answers: tuple[tuple[str, str], ...] = ()  # since the last time


@frozen
class Exported:
    """How many of `found` documents are in the file; those that failed are there without their content."""

    found: int = 0
    exported: int = 0
    failed: int = 0
    answers: tuple[tuple[str, str], ...] = ()


async def exporting(
    store: SqlStore, blobs: Blobs, choice: Choice, target: Target, seen: dict[Key, int] | None = None
) -> AsyncGenerator[Exported, None]:
    """Write those that are meant to a file; `seen` is told which, each with its generation."""
    choice = await documents_of(store, choice)
    told = Exported(await count(store, choice) + len(choice.refused), failed=len(choice.refused))
    yield replace(told, answers=choice.refused)
    with Writer(target) as writer:
        async for records in pages(store, choice, PAGE):
            page = await export(writer, store, blobs, [(one.org, one.id) for one in records])
            if seen is not None:
                seen |= page.exported
            failed = tuple((id_, f"failed: {why}") for (_, id_), why in page.failed.items())
            told = replace(
                told, exported=told.exported + len(page.exported), failed=told.failed + len(failed), answers=failed
            )  # fmt: skip
            yield told


async def streaming(
    store: SqlStore, blobs: Blobs, choice: Choice, begun: Callable[[], None]
) -> AsyncGenerator[bytes, None]:
    """The lines of those that are meant, in pieces and on no disk; `begun` is called for each."""
    choice = await documents_of(store, choice)
    async for records in pages(store, choice, PAGE):
        for one in await store.archived([(one.org, one.id) for one in records]):
            begun()
            async with aclosing(line(one, blobs)) as pieces:
                async for piece in pieces:
                    yield piece


async def purging(
    store: SqlStore, blobs: Blobs, choice: Choice, target: str | Path | None, by: str, reason: str,
    dry_run: bool = False,
) -> AsyncGenerator[Purged, None]:  # fmt: skip
    """Delete those that are meant. With a target all of them are exported before the first is deleted, and what could
    not be exported whole stays."""
    choice = await documents_of(store, choice)
    told = Purged(await count(store, choice) + len(choice.refused), refused=len(choice.refused))
    told = replace(told, answers=choice.refused)
    yield told
    if dry_run:
        return
    seen: dict[Key, int] = {}
    if target is not None:
        failed = 0
        async with aclosing(exporting(store, blobs, replace(choice, refused=()), target, seen)) as doing:
            async for out in doing:
                failed += len(out.answers)
                answers = tuple((id_, f"refused: it was not exported, {why}") for id_, why in out.answers)
                refused = len(choice.refused) + failed
                told = replace(told, exported=out.exported, refused=refused, answers=answers)
                yield told
    else:
        async for records in pages(store, choice, PAGE):
            seen |= {(one.org, one.id): one.generation for one in records}
    counts = Counter(refused=told.refused)
    keys = list(seen)
    try:
        for n in range(0, len(keys), BATCH):
            done = await store.purge(keys[n : n + BATCH], generations=seen, act=(by, reason))
            counts.update("purged" if answer == "purged" else "refused" for answer in done.values())
            answers = tuple((id_, answer) for (_, id_), answer in done.items())
            told = replace(told, purged=counts["purged"], refused=counts["refused"], answers=answers)
            yield told
    finally:
        if counts["purged"]:
            where = f"exported to {target}" if target is not None else "not exported"
            what = f"dead: {choice.words}: {counts['purged']} purged, {where}"
            await store.act(by, "purge", choice.where.org, what, reason)
