"""`perdure search`: passages, where they stand, and the words that were found."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from perdure.service import AsyncPerdure


def find(store: str | None, query: str, **options: Any) -> list[dict[str, Any]]:
    """The best passages first."""

    async def run() -> list[dict[str, Any]]:
        app = AsyncPerdure(store)
        await app.store.open(create=False)
        try:
            return [asdict(hit) for hit in await app.search(query, **options)]
        finally:
            await app.store.close()

    return asyncio.run(run())


def show_hits(hits: list[dict[str, Any]]) -> None:
    """Print them for people."""
    out = Console(highlight=False, markup=False, emoji=False)
    if not hits:
        out.print("Nothing found.")
    for number, hit in enumerate(hits, 1):
        where = (
            f", page {hit['page']}"
            if hit["page"] is not None
            else f", {hit['anchor']}"
            if hit["anchor"]
            else ""
        )
        out.print(Text(f"{number}. {hit['name'] or hit['document_id']}{where}", style="bold"))
        out.print(Text(hit["snippet"].strip()))
        out.print(Text(f"   {hit['document_id']}", style="dim"))
