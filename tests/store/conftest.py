"""Tests of the store are coroutines: each runs in a loop of its own, its `world` opened before and closed after."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.store.making import World


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test; None leaves any other to pytest."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    given: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}

    async def run() -> None:
        async with AsyncExitStack() as stack:
            for value in given.values():
                if isinstance(value, AbstractAsyncContextManager):
                    await stack.enter_async_context(value)
            await test(**given)

    asyncio.run(run())
    return True


@pytest.fixture
def world(store_url: str) -> World:
    """A fresh store and a clock that only the test turns; on SQLite and on PostgreSQL."""
    return World(store_url)


@pytest.fixture
def postgres_world(postgres_url: str) -> World:
    """As `world`, for what only PostgreSQL can do."""
    return World(postgres_url)


@pytest.fixture
def sqlite_world(tmp_path: Path) -> World:
    """As `world`, for what only SQLite can do."""
    return World(f"sqlite:///{tmp_path}/perdure.db")
