"""The feed: what happened to documents, in the order of commits, for streams and webhooks. Written in the transaction
of what it tells of, read on from any place, forgotten by age.

    document.done  document.dead  document.cancelled   it has ended
    document.held                                      a dependency went away while it was at work
    document.degraded  document.repaired               a fallback stood in; that has been made good
    document.requeued                                  a new generation has begun

A place in it is `change-number`: on PostgreSQL the number of the transaction, because numbers are handed out before
they are committed, and only what is older than all that is still open is shown; on SQLite there is one writer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from perdure.core.frozen import frozen
from perdure.core.outcome import Dead, Done, Hold
from perdure.errors import InputInvalid
from perdure.store.base import Row, Steps
from perdure.store.operations import Settle
from perdure.store.text import cleaned

NAMES = tuple(
    f"document.{word}" for word in ("done", "dead", "cancelled", "held", "degraded", "repaired", "requeued")
)
NEW_FEED = {"org": "text", "at_ms": "bigint", "name": "text", "document_id": "text", "data": "text"}
START = "0-0"
#: Of the first ones: no index on the time is kept up for this.
FORGET = (
    "DELETE FROM feed WHERE number IN (SELECT f.number FROM (SELECT number, at_ms FROM feed ORDER BY number LIMIT $2) "
    "AS f WHERE f.at_ms < $1) RETURNING number"
)
_encode = json.JSONEncoder(ensure_ascii=False).encode  # made once: every end is told
_PLACE = re.compile(r"(\d{1,18})-(\d{1,18})")


@frozen
class Happened:
    """One thing that happened to a document; `place` is where to read on from."""

    place: str
    org: str
    at_ms: int
    name: str
    document_id: str
    data: dict[str, Any]


def entry(org: str, at_ms: int, name: str, document_id: str, **data: Any) -> Row:
    """A row of the feed."""
    return (org, at_ms, f"document.{name}", document_id, _encode(data))


def ended(settles: Sequence[Settle], now_ms: int) -> list[Row]:
    """What the ends of claims are to the feed: those of main jobs that end the document or hold it."""
    told: list[Row] = []
    for op in settles:
        job, outcome = op.job, op.outcome
        if "/" in job.key:
            continue
        common = {"generation": job.generation, "pipeline": job.pipeline, "stage": op.stage}
        match outcome:
            case Done():
                told.append(entry(job.org, now_ms, "done", job.document_id, **common))
            case Dead(failure=failure):
                error = {"code": cleaned(failure.code), "message": cleaned(failure.message)}
                about = {**common, "stage": failure.stage, "error": error}
                told.append(entry(job.org, now_ms, "dead", job.document_id, **about))
            case Hold(why=why, aside=False):
                told.append(entry(job.org, now_ms, "held", job.document_id, **common, why=cleaned(why)))
    return told


def place(text: str) -> tuple[int, int]:
    """A place that somebody read up to; InputInvalid."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise InputInvalid(
            f"{text!r} is no place in the feed; use the id of an event as it was sent", code="place_invalid"
        )
    return int(found[1]), int(found[2])


class Feed:
    """The store's verbs about the feed."""

    sql: Any
    _rows: Callable[..., Any]
    _write: Callable[[Callable[[], Steps[Any]]], Any]
    _forget: Callable[[str, int, int], Any]
    clock: Any

    async def feed(self, org: str, after: str = START, limit: int = 100) -> list[Happened]:
        """What happened in the organisation after a place, oldest first."""
        found = await self._rows(self.sql.FEED, org, *place(after), limit)
        return [
            Happened(f"{change}-{number}", org, at_ms, name, document_id, json.loads(data))
            for change, number, org, at_ms, name, document_id, data in found
        ]

    async def feed_end(self) -> str:
        """The place from which on only what has not happened yet is read."""
        change, number = (await self._rows(self.sql.FEED_END))[0]
        return f"{change}-{number}"

    async def forget_feed(self, age_ms: int, limit: int) -> int:
        """Delete what is older, so many at a time; how many that were."""
        forgotten: int = await self._forget(FORGET, age_ms, limit)
        return forgotten
