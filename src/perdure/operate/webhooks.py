"""Webhooks: who is told of what happens to an organisation's documents."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace

from perdure.calls.addresses import check_url
from perdure.core.derived import new_secret, secret_of
from perdure.core.model import ORG_DEFAULT
from perdure.errors import InputInvalid, Permanent
from perdure.operate.choosing import no_place
from perdure.operate.desk import Desk
from perdure.operate.whole_ids import only
from perdure.store.feed import NAMES
from perdure.store.operations import Once
from perdure.store.text import checked, reason_kept
from perdure.store.webhooks import Delivery, Webhook

#: What one is told of unless it asks for something else.
USUAL = tuple(f"document.{word}" for word in ("done", "dead", "held", "degraded", "repaired"))
STATES = ("waiting", "sent", "dead")
DELIVERY_ID = re.compile(r"[0-9a-f]+-[0-9a-f]+-[0-9a-f]+")


class WebhookDesk(Desk):
    """The verbs about webhooks."""

    async def add_webhook(
        self, url: str, *, events: Sequence[str] = (), org: str = ORG_DEFAULT, who: str | None = None,
        once: str | None = None, reason: str = "",
    ) -> Webhook:  # fmt: skip
        """Tell this URL of what happens from now on; its `secret` is for checking signatures. `once`: a key under which
        it is made only the first time."""
        wanted = tuple(dict.fromkeys(events)) or USUAL
        if unknown := sorted(set(wanted) - set(NAMES)):
            raise InputInvalid(
                f"there is no event {unknown[0]!r}; there are {', '.join(NAMES)}", code="event_unknown"
            )
        try:
            address = check_url(url, allow_loopback=self.settings.allow_loopback)
        except Permanent as refused:
            raise InputInvalid(str(refused), code=refused.code) from None
        whose = checked(org, "the organisation", 100)
        place = await self.store.feed_end()
        new = Webhook(
            secrets.token_hex(8), whose, address, wanted, new_secret(self.settings.secret_key), place, 0
        )
        asked = hashlib.sha256(json.dumps(["webhook", address, wanted]).encode()).hexdigest()
        key = Once(whose, once, asked) if once is not None else None
        made = await self.store.add_webhook(new, self._who(who), key, reason_kept(reason))
        return replace(made, secret=secret_of(made.secret, made.id, self.settings.secret_key))

    async def webhooks(self, org: str | None = None) -> list[Webhook]:
        """All of them, or an organisation's."""
        return await self.store.webhooks(org)

    async def remove_webhook(
        self, id_: str, *, org: str = ORG_DEFAULT, who: str | None = None, reason: str = ""
    ) -> str:
        """Tell it nothing more, not even what waits. Returns: its whole id. Raises: InputInvalid if there is none."""
        by, why = self._who(who), reason_kept(reason)
        ids = [one.id for one in await self.store.webhooks(org)]
        id_ = only(checked(id_, "the id", 100), "webhooks", ids)
        if not await self.store.drop_webhook(org, id_, by, why):
            raise InputInvalid(
                f"there is no webhook {id_} here; `perdure webhook list` shows all", code="webhook_unknown"
            )
        return id_

    async def deliveries(
        self, *, org: str = ORG_DEFAULT, webhook: str | None = None, state: str | None = None, after: str | None = None,
        limit: int = 100,
    ) -> list[Delivery]:  # fmt: skip
        """What was sent, waits to be sent, or was given up."""
        if state is not None and state not in STATES:
            raise InputInvalid(f"a delivery is one of {', '.join(STATES)}, not {state}", code="state_unknown")
        if after is not None and not DELIVERY_ID.fullmatch(after):
            raise no_place()
        return await self.store.deliveries(org, webhook, state, after, limit)

    async def retry_deliveries(
        self, id_: str | None = None, *, org: str = ORG_DEFAULT, who: str | None = None, reason: str = ""
    ) -> int:
        """Send what was given up again, all or one; how many."""
        return await self.store.retry_deliveries(org, id_, self._who(who), reason_kept(reason))
