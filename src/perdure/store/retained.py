"""Documents that have ended, for whoever keeps to a limit on them (`operate/retention.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.store.base import Driver, Query, Row, Steps

DEAD_QUEUES = "SELECT DISTINCT queue FROM dead WHERE job = '' ORDER BY queue"
#: The last one that may stay, the newest first.
DEAD_KEPT = (
    "SELECT died_ms FROM dead WHERE queue = $1 AND job = '' ORDER BY died_ms DESC, org DESC, document_id DESC "
    "LIMIT 1 OFFSET $2"
)
DEAD_OLDEST = (
    "SELECT died_ms FROM dead WHERE queue = $1 AND job = '' ORDER BY died_ms, org, document_id "
    "LIMIT 1 OFFSET $2"
)
ENDED = (
    "SELECT org, id, state, coalesce(finished_ms, 0), generation FROM document WHERE (org, id) > ($1, $2) "
    "ORDER BY org, id LIMIT $3"
)


class Ended:
    """Reads of the store."""

    driver: Driver
    _read: Callable[..., Any]
    _rows: Callable[..., Any]

    async def lead_retention(self) -> bool:
        """Become, or stay, the one who deletes what is beyond its limit."""
        return await self.driver.lock("retention", 0)

    async def dead_queues(self) -> list[str]:
        """The queues that dead documents are of."""
        return [row[0] for row in await self._rows(DEAD_QUEUES)]

    async def dead_beyond(
        self, queue: str, count: int | None, before_ms: int | None, limit: int
    ) -> int | None:
        """Before when a dead document of this queue died that is beyond the number or the time, for about the `limit`
        oldest of them; None: there is none. Of those that died in the same moment all stay or all go."""

        def steps() -> Steps[int | None]:
            oldest = yield Query(DEAD_OLDEST, (queue, 0))
            if not oldest:
                return None
            bounds = [] if before_ms is None else [before_ms]
            if count == 0:
                newest = yield Query(DEAD_KEPT, (queue, 0))
                bounds.append(newest[0][0] + 1)
            elif count is not None:
                kept: list[Row] = yield Query(DEAD_KEPT, (queue, count - 1))
                bounds += [row[0] for row in kept]
            beyond = max(bounds, default=0)
            if oldest[0][0] >= beyond:
                return None
            part = yield Query(DEAD_OLDEST, (queue, limit))
            bound: int = max(min([beyond, *(row[0] for row in part)]), oldest[0][0] + 1)
            return bound

        found: int | None = await self._read(steps)
        return found

    async def ended(self, after: tuple[str, str], limit: int) -> list[tuple[str, str, str, int, int]]:
        """The next documents after (organisation, id), whatever they are: with their state, when they ended and their
        generation."""
        found: list[tuple[str, str, str, int, int]] = await self._rows(ENDED, *after, limit)
        return found
