"""Webhooks: who wants to be told of what happened to an organisation's documents, and every delivery of that.

What they are told comes from the feed; a webhook's `place` is how far it was read. Deliveries are made in the
transaction that moves the place on, so that each event becomes one delivery, whoever dies in between.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any

from perdure.core.derived import DERIVED
from perdure.core.frozen import frozen
from perdure.errors import InputInvalid, host_shown
from perdure.store import reading
from perdure.store.base import Query, Steps
from perdure.store.feed import Happened
from perdure.store.once import keep, known
from perdure.store.operations import Once
from perdure.store.text import cleaned

PER_ORG_MAX = 50
SLICE = 1_000  # deliveries that one transaction changes at most: nobody waits for all of an organisation's
ADD = "INSERT INTO webhook (id, org, url, events, secret, place, created_ms) VALUES ($1, $2, $3, $4, $5, $6, $7)"
_WEBHOOK = "SELECT id, org, url, events, secret, place, created_ms FROM webhook"
ALL = f"{_WEBHOOK} ORDER BY org, created_ms, id"
NUMBER = "SELECT count(*) FROM webhook WHERE org = $1"
DROP = "DELETE FROM webhook WHERE org = $1 AND id = $2 RETURNING url"
DROP_DELIVERIES = "DELETE FROM delivery WHERE webhook = $1"
DROP_SOME = (
    "DELETE FROM delivery WHERE id IN (SELECT d.id FROM delivery d JOIN webhook w ON w.id = d.webhook "
    "WHERE d.webhook = $2 AND w.org = $1 LIMIT $3) RETURNING id"
)
MOVE = "UPDATE webhook SET place = $3 WHERE id = $1 AND place = $2 RETURNING id"
NEW = (
    "INSERT INTO delivery (id, webhook, org, name, document_id, body, state, created_ms, due_ms) "
    "VALUES ($1, $2, $3, $4, $5, $6, 'waiting', $7, $7) ON CONFLICT DO NOTHING"
)
_DELIVERY = (
    "SELECT d.id, d.webhook, d.org, d.name, d.document_id, d.body, d.state, d.tries, d.created_ms, d.due_ms, "
    "d.ended_ms, d.status_code, d.error FROM delivery d"
)
#: Of a document one at a time, in the order in which things happened.
DUE = (
    f"{_DELIVERY} WHERE d.state = 'waiting' AND d.webhook = $1 AND d.due_ms <= $2 AND NOT EXISTS (SELECT 1 "
    "FROM delivery e WHERE e.state = 'waiting' AND e.webhook = d.webhook AND e.document_id = d.document_id "
    "AND e.id < d.id) ORDER BY d.due_ms, d.id LIMIT $3"
)
#: Those that wait for one that is tried again later, so that nobody looks at them before.
DEFER = (
    "UPDATE delivery SET due_ms = $2 WHERE state = 'waiting' AND due_ms < $2 AND id > $1 "
    "AND (webhook, document_id) = (SELECT d.webhook, d.document_id FROM delivery d WHERE d.id = $1)"
)
LIST = (
    f"{_DELIVERY} WHERE d.org = $1 AND (CAST($2 AS text) IS NULL OR d.webhook = $2) "
    "AND (CAST($3 AS text) IS NULL OR d.state = $3) AND (CAST($4 AS text) IS NULL OR d.id < $4) "
    "ORDER BY d.id DESC LIMIT $5"
)
END = (
    "UPDATE delivery SET state = $2, tries = tries + 1, due_ms = $3, ended_ms = $4, status_code = $5, error = $6 "
    "WHERE id = $1 AND state = 'waiting'"
)
#: Its document was purged meanwhile. A purge that has not ended is waited for: it leaves deliveries that wait.
DROP_ORPHAN = (
    "DELETE FROM delivery WHERE id = $1 AND state = 'sent' AND NOT EXISTS (SELECT 1 FROM document d "
    "WHERE d.org = delivery.org AND d.id = delivery.document_id{lock})"
)
_DEAD = "org = $1 AND state = 'dead' AND (CAST($2 AS text) IS NULL OR id = $2)"
DEAD = f"SELECT count(*) FROM delivery WHERE {_DEAD}"
AGAIN = (
    "UPDATE delivery SET state = 'waiting', tries = 0, due_ms = $3, ended_ms = NULL "
    f"WHERE id IN (SELECT id FROM delivery WHERE {_DEAD} ORDER BY id LIMIT $4) RETURNING id"
)
COUNTS = "SELECT webhook, state, count(*) FROM delivery WHERE org = $1 GROUP BY webhook, state"
FORGET = (
    "DELETE FROM delivery WHERE id IN (SELECT id FROM delivery WHERE state = 'sent' AND ended_ms < $1 "
    "ORDER BY ended_ms LIMIT $2) RETURNING id"
)


@frozen
class Webhook:
    """Who wants to be told: `events` names of the feed; `secret`, as `core.derived` keeps it, signs."""

    id: str
    org: str
    url: str
    events: tuple[str, ...]
    secret: str = field(repr=False)
    place: str
    created_ms: int


@frozen
class Delivery:
    """One event on its way to one webhook: `waiting`, `sent` or `dead`. Its id is the same at every try."""

    id: str
    webhook: str
    org: str
    name: str
    document_id: str
    body: str
    state: str
    tries: int
    created_ms: int
    due_ms: int
    ended_ms: int | None
    status_code: int | None
    error: str | None


@frozen
class Ended:
    """What came of one try of a delivery."""

    id: str
    state: str
    delay_ms: int = 0  # until the next try
    status: int | None = None
    error: str | None = None


def body_of(event: Happened, id_: str) -> str:
    """What is sent."""
    about = {
        "id": id_,
        "event": event.name,
        "at_ms": event.at_ms,
        "document_id": event.document_id,
        "data": event.data,
    }
    return json.dumps(about, ensure_ascii=False)


class Webhooks:
    """The store's verbs about webhooks."""

    sql: Any
    clock: Any
    driver: Any
    _rows: Callable[..., Any]
    _write: Callable[[Callable[[], Steps[Any]]], Any]
    _forget: Callable[[str, int, int], Any]

    async def add_webhook(
        self, webhook: Webhook, by: str, once: Once | None = None, reason: str = ""
    ) -> Webhook:
        """Tell it of what happens from its place on. Under a key the one that was made the first time is answered."""
        w, clock = webhook, self.clock.now_ms()

        def steps() -> Steps[tuple[str, str, int]]:
            now: int = (yield Query(self.sql.NOW, (clock,)))[0][0]
            if made := (yield from known(once, now)):
                id_, secret, created_ms = made
                return id_, secret, created_ms
            if (yield Query(NUMBER, (w.org,)))[0][0] >= PER_ORG_MAX:
                said = f"an organisation has at most {PER_ORG_MAX} webhooks; remove one first"
                raise InputInvalid(said, code="webhooks_too_many")
            yield Query(ADD, (w.id, w.org, w.url, ",".join(w.events), w.secret, w.place, now))
            why = ": ".join(filter(None, (host_shown(w.url), reason)))
            yield Query(self.sql.ACT_ADD, (now, by, "webhook-add", w.org, w.id, why))
            if once is not None:
                yield keep(once, (w.id, w.secret, now))
            return w.id, w.secret, now

        id_, secret, created_ms = await self._write(steps)
        return Webhook(id_, w.org, w.url, w.events, secret, w.place, created_ms)

    async def webhooks(self, org: str | None = None) -> list[Webhook]:
        """All of them, or an organisation's."""
        found = [
            Webhook(id_, whose, url, tuple(events.split(",")), secret, place, created_ms)
            for id_, whose, url, events, secret, place, created_ms in await self._rows(ALL)
        ]
        return [one for one in found if org in (None, one.org)]

    async def dead_deliveries(self) -> dict[str, int]:
        """How many deliveries are dead, by organisation."""
        return dict(await self._rows("SELECT org, count(*) FROM delivery WHERE state = 'dead' GROUP BY org"))

    async def clear_secrets(self) -> int:
        """Count the webhooks whose secret stands in the store."""
        return sum(not one.secret.startswith(DERIVED) for one in await self.webhooks())

    async def drop_webhook(self, org: str, id_: str, by: str, reason: str = "") -> bool:
        """Tell it nothing more; False where there is none."""
        clock = self.clock.now_ms()
        while await self._write(reading.one(Query(DROP_SOME, (org, id_, SLICE)))):
            pass

        def steps() -> Steps[bool]:
            now = (yield Query(self.sql.NOW, (clock,)))[0][0]
            gone = yield Query(DROP, (org, id_))
            if gone:
                yield Query(DROP_DELIVERIES, (id_,))
                why = ": ".join(filter(None, (host_shown(gone[0][0]), reason)))
                yield Query(self.sql.ACT_ADD, (now, by, "webhook-drop", org, id_, why))
            return bool(gone)

        return bool(await self._write(steps))

    async def tell_webhook(self, webhook: Webhook, events: Sequence[Happened]) -> None:
        """Make deliveries of those that it wants, and go on behind the last; nothing if somebody else has."""
        clock = self.clock.now_ms()
        rows: list[tuple[str, Happened]] = [
            (f"{webhook.id}-{_sortable(one.place)}", one) for one in events if one.name in webhook.events
        ]

        def steps() -> Steps[None]:
            now = (yield Query(self.sql.NOW, (clock,)))[0][0]
            if not (yield Query(MOVE, (webhook.id, webhook.place, events[-1].place))):
                return
            for id_, one in rows:
                yield Query(
                    NEW, (id_, webhook.id, webhook.org, one.name, one.document_id, body_of(one, id_), now)
                )

        await self._write(steps)

    async def deliveries_due(self, webhook: str, limit: int) -> list[Delivery]:
        """What the webhook is to be told now, the oldest first; of each document only what happened first."""
        now = self.clock.now_ms() or await self.now_ms()
        return [Delivery(*row) for row in await self._rows(DUE, webhook, now, limit)]

    async def deliveries(
        self, org: str, webhook: str | None = None, state: str | None = None, after: str | None = None,
        limit: int = 100,
    ) -> list[Delivery]:  # fmt: skip
        """Deliveries of an organisation, newest first within a webhook."""
        return [Delivery(*row) for row in await self._rows(LIST, org, webhook, state, after, limit)]

    async def end_deliveries(self, ended: Sequence[Ended]) -> None:
        """What came of tries: each was sent, is given up, or is tried again after a delay."""
        clock = self.clock.now_ms()

        def steps() -> Steps[None]:
            now = (yield Query(self.sql.NOW, (clock,)))[0][0]
            for one in sorted(ended, key=lambda one: one.id):
                ended_ms = None if one.state == "waiting" else now
                said = cleaned(one.error) if one.error is not None else None
                yield Query(END, (one.id, one.state, now + one.delay_ms, ended_ms, one.status, said))
                if one.state == "sent":
                    yield Query(DROP_ORPHAN.format(lock=self.sql.KEY_SHARE), (one.id,))
                if one.delay_ms:
                    yield Query(DEFER, (one.id, now + one.delay_ms))

        await self._write(steps)

    async def retry_deliveries(self, org: str, id_: str | None, by: str, reason: str = "") -> int:
        """Send dead ones again, or one of them; how many."""
        clock = self.clock.now_ms()

        def steps(number: int) -> Steps[int]:
            now = (yield Query(self.sql.NOW, (clock,)))[0][0]
            dead = 0 if number else (yield Query(DEAD, (org, id_)))[0][0]
            if dead:  # it is one act, however many transactions it takes
                told = ": ".join(filter(None, (f"{dead} deliveries", reason)))
                yield Query(self.sql.ACT_ADD, (now, by, "webhook-retry", org, id_ or "all", told))
            return len((yield Query(AGAIN, (org, id_, now, SLICE))))

        again = 0
        while found := int(await self._write(partial(steps, again))):
            again += found
        return again

    async def delivery_counts(self, org: str) -> dict[str, dict[str, int]]:
        """How many deliveries of each webhook wait, were sent or are dead."""
        counts: dict[str, dict[str, int]] = {}
        for webhook, state, number in await self._rows(COUNTS, org):
            counts.setdefault(webhook, {})[state] = number
        return counts

    async def forget_deliveries(self, age_ms: int, limit: int) -> int:
        """Delete those that were sent longer ago; dead ones stay until somebody looks."""
        forgotten: int = await self._forget(FORGET, age_ms, limit)
        return forgotten

    async def lead_webhooks(self) -> bool:
        """Become, or stay, the one who sends."""
        return bool(await self.driver.lock("webhooks", 0))

    async def leave_webhooks(self) -> None:
        await self.driver.unlock("webhooks", 0)

    now_ms: Callable[[], Any]


def _sortable(place: str) -> str:
    change, number = place.split("-")
    return f"{int(change):015x}-{int(number):015x}"
