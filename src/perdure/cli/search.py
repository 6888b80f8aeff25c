"""`perdure search`: passages, where they stand, and the words that were found."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from perdure.cli.drawing import console
from perdure.cli.opened import opened
from perdure.cli.saying import say, visible
from perdure.core.model import ORG_DEFAULT
from perdure.core.words import without_signs
from perdure.operate.words import count
from perdure.service import AsyncPerdure

CODE_LINES = 12


def find(store: str | None, query: str, **options: Any) -> list[dict[str, Any]]:
    """The best passages first."""

    async def run(app: AsyncPerdure) -> list[dict[str, Any]]:
        hits = [asdict(hit) for hit in await app.search(query, **options)]
        if not hits and (left := (await app.store.tally()).documents.get("open", 0)):
            say(f"perdure: {count(left, 'document')} not done yet; perdure status", file=sys.stderr)
        if not hits:
            await _hint(app, options.get("org") or ORG_DEFAULT)
        return hits

    return opened(store, run)


async def _hint(app: AsyncPerdure, org: str) -> None:
    """Name other organisations if this one has no documents at all."""
    if await app.documents(org=org, limit=1):
        return
    if others := sorted({one.org for one in await app.documents(limit=100)}):
        say(
            f"perdure: organisation {org} has no documents; others have: --org {' or --org '.join(others[:3])}",
            file=sys.stderr,
        )


def _passage(hit: dict[str, Any]) -> RenderableType:
    """The snippet; a passage that is code, all of it, is shown as code."""
    body = without_signs(hit["text"]).strip()
    lines = [line for line in body.split("\n") if not line.startswith("#")]
    code = "\n".join(lines).strip()
    if code.startswith("```") and code.endswith("```") and code.count("```") == 2:
        inside = code.split("\n")[1:CODE_LINES]
        return Text(
            visible("\n".join(f"    {line}" for line in inside if line != "```"), lines=True), style="cyan"
        )
    return Text(" ".join(hit["snippet"].split()))


def show_hits(hits: list[dict[str, Any]]) -> None:
    """Print them for people."""
    out = console()
    if not hits:
        out.print("Nothing found. No passage fits.")
    for number, hit in enumerate(hits, 1):
        where = (
            f", page {hit['page']}"
            if hit["page"] is not None
            else f", {hit['anchor'].replace('=', ' ')}"
            if hit["anchor"]
            else ""
        )
        title = Text(visible(f"{number}. {hit['name'] or hit['document_id']}{where}"), style="bold")
        out.print(title.append(f"  score {hit['score']:.4f}", style="not bold dim"))
        if hit["heading"]:
            out.print(Text(visible(hit["heading"]), style="italic"))
        out.print(_passage(hit))
        out.print(Text(f"   {hit['document_id']}", style="dim"))
