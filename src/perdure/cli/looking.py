"""`perdure list` and `perdure show`: which documents there are, and what is kept of one."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.options import DocumentArgument, JsonOption, StoreOption, WordsOption
from perdure.cli.saying import say, say_lines

if TYPE_CHECKING:
    from perdure.service import AsyncPerdure
    from perdure.store.records import Status

SHOWN_MAX = 100_000  # characters of what a stage saved
WIDE = 1_000


def _since(said: str) -> Any:
    return typer.Option(metavar="TIME", help=f"{said} 2030-01-31, or ago: 2h.")


def list_(
    state: Annotated[
        str | None,
        typer.Option("--state", help="Only those in this state: queued, held, dead, failed …"),
    ] = None,
    status: Annotated[str | None, typer.Option("--status", help="The same as --state.")] = None,
    collection: Annotated[str | None, typer.Option(help="Only of this collection.")] = None,
    pipeline: Annotated[str | None, typer.Option(help="Only of this pipeline.")] = None,
    org: Annotated[str | None, typer.Option(help="Only of this organisation.")] = None,
    name: Annotated[str | None, typer.Option(help="Only with this in their name.")] = None,
    created_after: Annotated[str | None, _since("Only those that came in since then.")] = None,
    created_before: Annotated[str | None, _since("Only those that came in before.")] = None,
    finished_after: Annotated[str | None, _since("Only those that ended since then.")] = None,
    finished_before: Annotated[str | None, _since("Only those that ended before.")] = None,
    words: WordsOption = None,
    after: Annotated[
        str | None, typer.Option(metavar="PLACE", help="Continue after this place or id.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most this many.", min=1, max=10_000)] = 50,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """List documents, those that came last first, children among them."""
    from dataclasses import asdict

    from perdure.cli.opened import opened
    from perdure.cli.times import moment

    found = opened(
        store,
        lambda app: app.documents(
            state=state, status=status, org=org, collection=collection, pipeline=pipeline, name=name, words=words,
            after=after,
            created_after=moment(created_after), created_before=moment(created_before),
            finished_after=moment(finished_after), finished_before=moment(finished_before), limit=limit,
        ),
    )  # fmt: skip
    more = found[-1].place if len(found) == limit else None
    if json:
        print(jsonlib.dumps({"documents": [asdict(one) for one in found], "after": more}, indent=2))
    else:
        _show_list(found, more)


def show(
    document: DocumentArgument,
    stage: Annotated[str | None, typer.Option(help="What this stage saved.")] = None,
    chunks: Annotated[bool, typer.Option("--chunks", help="Its chunks, in order.")] = False,
    connections: Annotated[
        bool, typer.Option("--connections", help="Chunks of others that are about the same.")
    ] = False,
    rows: Annotated[
        str | None, typer.Option(metavar="NAME", help="Rows that its stages emitted under a name.")
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
) -> None:
    """Show what is kept of a document: content, stages, rows, chunks, connections; or one of these."""
    from perdure.cli.opened import opened
    from perdure.errors import InputInvalid

    if sum((stage is not None, chunks, connections, rows is not None)) > 1:
        raise InputInvalid("show takes one of --stage, --chunks, --connections and --rows at a time")

    async def run(app: AsyncPerdure) -> Any:
        if stage is not None:
            return await _stage(app, document, stage)
        if chunks:
            return await _chunks(app, document)
        if connections:
            return await _connections(app, document)
        if rows is not None:
            return await _rows(app, document, rows)
        return await _kept(app, document)

    found = opened(store, run)
    if json:
        say_lines(jsonlib.dumps(found, indent=2, ensure_ascii=False))
    elif stage is None and not chunks and not connections and rows is None:
        _show_kept(found)
    else:
        _show(found)


COMMANDS: dict[str, Callable[..., None]] = {"list": list_, "show": show}


# --- reading -------------------------------------------------------------------------------------


async def _kept(app: AsyncPerdure, id_: str) -> dict[str, Any]:
    status = await app.status(id_)
    id_ = status.id
    found = await app.store.document(status.org, id_)
    assert found is not None, "documents whose status is known are there"
    complete = await app.store.completeness(status.org, id_)
    names: tuple[str, ...] = (
        "org",
        "collection",
        "pipeline",
        "name",
        "kind",
        "media_type",
        "size",
        "content_hash",
    )
    return {
        "id": id_,
        "state": status.state,
        "degraded": status.degraded,
        **{name: getattr(found, name) for name in (*names, "parent_id")},
        "meta": jsonlib.loads(found.meta),
        "stages": sorted({save.stage for save in await app.store.saved_of(status.org, id_)}),
        "rows": await app.store.row_names(status.org, id_),
        "chunks": complete.stored,
    }


async def _stage(app: AsyncPerdure, id_: str, stage: str) -> dict[str, Any]:
    """The newest save of the stage, whichever of the document's pipelines it belongs to; as it is stored."""
    from perdure.errors import StageUnknown

    status = await app.status(id_)
    id_ = status.id
    known = await app.store.saved_of(status.org, id_)
    newest = next((save for save in reversed(known) if save.stage == stage), None)
    if newest is None:
        names = ", ".join(sorted({save.stage for save in known})) or "none"
        raise StageUnknown(
            f"stage {stage} of document {id_} is not saved (those that are: {names})", code="not_saved"
        )
    saves = await app.store.saves(status.org, id_, newest.pipeline)
    last = [save for save in saves if save.stage == stage][-1]
    blob = last.blob if last.inline is None else None
    raw = last.inline if blob is None else await app.blobs.get(blob)
    try:
        output = jsonlib.loads(raw or b"null")
    except ValueError:
        output = f"{len(raw or b''):,} bytes that are not JSON"
    return {
        "stage": stage, "pipeline": newest.pipeline, "generation": last.generation, "version": last.version,
        "model": last.model, "saved_ms": last.saved_ms, "size": last.size, "output": output,
    }  # fmt: skip


async def _chunks(app: AsyncPerdure, id_: str) -> list[dict[str, Any]]:
    await app.status(id_)
    return [
        {
            "id": c.id, "position": c.position, "start": c.start, "end": c.end, "anchor": c.anchor, "page": c.page,
            "model": c.model, "text": c.text,
        }
        for c in await app.chunks(id_)
    ]  # fmt: skip


async def _connections(app: AsyncPerdure, id_: str) -> list[dict[str, Any]]:
    from dataclasses import asdict

    await app.status(id_)
    return [asdict(one) for one in await app.connections(id_)]


async def _rows(app: AsyncPerdure, id_: str, name: str) -> list[dict[str, Any]]:
    await app.status(id_)
    return [{"key": key, "data": data} for key, data in await app.rows(id_, name)]


# --- drawing -------------------------------------------------------------------------------------


def _show_list(found: list[Status], more: str | None) -> None:
    from rich.text import Text

    from perdure.cli.drawing import STYLES, console, plain, table
    from perdure.operate.words import line

    out = console()
    if not out.is_terminal:
        out.width = WIDE  # a line for each: what reads a pipe reads lines
    if not found:
        out.print("No document is so.")
        return
    shown = table("document", "state", "stage", "name")
    for one in found:
        style = STYLES.get(one.state, "")
        called = one.name or f"{one.pipeline}, {one.collection}"
        stage = "" if one.state in ("done", "cancelled") else one.stage or ""
        error = f" ({one.error_code})" if one.error_code and one.finished_ms is not None else ""
        shown.add_row(one.id, Text(one.state, style=style), stage, line(called) + error)
    plain(out, shown)
    if more is not None:
        out.print(f"more: --after {more}", style="dim")


def _show_kept(facts: dict[str, Any]) -> None:
    from rich.table import Table

    from perdure.cli.drawing import console, plain
    from perdure.operate.words import size

    shown = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    id_ = facts["id"]
    rows = ", ".join(f"{name} ({n:,})" for name, n in facts["rows"].items())
    for label, value in (
        ("document", id_), ("name", facts["name"]), ("state", facts["state"] + ", degraded" * facts["degraded"]),
        ("content", f"{facts['kind']}, {size(facts['size'])} {facts['media_type']}".rstrip()),
        ("pipeline", f"{facts['pipeline']}, collection {facts['collection']}, organisation {facts['org']}"),
        ("parent", facts["parent_id"]), ("meta", jsonlib.dumps(facts["meta"], ensure_ascii=False)),
        ("stages saved", ", ".join(facts["stages"])), ("rows", rows),
        ("chunks", f"{facts['chunks']:,}" if facts["chunks"] else ""),
    ):  # fmt: skip
        if value and value != "{}":
            shown.add_row(label, value)
    out = console()
    plain(out, shown)
    out.print("more: --stage STAGE, --rows NAME, --chunks, --connections", style="dim")


def _show(found: Any) -> None:
    """As JSON, which is what is kept; on a screen it is cut where it is too long for one."""
    said = jsonlib.dumps(found, indent=2, ensure_ascii=False)
    longest = SHOWN_MAX if sys.stdout.isatty() else len(said)
    say_lines(said[:longest])
    if len(said) > longest:
        say(f"… {len(said) - SHOWN_MAX:,} more characters; --json prints all of it")
