"""A store that is there already, for a command that looks at it or changes something in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from perdure.service import AsyncPerdure

T = TypeVar("T")


def opened(
    address: str | None, act: Callable[[AsyncPerdure], Awaitable[T]], given: AsyncPerdure | None = None,
    create: bool = False,
) -> T:  # fmt: skip
    """What `act` gives with an app over the store, or with one that is given; store_unavailable where there is no
    store, unless it may be made."""

    async def run() -> T:
        app = given or AsyncPerdure(address)
        await app.store.open(create=create)
        try:
            return await act(app)
        finally:
            await app.store.close()

    return asyncio.run(run())
