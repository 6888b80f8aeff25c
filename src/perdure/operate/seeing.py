"""What operators look at: why a document is where it is, what happened to it, and the whole store at a glance."""

from __future__ import annotations

from perdure.operate.desk import Desk
from perdure.operate.situation import situation
from perdure.operate.status import Facts, overview
from perdure.operate.timeline import Happening, story, tell
from perdure.operate.why import Why, explain


class Seeing(Desk):
    """See `app.Perdure` for what each verb promises."""

    async def overview(self) -> Facts:
        return await overview(self.store)

    async def why(self, document_id: str, org: str | None = None) -> Why:
        return explain(await situation(self.store, await self.status(document_id, org)))

    async def timeline(self, document_id: str, org: str | None = None) -> list[Happening]:
        status = await self.status(document_id, org)
        document = await self.store.document(status.org, status.id)
        assert document is not None, "documents whose status is known are there"
        return tell(await story(self.store, await situation(self.store, status), document))
