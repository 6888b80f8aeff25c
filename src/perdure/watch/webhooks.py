"""Tells webhooks what happened: signed, tried again as calls are, given up visibly. One worker at a time does it.

Every try goes to an address that was checked, as for documents that are fetched: a webhook cannot be used to reach
into the network of the server. A webhook that is slow or away delays no other.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field

import httpcore2

from perdure import __version__
from perdure.calls import addresses
from perdure.calls.classify import classify
from perdure.calls.jitter import FullJitter
from perdure.calls.retry_after import hint_s
from perdure.calls.wire import Resolve, Wire, resolve, tls_context
from perdure.core.derived import secret_of
from perdure.core.frozen import frozen
from perdure.errors import PerdureError, SettingInvalid, StoreError
from perdure.store.sql_store import SqlStore
from perdure.store.webhooks import Delivery, Ended, Webhook
from perdure.watch.signing import HEADER, sign

log = logging.getLogger("perdure.webhooks")
POLL_S, FOLLOW_S = 1.0, 5.0
NEGLECT_S = 60.0  # news that nobody has taken up for so long
BATCH = 100
AT_ONCE, ORG_AT_ONCE = 4, 8  # per webhook, and per organisation
TRIES_MAX = 10
BACKOFF = FullJitter(base_s=10.0, cap_s=3600.0)
TOTAL_S = 15.0
END_S = 2.0  # for what is being sent when it ends
ANSWER_BYTES_MAX = 64 * 1024
#: Besides all from 500 on.
AGAIN = frozenset({408, 425, 429})
WAIT_MS_MAX = 24 * 3_600_000


@frozen
class Tried:
    """What came of one try."""

    ok: bool
    again: bool = False
    status: int | None = None
    error: str | None = None
    wait_s: float | None = None  # that was asked for


@dataclass(slots=True)
class Dispatcher:
    """Sends what is due, until it is cancelled."""

    store: SqlStore
    allow_loopback: bool = False
    resolve: Resolve = resolve
    poll_s: float = POLL_S
    secret_key: str | None = field(default=None, repr=False)
    _sending: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _checked_s: float = field(default_factory=time.monotonic)
    _ending: bool = False
    _unsigned: set[str] = field(default_factory=set)  # webhooks whose key is not set here
    _rooms: defaultdict[str, asyncio.Semaphore] = field(
        default_factory=lambda: defaultdict(lambda: asyncio.Semaphore(ORG_AT_ONCE))
    )  # by organisation
    _ended: list[tuple[Ended, asyncio.Future[None]]] = field(default_factory=list)  # not noted yet
    _noting: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Take the lead when nobody has it; neither the store nor a webhook need be there."""
        try:
            while True:
                led = more = False
                try:
                    if self.store.lost is not None:  # we could not note what was sent
                        return
                    if led := await self.store.lead_webhooks() or await self._neglected():
                        more = await self.turn()
                except StoreError:
                    led = False
                except Exception:
                    log.exception("webhooks could not be told")
                await asyncio.sleep(0.0 if more else self.poll_s if led else FOLLOW_S)
        finally:
            await self._end()
            with suppress(PerdureError, OSError):
                await self.store.leave_webhooks()

    async def _end(self) -> None:
        """Let what was sent be noted before another takes the lead, or it would be sent once more."""
        self._ending = True
        if tasks := [task for task in self._sending.values() if not task.done()]:
            _, left = await asyncio.wait(tasks, timeout=END_S)
            for task in left:
                task.cancel()
        if self._noting is not None:
            await asyncio.wait([self._noting], timeout=END_S)

    async def _neglected(self) -> bool:
        """Whether whoever leads stands still, frozen with the lock in hand; looked at now and then."""
        if time.monotonic() - self._checked_s < NEGLECT_S:
            return False
        self._checked_s, now_ms = time.monotonic(), await self.store.now_ms()
        for webhook in await self.store.webhooks():
            news = await self.store.feed(webhook.org, webhook.place, 1)
            if news and now_ms - news[0].at_ms >= NEGLECT_S * 1000:
                return True
        return False

    async def turn(self) -> bool:
        """Make deliveries of what happened, and begin to send what is due; a webhook at work is left to it. Each
        webhook has one batch, so that nobody waits for the backlog of another; whether there is more."""
        more = False
        for webhook in await self.store.webhooks():
            if events := await self.store.feed(webhook.org, webhook.place, BATCH):
                await self.store.tell_webhook(webhook, events)
                more = more or len(events) == BATCH
            running = self._sending.get(webhook.id)
            if (running is None or running.done()) and self._can_sign(webhook):
                self._sending[webhook.id] = asyncio.create_task(self._send_due(webhook))
        return more

    def _can_sign(self, webhook: Webhook) -> bool:
        """Whether its key is set here; if not, its deliveries wait, and that is logged once."""
        try:
            secret_of(webhook.secret, webhook.id, self.secret_key)
        except SettingInvalid as missing:
            if webhook.id not in self._unsigned:
                log.error("deliveries wait: %s", missing)
            self._unsigned.add(webhook.id)
            return False
        return True

    async def _send_due(self, webhook: Webhook) -> None:
        try:
            while not self._ending and (due := await self.store.deliveries_due(webhook.id, AT_ONCE)):
                await asyncio.gather(*(self._deliver(webhook, one) for one in due))
        except StoreError:
            return  # the next turn tries again
        except Exception:
            log.exception("webhook %s could not be told", webhook.id)

    async def _deliver(self, webhook: Webhook, delivery: Delivery) -> None:
        async with self._rooms[webhook.org]:
            tried = await self._try(webhook, delivery)
        state = (
            "sent" if tried.ok else "waiting" if tried.again and delivery.tries + 1 < TRIES_MAX else "dead"
        )
        wait_s = max(BACKOFF.delay_s(delivery.tries, random.random), tried.wait_s or 0.0)
        delay_ms = min(WAIT_MS_MAX, int(wait_s * 1000)) if state == "waiting" else 0
        if state == "dead":
            log.warning("delivery %s is given up: %s", delivery.id, tried.error)  # URLs may hold secrets
        await self._note(Ended(delivery.id, state, delay_ms, tried.status, tried.error))

    async def _note(self, ended: Ended) -> None:
        """Write it down together with all others that end meanwhile: one transaction at a time."""
        noted = asyncio.get_running_loop().create_future()
        self._ended.append((ended, noted))
        if self._noting is None or self._noting.done():
            self._noting = asyncio.create_task(self._note_all())
        await noted

    async def _note_all(self) -> None:
        while self._ended:
            batch, self._ended = self._ended[:BATCH], self._ended[BATCH:]
            try:
                await self.store.end_deliveries([ended for ended, _ in batch])
            except Exception as error:
                for _, noted in batch:
                    if not noted.done():
                        noted.set_exception(error)
            else:
                for _, noted in batch:
                    if not noted.done():
                        noted.set_result(None)

    async def _try(self, webhook: Webhook, delivery: Delivery) -> Tried:
        try:
            async with asyncio.timeout(TOTAL_S):
                return await self._post(webhook, delivery)
        except PerdureError as error:
            return Tried(False, classify(error).again, error=f"{error.code}: {error}")
        except Exception as error:
            return Tried(False, True, error=f"{type(error).__name__}: {error}")

    async def _post(self, webhook: Webhook, delivery: Delivery) -> Tried:
        url = addresses.parse(webhook.url, allow_loopback=self.allow_loopback)
        named = addresses.literal(url.host) is None
        found = await self.resolve(url.host, url.port) if named else [url.host]
        wire = Wire(addresses.checked(url.host, found, allow_loopback=self.allow_loopback), ANSWER_BYTES_MAX)
        secret = secret_of(webhook.secret, webhook.id, self.secret_key)
        body, scheme, host = delivery.body.encode(), url.scheme.encode(), url.host.encode()
        headers = [
            ("Host", url.authority), ("Content-Type", "application/json"), ("Content-Length", str(len(body))),
            ("User-Agent", f"Perdure/{__version__}"), ("Connection", "close"), ("Perdure-Event", delivery.name),
            ("Perdure-Delivery", delivery.id), (HEADER, sign(secret, body, int(time.time()))),
        ]  # fmt: skip
        connection = httpcore2.AsyncHTTPConnection(
            httpcore2.Origin(scheme, host, url.port), network_backend=wire,
            ssl_context=tls_context() if url.scheme == "https" else None,
        )  # fmt: skip
        target = httpcore2.URL(scheme=scheme, host=host, port=url.port, target=url.target.encode())
        try:
            answer = await connection.handle_async_request(
                httpcore2.Request("POST", target, headers=headers, content=body)
            )
        finally:
            await connection.aclose()
        if 200 <= answer.status < 300:
            return Tried(True, status=answer.status)
        asked = hint_s(answer.headers)
        again = answer.status in AGAIN or answer.status >= 500
        return Tried(False, again, answer.status, f"answered {answer.status}", asked)
