"""Who this store is, and which place its blobs are in: one row, written with the tables.

The row travels with a dump or a copy of the file. Where the database is does not: that tells a copy from its original.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.core.frozen import frozen
from perdure.store.base import Driver, Query, Row

_NAMED = " UNION ALL ".join(
    f"SELECT * FROM (SELECT blob FROM {table} WHERE blob IS NOT NULL LIMIT 1) AS of_{table}"
    for table in ("document", "saved", "item")
)


@frozen
class Identity:
    """The store's id, and the id of the place of its blobs: empty before the first one is known."""

    id: str
    place: str


class Identities:
    """The store's verbs about it."""

    driver: Driver
    _rows: Callable[..., Any]
    _change: Callable[[Query], Any]

    async def identity(self) -> Identity:
        """Who the store is."""
        rows: list[Row] = await self._rows("SELECT id, place FROM store")
        return Identity(*rows[0])

    async def move_in(self, before: str, place: str) -> bool:
        """Note the place of the blobs; False if it is no longer what it was before."""
        query = Query("UPDATE store SET place = $2 WHERE place = $1 RETURNING id", (before, place))
        return bool(await self._change(query))

    async def some_blobs(self) -> list[str]:
        """A few blobs that rows name; none if no row names any."""
        return [row[0] for row in await self._rows(_NAMED)]

    async def location(self) -> str:
        """Where the database is; another one for a copy of it."""
        return await self.driver.location()
