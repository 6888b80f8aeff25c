"""API keys: made for an organisation, shown once, revoked for good."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import InputInvalid
from perdure.operate.desk import Desk
from perdure.store.keys import SCOPES, ApiKey
from perdure.store.text import checked


class KeyDesk(Desk):
    """The verbs about keys."""

    async def add_key(
        self, org: str, name: str = "", scopes: Sequence[str] = ("read", "write"), who: str | None = None
    ) -> tuple[ApiKey, str]:
        """A key and its secret, which nobody can read again."""
        whose = checked(org, "the organisation", 100)
        if not whose:
            raise InputInvalid(
                f"say whose key it is: perdure key add ORGANISATION [--scope {'|'.join(SCOPES)}]"
            )
        return await self.store.add_key(whose, checked(name, "the name", 200), scopes, self._who(who))

    async def revoke_key(self, id_: str, who: str | None = None) -> None:
        """The key is good for nothing from now on; InputInvalid where there is none."""
        if not await self.store.revoke_key(checked(id_, "the id", 100), self._who(who)):
            raise InputInvalid(
                f"there is no key {id_} that is still good; `perdure key list` shows all", code="key_unknown"
            )
