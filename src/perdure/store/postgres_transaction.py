"""Every transaction on a connection to PostgreSQL that is used again begins here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def transaction(connection: Any, **options: Any) -> AsyncIterator[None]:
    """A transaction that is over when the block ends, however it ends.

    A caller that is cancelled while BEGIN is under way leaves a transaction open. The next one on the connection would
    be a part of it, answered and never committed: so the connection is cut, by the outermost of those within others.
    """
    within = connection.is_in_transaction()
    try:
        async with connection.transaction(**options):
            yield
    except BaseException as error:
        cancelled = isinstance(error, asyncio.CancelledError)
        if not within and not connection.is_closed() and (cancelled or connection.is_in_transaction()):
            connection.terminate()
        raise
