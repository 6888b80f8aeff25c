"""Secrets of webhooks: with a key they are not in the store, and what was made before still signs."""

from __future__ import annotations

import asyncio
import functools
import logging
import sqlite3
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.core.derived import keys_of, new_secret, secret_of
from perdure.errors import SettingInvalid
from perdure.operate.status import overview
from perdure.service import AsyncPerdure
from perdure.settings import Settings
from perdure.watch.signing import verify
from perdure.watch.webhooks import Dispatcher
from tests.watch.test_webhooks import Receiver, notes, until

KEY, NEXT = "0123456789abcdef" * 2, "fedcba9876543210" * 2


def looped(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


def app(directory: Path, key: str | None) -> AsyncPerdure:
    settings = Settings(allow_loopback=True, secret_key=key)
    return AsyncPerdure(f"sqlite:///{directory}/perdure.db", pipelines=[notes], settings=settings)


def rows(directory: Path) -> str:
    """Everything that is in the store, as text."""
    with closing(sqlite3.connect(directory / "perdure.db")) as connection:
        return "\n".join(connection.iterdump())


async def signed_by(service: AsyncPerdure, url: str, receiver: Receiver, **how: str) -> str:
    """Add a webhook and a document; the secret, which must have signed what was sent."""
    before = len(receiver.got)
    made = await service.add_webhook(url, **how)
    await service.add(text=f"good {before}", pipeline=notes)
    await service.run_until_idle()
    await sent(service, receiver, before + 1)
    headers, body = receiver.got[-1]
    assert verify(made.secret, headers["perdure-signature"], body)
    return made.secret


async def sent(service: AsyncPerdure, receiver: Receiver, number: int) -> None:
    task = asyncio.create_task(
        Dispatcher(service.store, True, poll_s=0.02, secret_key=service.settings.secret_key).run()
    )
    try:
        await until(lambda: len(receiver.got) >= number)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@looped
async def test_with_a_key_the_secret_is_nowhere_in_the_store(tmp_path: Path) -> None:
    service = app(tmp_path, KEY)
    await service.start()
    async with Receiver() as receiver:
        secret = await signed_by(service, receiver.url, receiver, once="again")
        repeated = await service.add_webhook(receiver.url, once="again")
    assert (await overview(service.store))["problems"] == []
    _, shown = await service.add_key("acme")
    await service.close()
    assert repeated.secret == secret
    assert secret.startswith("whsec_")
    assert len(secret) == len(new_secret(None))
    for hidden in (secret.removeprefix("whsec_"), KEY, shown.split("_", 2)[2]):
        assert hidden not in rows(tmp_path)
    assert secret not in repr(repeated)


@looped
async def test_a_secret_that_was_made_without_a_key_still_signs(tmp_path: Path) -> None:
    async with Receiver() as receiver:
        service = app(tmp_path, None)
        await service.start()
        secret = await signed_by(service, receiver.url, receiver)
        told = (await overview(service.store))["problems"]
        assert [one["severity"] for one in told if "secrets of 1 webhook" in one["text"]] == ["notice"]
        await service.close()
        assert secret in rows(tmp_path)
        later = app(tmp_path, KEY)
        await later.start()
        await later.add(text="good later", pipeline=notes)
        await later.run_until_idle()
        await sent(later, receiver, 2)
        headers, body = receiver.got[-1]
        assert verify(secret, headers["perdure-signature"], body)
        await later.close()


@looped
async def test_without_its_key_deliveries_wait_and_a_rotated_key_still_signs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Receiver() as receiver:
        service = app(tmp_path, KEY)
        await service.start()
        made = await service.add_webhook(receiver.url)
        await service.add(text="good", pipeline=notes)
        await service.run_until_idle()
        lacking = Dispatcher(service.store, True, secret_key=NEXT)
        with caplog.at_level(logging.ERROR):
            await lacking.turn()
            await lacking.turn()
        assert caplog.text.count("deliveries wait") == 1
        (waiting,) = await service.deliveries()
        assert (waiting.state, waiting.tries, receiver.got) == ("waiting", 0, [])
        await service.close()
        rotated = app(tmp_path, f"{NEXT},{KEY}")
        await rotated.start()
        await sent(rotated, receiver, 1)
        headers, body = receiver.got[0]
        assert verify(made.secret, headers["perdure-signature"], body)
        await rotated.close()


def test_secrets_differ_by_key_and_by_webhook() -> None:
    kept, other = new_secret(KEY), new_secret(NEXT)
    made = {secret_of(kept, "a", KEY), secret_of(kept, "b", KEY), secret_of(other, "a", NEXT)}
    assert len(made) == 3
    assert new_secret(None) != new_secret(None)
    with pytest.raises(SettingInvalid) as missing:
        secret_of(kept, "a", None)
    assert missing.value.code == "secret_key_missing"


def test_a_short_key_is_refused_without_being_shown() -> None:
    with pytest.raises(SettingInvalid, match="fewer than 32 characters") as short:
        keys_of(f"{KEY},hunter2")
    assert "hunter2" not in str(short.value)
