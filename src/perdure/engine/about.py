"""What a worker says of itself in the store, because others cannot see it: its slots, and the sandbox of its cells."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress

from perdure.engine.shares import Shares
from perdure.errors import PerdureError
from perdure.store.sql_store import SqlStore

AGAIN_S = 60.0


async def keep_told(
    store: SqlStore,
    worker: int,
    shares: Sequence[Shares],
    sandbox: Callable[[], str | None],
    entering: asyncio.Task[None] | None,
) -> None:
    """Write it down, again when the sandbox is known, and now and then: a worker may be forgotten and come back."""
    slots = {"slots": sum(one.slots for one in shares), "large_slots": sum(one.extra for one in shares)}
    while True:
        with suppress(PerdureError):
            await store.tell_about(worker, json.dumps({**slots, "sandbox": sandbox()}))
        if entering is not None and not entering.done():
            await asyncio.wait({entering}, timeout=AGAIN_S)
        else:
            await asyncio.sleep(AGAIN_S)
