"""Verbs of the blocking library about keys, webhooks, content and events; `app.Perdure` has them beside its own."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from perdure.core.model import ORG_DEFAULT
from perdure.service import AsyncPerdure
from perdure.store.feed import START, Happened
from perdure.store.keys import ApiKey
from perdure.store.webhooks import Delivery, Webhook

T = TypeVar("T")


class Administration:
    """Each verb waits for that of `AsyncPerdure`."""

    service: AsyncPerdure

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        raise NotImplementedError

    # --- keys ------------------------------------------------------------------------------------

    def add_key(
        self, org: str, name: str = "", scopes: Sequence[str] = ("read", "write"), who: str | None = None,
        reason: str = "",
    ) -> tuple[ApiKey, str]:  # fmt: skip
        """Make an API key of the organisation; the second is its secret, which nobody can read again."""
        return self._call(self.service.add_key(org, name, scopes, who, reason))

    def keys(self, org: str | None = None) -> list[ApiKey]:
        """All API keys, or an organisation's, without their secrets; those that were revoked, too."""
        return self._call(self.service.keys(org))

    def revoke_key(self, id_: str, who: str | None = None, reason: str = "") -> str:
        """End a key for good, which may be abbreviated to 6 characters. Returns: its whole id. Raises: InputInvalid if
        there is none."""
        return self._call(self.service.revoke_key(id_, who, reason))

    # --- webhooks --------------------------------------------------------------------------------

    def add_webhook(
        self, url: str, *, events: Sequence[str] = (), org: str = ORG_DEFAULT, who: str | None = None,
        once: str | None = None, reason: str = "",
    ) -> Webhook:  # fmt: skip
        """Tell this URL of what happens from now on; its `secret` is for checking signatures."""
        asked = self.service.add_webhook(url, events=events, org=org, who=who, once=once, reason=reason)
        return self._call(asked)

    def webhooks(self, org: str | None = None) -> list[Webhook]:
        """All webhooks, or an organisation's."""
        return self._call(self.service.webhooks(org))

    def remove_webhook(
        self, id_: str, *, org: str = ORG_DEFAULT, who: str | None = None, reason: str = ""
    ) -> str:
        """Tell it nothing more, not even what waits; its id may be abbreviated to 6 characters. Returns: its whole id.
        Raises: InputInvalid if there is none."""
        return self._call(self.service.remove_webhook(id_, org=org, who=who, reason=reason))

    def deliveries(
        self, *, org: str = ORG_DEFAULT, webhook: str | None = None, state: str | None = None,
        after: str | None = None, limit: int = 100,
    ) -> list[Delivery]:  # fmt: skip
        """What was sent, waits to be sent, or was given up."""
        asked = self.service.deliveries(org=org, webhook=webhook, state=state, after=after, limit=limit)
        return self._call(asked)

    def retry_deliveries(
        self, id_: str | None = None, *, org: str = ORG_DEFAULT, who: str | None = None, reason: str = ""
    ) -> int:
        """Send what was given up again, all or one; how many."""
        return self._call(self.service.retry_deliveries(id_, org=org, who=who, reason=reason))

    # --- documents -------------------------------------------------------------------------------

    def content(self, document_id: str, org: str | None = None) -> bytes:
        """What came in, byte for byte."""
        return self._call(self.service.content(document_id, org))

    def happened(self, *, org: str = ORG_DEFAULT, after: str = START, limit: int = 100) -> list[Happened]:
        """What happened to documents of the organisation after a place in the feed, oldest first."""
        return self._call(self.service.happened(org=org, after=after, limit=limit))
