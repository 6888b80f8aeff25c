"""Events on their way out, written in the transaction of what they tell of and gone when a broker has confirmed them;
and jobs that another service works on. Steps used by `apply`, and the store's verbs for relays and answers.

    hand over   the job runs under a token of its own, in no worker, without a lease; its event is in the outbox
    sent        the event is gone from the outbox and the lease begins: neither a broker that is away nor a backlog of
                events uses up anybody's time
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perdure.core.model import Job
from perdure.store import rows
from perdure.store.base import Query, Row, Steps
from perdure.store.connecting import Connecting
from perdure.store.dialect import Dialect
from perdure.store.locking import by_document
from perdure.store.operations import HandOver, NewEvent
from perdure.store.records import OutboxEvent, OutboxRecord
from perdure.store.text import cleaned

if TYPE_CHECKING:
    from perdure.store.flusher import Flusher


def hand_over(sql: Dialect, ops: Sequence[tuple[int, HandOver]], now_ms: int) -> Steps[set[int]]:
    """Give the jobs that are still ours away, each with its event; the ordinals of these."""
    ordered = sorted(ops, key=lambda numbered: by_document(numbered[1].job))
    fence = [rows.hand_over(n, op) for n, op in ordered]
    accepted = {row[0] for row in (yield Query(sql.HAND_OVER, (now_ms,), fence))}
    given = [op for n, op in ops if n in accepted]
    if lent := [(op.job.org, op.job.id) for op in given if op.job.probe is not None]:
        yield Query(sql.UNLEND, rows=lent)
    if given:
        yield Query(sql.OUTBOX_ADD, rows=[rows.event(op.event, now_ms, op) for op in given])
    return accepted


def add(sql: Dialect, events: Sequence[NewEvent], now_ms: int) -> Steps[None]:
    """Put events that nobody's lease depends on into the outbox."""
    if events:
        yield Query(sql.OUTBOX_ADD, rows=[rows.event(event, now_ms) for event in events])


class Outbox(Connecting):
    """See `perdure.store.base.Store` for what each verb promises."""

    flusher: Flusher

    async def hand_over(self, handing: HandOver) -> bool:
        return bool(await self.flusher.submit(handing))

    async def job_at(self, org: str, document_id: str, key: str) -> Job | None:
        found = await self._rows(self.sql.JOB_AT, org, document_id, key)
        return rows.job(found[0]) if found else None

    async def ended_under(
        self, org: str, document_id: str, key: str, token: int
    ) -> tuple[str, str | None] | None:
        found = await self._rows(self.sql.ENDED_UNDER, org, document_id, key, token)
        return (found[0][0], found[0][1]) if found else None

    async def beat_remote(self, org: str, job_id: int, token: int, lease_ms: int) -> bool:
        now_ms = self.clock.now_ms()
        return bool(await self._one(self.sql.BEAT_REMOTE, (now_ms, org, job_id, token, lease_ms)))

    async def lead_relay(self) -> bool:
        return await self.driver.lock("relay", 0)

    async def leave_relay(self) -> None:
        await self.driver.unlock("relay", 0)

    async def outbox(self, limit: int) -> list[OutboxEvent]:
        return [
            OutboxEvent(*row) for row in await self._rows(self.sql.OUTBOX_DUE, self.clock.now_ms(), limit)
        ]

    async def outbox_late_ms(self) -> int:
        late = (await self._rows(self.sql.OUTBOX_LATE, self.clock.now_ms()))[0][0]
        return max(0, int(late or 0))

    async def outbox_state(self) -> OutboxRecord:
        return OutboxRecord(*(await self._rows(self.sql.OUTBOX_STATE))[0])

    async def outbox_sent(self, events: Sequence[OutboxEvent]) -> None:
        leases = [(e.org, e.job_id, e.token, e.wait_ms) for e in events if e.job_id is not None]

        def steps() -> Steps[None]:
            now_ms = (yield Query(self.sql.NOW, (self.clock.now_ms(),)))[0][0]
            yield Query(self.sql.LEASE_BEGIN, (now_ms,), leases)
            yield Query(self.sql.OUTBOX_SENT, rows=sorted((event.number,) for event in events))

        if events:
            await self._write(steps)

    async def outbox_failed(self, events: Sequence[tuple[OutboxEvent, int, str]]) -> None:
        def steps() -> Steps[None]:
            now_ms = (yield Query(self.sql.NOW, (self.clock.now_ms(),)))[0][0]
            for event, delay_ms, reason in events:
                yield Query(self.sql.OUTBOX_FAILED, (event.number, now_ms + delay_ms, cleaned(reason)))

        if events:
            await self._write(steps)

    async def outbox_away(self, reason: str) -> None:
        await self._one(self.sql.OUTBOX_AWAY, (cleaned(reason),))

    async def _one(self, sql: str, params: Sequence[Any]) -> list[Row]:
        def steps() -> Steps[list[Row]]:
            return (yield Query(sql, params))

        found: list[Row] = await self._write(steps)
        return found
