"""What operators look at: why a document is where it is, what happened to it, and the whole store at a glance."""

from __future__ import annotations

from perdure.core.frozen import frozen
from perdure.core.model import ORG_DEFAULT
from perdure.errors import DocumentUnknown
from perdure.operate.desk import Desk
from perdure.operate.situation import situation
from perdure.operate.status import Facts, overview, worker_facts
from perdure.operate.timeline import Happening, Page, page
from perdure.operate.why import Why, explain
from perdure.store.blobs import CheckedBlobs
from perdure.store.feed import START, Happened
from perdure.store.reading import ATTEMPTS_MAX


@frozen
class Readiness:
    """Whether the store has the tables that this program works with, how many workers are alive and answer, and for
    how many seconds each of the others (by its number) has stood still."""

    schema_fits: bool
    workers_alive: int
    silent_s: dict[int, int]


class Seeing(Desk):
    """See `app.Perdure` for what each verb promises."""

    blobs: CheckedBlobs

    async def overview(self) -> Facts:
        return await overview(self.store)

    async def readiness(self) -> Readiness:
        alive, now_ms = (
            [one for one in await worker_facts(self.store) if one["alive"]],
            await self.store.now_ms(),
        )
        silent = {
            int(one["id"]): (now_ms - one["silent_since_ms"]) // 1000
            for one in alive
            if one["silent_since_ms"] is not None
        }
        return Readiness(await self.store.schema_fits(), len(alive) - len(silent), silent)

    async def why(self, document_id: str, org: str | None = None) -> Why:
        return explain(await situation(self.store, await self.status(document_id, org)))

    async def content(self, document_id: str, org: str | None = None) -> bytes:
        """What came in, byte for byte. Raises: DocumentUnknown."""
        status = await self.status(document_id, org)
        document = await self.store.document(status.org, status.id)
        if document is None:
            raise DocumentUnknown(f"document {document_id} was deleted just now")
        if document.blob is None:
            return document.inline or b""
        return await self.blobs.get(document.blob)

    async def happened(
        self, *, org: str = ORG_DEFAULT, after: str = START, limit: int = 100
    ) -> list[Happened]:
        """What happened to documents of the organisation after a place in the feed, oldest first."""
        return await self.store.feed(org, after, limit)

    async def timeline(self, document_id: str, org: str | None = None) -> list[Happening]:
        pages = [await self.timeline_page(document_id, org)]
        while (after := pages[-1].next) is not None:
            pages.append(await self.timeline_page(document_id, org, after=after))
        told = [one for each in reversed(pages) for one in each.timeline]
        return told if len(pages) == 1 else sorted(told, key=lambda one: one.at_ms)

    async def timeline_page(
        self, document_id: str, org: str | None = None, *, after: str | None = None, limit: int = ATTEMPTS_MAX
    ) -> Page:
        status = await self.status(document_id, org)
        document = await self.store.document(status.org, status.id)
        if document is None:
            raise DocumentUnknown(f"document {status.id} was deleted just now")
        return await page(self.store, status, document, after, limit)
