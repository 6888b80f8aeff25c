"""A store that is there already, for a command that looks at it or changes something in it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from perdure.cli.saying import say
from perdure.operate.words import shown
from perdure.service import AsyncPerdure

T = TypeVar("T")


def say_created(app: AsyncPerdure) -> None:
    """Say that there was no store at this address: it may be mistyped."""
    if app.store.created:
        say(f"perdure: created a new store: {shown(app.url)}", file=sys.stderr)


def opened(
    address: str | None, act: Callable[[AsyncPerdure], Awaitable[T]], given: AsyncPerdure | None = None,
    create: bool = False,
) -> T:  # fmt: skip
    """What `act` gives with an app over the store, or with one that is given; store_unavailable where there is no
    store, unless it may be made."""

    async def run() -> T:
        app = given or AsyncPerdure(address)
        await app.store.open(create=create)
        say_created(app)
        try:
            return await act(app)
        finally:
            await app.store.close()

    return asyncio.run(run())
