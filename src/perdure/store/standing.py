"""Where a document stands, with its stages: asked for again and again, so read at once and no wider than is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.core.frozen import frozen
from perdure.store import rows
from perdure.store.base import Query, Steps
from perdure.store.records import Status

#: First two rows of no stage: when it was claimed last, and how many items of the present stage are saved.
STAGES = (
    "SELECT '' AS stage, max(started_ms) AS saved_ms, 0 AS duration_ms, -2 AS generation, false AS degraded "
    "FROM attempt WHERE org = $1 AND document_id = $2 "
    "UNION ALL SELECT '', count(*), 0, -1, false FROM item "
    "WHERE org = $1 AND document_id = $2 AND pipeline = $3 AND stage = $4 AND generation = $5 "
    "UNION ALL SELECT stage, saved_ms, duration_ms, generation, degraded FROM saved "
    "WHERE org = $1 AND document_id = $2 AND pipeline = $3 ORDER BY generation, saved_ms"
)


@frozen
class StageStanding:
    """A stage that is saved, without what it made."""

    stage: str
    saved_ms: int
    duration_ms: int
    generation: int
    degraded: bool


@frozen
class Standing:
    """A document's status, its stages that are saved, items of the present one, and when it was claimed last."""

    status: Status
    stages: list[StageStanding]
    items: int
    last_attempt_ms: int | None


class Standings:
    """The store's verb about it."""

    sql: Any
    _read: Callable[[Callable[[], Steps[Any]]], Any]

    async def standing(self, org: str, document_id: str) -> Standing | None:
        """Where the document stands; None where there is none."""

        def steps() -> Steps[Standing | None]:
            found = yield Query(self.sql.STATUS, (org, document_id))
            if not found:
                return None
            status = rows.status(found[0])
            asked = (org, document_id, status.pipeline, status.stage, status.generation)
            last, items, *saved = yield Query(STAGES, asked)
            return Standing(status, [StageStanding(*row) for row in saved], items[1], last[1])

        found: Standing | None = await self._read(steps)
        return found
