"""What operators look at: why a document is where it is, what happened to it, and the whole store at a glance."""

from __future__ import annotations

from perdure.core.frozen import frozen
from perdure.errors import DocumentUnknown
from perdure.operate.desk import Desk
from perdure.operate.situation import situation
from perdure.operate.status import Facts, overview, worker_facts
from perdure.operate.timeline import Happening, story, tell
from perdure.operate.why import Why, explain


@frozen
class Readiness:
    """Whether the store has the tables that this program works with, and how many workers are alive."""

    schema_fits: bool
    workers_alive: int


class Seeing(Desk):
    """See `app.Perdure` for what each verb promises."""

    async def overview(self) -> Facts:
        return await overview(self.store)

    async def readiness(self) -> Readiness:
        alive = sum(one["alive"] for one in await worker_facts(self.store))
        return Readiness(await self.store.schema_fits(), alive)

    async def why(self, document_id: str, org: str | None = None) -> Why:
        return explain(await situation(self.store, await self.status(document_id, org)))

    async def timeline(self, document_id: str, org: str | None = None) -> list[Happening]:
        status = await self.status(document_id, org)
        document = await self.store.document(status.org, status.id)
        if document is None:
            raise DocumentUnknown(f"document {document_id} was deleted just now")
        return tell(await story(self.store, await situation(self.store, status), document))
