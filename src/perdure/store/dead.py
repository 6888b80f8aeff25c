"""Dead documents, chosen by what they are and why they died: listed, counted, grouped.

All of it is read from the table `dead`, which has a narrow row for each of them in the order of their deaths: neither
history nor content is touched, however many there are.
"""

from __future__ import annotations

from typing import Any

from perdure.core.frozen import frozen
from perdure.core.model import Job
from perdure.store import rows
from perdure.store.base import Query, Steps
from perdure.store.dialect import JOB_COLUMNS
from perdure.store.reading import Reading
from perdure.store.records import Cause, DeadRecord

#: A document's place in the list: when it died, its organisation, its id.
Place = tuple[int, str, str]
Key = tuple[str, str]  # organisation and id

_RECORD = (
    "x.document_id, x.org, x.collection, x.pipeline, x.queue, x.lane, x.stage, x.error_type, x.error_code, "
    "x.status_code, x.fingerprint, x.attempts, x.generation, x.died_ms, d.name, d.size, d.error_message"
)
_NEWEST = "ORDER BY {t}died_ms DESC, {t}org DESC, {t}document_id DESC"


@frozen
class Where:
    """Which dead documents; all that is given must hold."""

    org: str | None = None
    collection: str | None = None
    pipeline: str | None = None
    queue: str | None = None
    stage: str | None = None
    error_type: str | None = None
    code: str | None = None
    group: str | None = None  # a fingerprint
    names: tuple[str, ...] = ()  # one of these is its stage, its collection or its pipeline
    since_ms: int | None = None  # it died then or later
    before_ms: int | None = None  # it died earlier


def condition(where: Where, after: Place | None = None) -> tuple[str, list[Any]]:
    """The condition on table `dead` as SQL, with its parameters from $1 on."""
    params: list[Any] = []
    parts: list[str] = []

    def add(text: str, *values: Any) -> None:
        numbers = [f"${len(params) + n}" for n in range(1, len(values) + 1)]
        parts.append(text.format(*numbers))
        params.extend(values)

    for name in ("org", "collection", "pipeline", "queue", "stage", "error_type"):
        if (value := getattr(where, name)) is not None:
            add(f"{name} = {{}}", value)
    if where.code is not None:
        add("error_code = {}", where.code)
    if where.group is not None:
        add("fingerprint = {}", where.group)
    if where.names:
        one = " OR ".join(f"{c} = {{{n}}}" for n in range(len(where.names)) for c in _NAMED)
        add(f"({one})", *where.names)
    if where.since_ms is not None:
        add("died_ms >= {}", where.since_ms)
    if where.before_ms is not None:
        add("died_ms < {}", where.before_ms)
    if after is not None:
        add("(died_ms, org, document_id) < ({}, {}, {})", *after)
    return " AND ".join(parts) or "TRUE", params


_NAMED = ("stage", "collection", "pipeline")


class DeadLetters(Reading):
    """The reading half; what changes them are requeues (`apply`), and `archive`."""

    async def dead(self, where: Where, after: Place | None = None, limit: int = 100) -> list[DeadRecord]:
        """The next dead documents, those that died last first; one that dies meanwhile moves none of them."""
        chosen, params = condition(where, after)
        page = f"SELECT * FROM dead WHERE {chosen} {_NEWEST.format(t='')} LIMIT ${len(params) + 1}"
        found = await self._rows(
            f"SELECT {_RECORD} FROM ({page}) AS x JOIN document d ON d.org = x.org AND d.id = x.document_id "
            f"{_NEWEST.format(t='x.')}",
            *params,
            limit,
        )
        return [DeadRecord(*row) for row in found]

    async def dead_one(self, org: str, document_id: str) -> DeadRecord | None:
        """A dead document; None if it is not dead."""
        found = await self._rows(
            f"SELECT {_RECORD} FROM dead x JOIN document d ON d.org = x.org AND d.id = x.document_id "
            "WHERE x.org = $1 AND x.document_id = $2",
            org,
            document_id,
        )
        return DeadRecord(*found[0]) if found else None

    async def dead_count(self, where: Where) -> int:
        """How many there are."""
        chosen, params = condition(where)
        return int((await self._rows(f"SELECT count(*) FROM dead WHERE {chosen}", *params))[0][0])

    async def dead_causes(self, where: Where) -> list[Cause]:
        """How many died of what; see `operate.groups`."""
        chosen, params = condition(where)
        found = await self._rows(
            "SELECT fingerprint, collection, count(*), min(died_ms), max(died_ms) FROM dead "
            f"WHERE {chosen} GROUP BY fingerprint, collection",
            *params,
        )
        return [Cause(*row) for row in found]

    async def dead_groups_like(self, prefix: str, org: str | None = None) -> list[str]:
        """The first two fingerprints that begin so, of an organisation if one is named."""
        found: list[str] = []
        statement = (
            "SELECT min(fingerprint) FROM dead WHERE fingerprint {} $1 AND fingerprint < $2 "
            "AND (CAST($3 AS text) IS NULL OR org = $3)"
        )
        end = f"{prefix}g"  # above every digit
        for sign, start in ((">=", prefix), (">", None)):
            after = start or (found[0] if found else end)
            found += [row[0] for row in await self._rows(statement.format(sign), after, end, org) if row[0]]
        return found

    async def main_jobs(self, which: list[Key]) -> dict[Key, Job]:
        """Their main jobs as they stand, those that are kept."""

        def steps() -> Steps[dict[Key, Job]]:
            chosen = self.sql.WHICH.format(t="j", id="document_id")
            main = f"SELECT {JOB_COLUMNS} FROM job j WHERE {chosen} AND j.key = 'doc-' || j.document_id"
            jobs = map(rows.job, (yield Query(main, rows=which)))
            return {(job.org, job.document_id): job for job in jobs}

        return await self._read(steps)
