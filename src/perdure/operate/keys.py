"""API keys: made for an organisation, shown once, revoked for good."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from perdure.errors import InputInvalid
from perdure.operate.desk import Desk
from perdure.operate.whole_ids import only
from perdure.store.keys import SCOPES, ApiKey
from perdure.store.text import checked, reason_kept

KNOWN_S = 1.0  # that a key which was good is taken for good
KNOWN_MAX = 10_000


class KeyDesk(Desk):
    """The verbs about keys."""

    def __init__(self) -> None:
        super().__init__()
        self._keys_good: dict[
            bytes, tuple[float, ApiKey]
        ] = {}  # by hash: when it was looked up, and whose it is

    async def key(self, presented: str) -> ApiKey | None:
        """Whose key this is; None where it is nobody's. A revocation is known here at once, elsewhere in a second."""
        hash_, now_s = hashlib.sha256(presented.encode("utf-8", "surrogatepass")).digest(), time.monotonic()
        looked_up_s, known = self._keys_good.get(hash_, (-KNOWN_S, None))
        if known is not None and now_s - looked_up_s < KNOWN_S:
            return known
        found = await self.store.key(presented)
        if found is None:
            self._keys_good.pop(hash_, None)
            return None
        if len(self._keys_good) >= KNOWN_MAX:
            self._keys_good.clear()
        self._keys_good[hash_] = (now_s, found)
        return found

    async def keys(self, org: str | None = None) -> list[ApiKey]:
        """All of them, or an organisation's, without their secrets; those that were revoked, too."""
        return await self.store.keys(org)

    async def add_key(
        self, org: str, name: str = "", scopes: Sequence[str] = ("read", "write"), who: str | None = None,
        reason: str = "",
    ) -> tuple[ApiKey, str]:  # fmt: skip
        """A key and its secret, which nobody can read again."""
        whose = checked(org, "the organisation", 100)
        if not whose:
            raise InputInvalid(
                f"say whose key it is: perdure key add ORGANISATION [--scope {'|'.join(SCOPES)}]"
            )
        by, why = self._who(who), reason_kept(reason)
        return await self.store.add_key(whose, checked(name, "the name", 200), scopes, by, why)

    async def revoke_key(self, id_: str, who: str | None = None, reason: str = "") -> str:
        """End the key for good. Returns: its whole id. Raises: InputInvalid if there is none."""
        why = reason_kept(reason)
        good = [one.id for one in await self.store.keys() if one.revoked_ms is None]
        id_ = only(checked(id_, "the id", 100), "keys", good)
        if not await self.store.revoke_key(id_, self._who(who), why):
            raise InputInvalid(
                f"there is no key {id_} that is still good; `perdure key list` shows all", code="key_unknown"
            )
        self._keys_good.clear()
        return id_
