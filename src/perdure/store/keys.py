"""API keys: each belongs to an organisation and has scopes. Only a hash of the secret is kept.

A key is `pk_ID_SECRET`: the id finds the row, the secret (256 random bits, so that a plain hash is enough) is compared
in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from perdure.core.frozen import frozen
from perdure.errors import InputInvalid
from perdure.store.base import Query, Steps

SCOPES = ("read", "write", "operate")
ORG_ADD = "INSERT INTO org (name) VALUES ($1) ON CONFLICT (name) DO NOTHING"
ADD = "INSERT INTO api_key (id, org, name, secret, scopes, created_ms) VALUES ($1, $2, $3, $4, $5, $6)"
REVOKE = "UPDATE api_key SET revoked_ms = $2 WHERE id = $1 AND revoked_ms IS NULL RETURNING org"
USED = "UPDATE api_key SET used_ms = $2 WHERE id = $1"
_SELECT = "SELECT id, org, name, scopes, created_ms, revoked_ms, used_ms, secret FROM api_key"
ALL = f"{_SELECT} ORDER BY org, created_ms, id"
ONE = f"{_SELECT} WHERE id = $1"
_KEY = re.compile(r"pk_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


@frozen
class ApiKey:
    """A key as it is known here: whose it is and what it may do, never the secret."""

    id: str
    org: str
    name: str
    scopes: tuple[str, ...]
    created_ms: int
    revoked_ms: int | None = None
    used_ms: int | None = None


def new_key() -> tuple[str, str, str]:
    """(id, the key as its owner will present it, what is kept of it)."""
    id_, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return id_, f"pk_{id_}_{secret}", _hashed(secret)


def _hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


#: What is compared where there is no such key, so that it takes as long as where there is one.
_NOBODY = _hashed("")


class Keys:
    """The store's verbs about keys and organisations."""

    sql: Any
    clock: Any
    _rows: Callable[..., Any]
    _write: Callable[[Callable[[], Steps[Any]]], Any]

    async def add_key(
        self, org: str, name: str, scopes: Sequence[str], by: str, reason: str = ""
    ) -> tuple[ApiKey, str]:
        """A new key of the organisation, which is made known by it; the second is shown to its owner, now only."""
        unknown = sorted(set(scopes) - set(SCOPES))
        if unknown or not scopes:
            given = ", ".join(unknown) or "nothing"
            raise InputInvalid(
                f"a key has one or more of the scopes {', '.join(SCOPES)}, not {given}", code="scope_unknown"
            )
        id_, shown, kept = new_key()
        ordered, clock = tuple(s for s in SCOPES if s in scopes), self.clock.now_ms()

        def steps() -> Steps[int]:
            now: int = (yield Query(self.sql.NOW, (clock,)))[0][0]
            yield Query(ORG_ADD, (org,))
            yield Query(ADD, (id_, org, name, kept, ",".join(ordered), now))
            why = ": ".join(filter(None, (f"{name} {','.join(ordered)}".strip(), reason)))
            yield Query(self.sql.ACT_ADD, (now, by, "key-add", org, id_, why))
            return now

        now = await self._write(steps)
        return ApiKey(id_, org, name, ordered, now), shown

    async def revoke_key(self, id_: str, by: str, reason: str = "") -> bool:
        """The key is good for nothing from now on; False where there is none of this id that was."""
        clock = self.clock.now_ms()

        def steps() -> Steps[bool]:
            now = (yield Query(self.sql.NOW, (clock,)))[0][0]
            revoked = yield Query(REVOKE, (id_, now))
            if revoked:
                yield Query(self.sql.ACT_ADD, (now, by, "key-revoke", revoked[0][0], id_, reason))
            return bool(revoked)

        return bool(await self._write(steps))

    async def keys(self, org: str | None = None) -> list[ApiKey]:
        """All keys, revoked ones too, by organisation and time."""
        return [_key(row[:-1]) for row in await self._rows(ALL) if org in (None, row[1])]

    async def key(self, presented: str) -> ApiKey | None:
        """Whose key this is; None where it is nobody's or was revoked."""
        parts = _KEY.fullmatch(presented)
        found = await self._rows(ONE, parts[1]) if parts else []
        kept, secret = (found[0][-1] if found else _NOBODY), (parts[2] if parts else "-")
        if not hmac.compare_digest(kept, _hashed(secret)) or found[0][5] is not None:
            return None
        return _key(found[0][:-1])

    async def key_used(self, id_: str) -> None:
        """Remember that the key is in use; not every time, which is up to the caller."""
        clock = self.clock.now_ms()

        def steps() -> Steps[None]:
            now = (yield Query(self.sql.NOW, (clock,)))[0][0]
            yield Query(USED, (id_, now))

        await self._write(steps)


def _key(row: Sequence[Any]) -> ApiKey:
    id_, org, name, scopes, created_ms, revoked_ms, used_ms = row
    return ApiKey(id_, org, name, tuple(scopes.split(",")), created_ms, revoked_ms, used_ms)
