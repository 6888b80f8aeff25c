"""Dead documents and follow-up jobs, chosen by what they are and why they died: listed, counted, grouped.

All of it is read from the table `dead`, which has a narrow row for each of them in the order of their deaths: neither
history nor content is touched, however many there are. A follow-up job's row names it (`job`); its document has ended
otherwise, or waits for another follow-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from perdure.core.frozen import frozen
from perdure.core.model import Job, job_key
from perdure.store import entering, rows
from perdure.store.base import Query, Steps
from perdure.store.counting import Counting
from perdure.store.dialect import JOB_COLUMNS, Dialect
from perdure.store.reading import Reading
from perdure.store.records import Cause, DeadRecord

#: A place in the list: when it died, its organisation, the document's id, the follow-up's name, its generation.
Place = tuple[int, str, str, str, int]
Key = tuple[str, str]  # organisation and id

_RECORD = (
    "x.document_id, x.org, x.collection, x.pipeline, x.queue, x.lane, x.stage, x.error_type, x.error_code, "
    "x.status_code, x.fingerprint, x.attempts, x.generation, x.died_ms, d.name, d.size, "
    "coalesce(x.message, d.error_message), x.job"
)
_NEWEST = "ORDER BY {t}died_ms DESC, {t}org DESC, {t}document_id DESC, {t}job DESC, {t}generation DESC"
_REVIVE = (
    "UPDATE job SET state = 'waiting', run_at_ms = $1, attempts = 0, postpones = 0, postponed_ms = 0, releases = 0, "
    "crashes = 0, holds = 0, flickers = 0, suspect = FALSE, aside_ms = NULL, requeues = 0, requeued_ms = NULL, "
    "finished_ms = NULL WHERE org = $2 AND document_id = $3 AND key = $4 AND state = 'dead' AND EXISTS (SELECT 1 "
    "FROM dead x WHERE x.org = $2 AND x.document_id = $3 AND x.job = $5 AND x.generation = $6) RETURNING queue, lane"
)
_TRACEBACK = (
    "SELECT traceback FROM attempt WHERE org = $1 AND document_id = $2 AND job_key = $3 AND generation = $4 "
    "ORDER BY claim DESC LIMIT 1"
)
_DEAD_FLOW = "SELECT queue, pipeline, lane FROM job WHERE org = $1 AND document_id = $2 AND key = $3 AND state = 'dead'"
_REVIVED = (
    "DELETE FROM dead WHERE org = $1 AND document_id = $2 AND job = $3 AND generation = $4 RETURNING job"
)


@frozen
class Where:
    """Which of them; all that is given must hold."""

    org: str | None = None
    collection: str | None = None
    pipeline: str | None = None
    queue: str | None = None
    stage: str | None = None
    error_type: str | None = None
    code: str | None = None
    group: str | None = None  # a fingerprint
    names: tuple[
        str, ...
    ] = ()  # one of these is its stage, its collection, its pipeline or its name as a follow-up
    job: str | None = None  # the name of a follow-up job; "": documents
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

    for name in ("org", "collection", "pipeline", "queue", "stage", "error_type", "job"):
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
        add("(died_ms, org, document_id, job, generation) < ({}, {}, {}, {}, {})", *after)
    return " AND ".join(parts) or "TRUE", params


_NAMED = ("stage", "collection", "pipeline", "job")


class DeadLetters(Reading):
    """What changes documents are requeues (`apply`), and `archive`; follow-up jobs are revived here."""

    _count: Callable[..., Any]

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
        found = await self.dead_of(org, document_id)
        return found[0] if found and not found[0].job else None

    async def dead_of(self, org: str, document_id: str) -> list[DeadRecord]:
        """What is dead of a document: itself first, then its follow-up jobs."""
        found = await self._rows(
            f"SELECT {_RECORD} FROM dead x JOIN document d ON d.org = x.org AND d.id = x.document_id "
            "WHERE x.org = $1 AND x.document_id = $2 ORDER BY x.job, x.generation",
            org,
            document_id,
        )
        return [DeadRecord(*row) for row in found]

    async def traceback(self, one: DeadRecord) -> str | None:
        """The traceback of the attempt that it died of, if an exception ended it."""
        found = await self._rows(_TRACEBACK, one.org, one.id, _key(one), one.generation)
        return found[0][0] if found else None

    async def names(self, wanted: Sequence[str], org: str | None = None) -> set[str]:
        """What documents and jobs (of one organisation, if it is given) are called by: collections and pipelines, and
        if none of the `wanted` names is one, also stages and follow-up jobs of dead ones, and stages of jobs."""
        whose, mine = ("TRUE", ()) if org is None else ("org = $1", (org,))
        places = f"SELECT place FROM counter WHERE subject = 'document' AND {whose}"
        if org is None:
            places += " UNION SELECT pipeline FROM flow"
        found = {row[0] for row in await self._rows(places, *mine)}
        if found.isdisjoint(wanted):
            dead = await self._rows(f"SELECT DISTINCT stage, pipeline, job FROM dead WHERE {whose}", *mine)
            found.update(*(filter(None, names) for names in dead))
        if found.isdisjoint(wanted):
            one = f"${len(mine) + 1}"
            job = f"SELECT stage, pipeline FROM job WHERE {whose} AND (stage = {one} OR pipeline = {one}) LIMIT 1"
            for name in wanted:
                found.update(*await self._rows(job, *mine, name))
        return found

    async def dead_jobs(self) -> dict[str, int]:
        """How many follow-up jobs are dead, by name."""
        return dict(
            await self._rows("SELECT job, count(*) FROM dead WHERE job <> '' GROUP BY job ORDER BY job")
        )

    async def revive(self, one: DeadRecord, by: str, reason: str) -> str:
        """Let a dead follow-up job run again with fresh attempts: `requeued` or `refused: why`."""
        clock_ms = self.clock.now_ms()
        answer: str = await self._count(
            lambda counting: _revive(self.sql, clock_ms, one, by, reason, counting)
        )
        return answer

    async def dead_count(self, where: Where) -> int:
        """How many there are."""
        chosen, params = condition(where)
        return int((await self._rows(f"SELECT count(*) FROM dead WHERE {chosen}", *params))[0][0])

    async def dead_causes(self, where: Where) -> list[Cause]:
        """How many died of what; see `operate.groups`."""
        chosen, params = condition(where)
        found = await self._rows(
            "SELECT fingerprint, collection, job, count(*), min(died_ms), max(died_ms) FROM dead "
            f"WHERE {chosen} GROUP BY fingerprint, collection, job",
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


def _key(one: DeadRecord) -> str:
    """Of the job that died."""
    name = one.job if one.generation == 1 or not one.job else f"{one.job}-g{one.generation}"
    return job_key(one.id, name or None)


def _revive(
    sql: Dialect, clock_ms: int | None, one: DeadRecord, by: str, reason: str, counting: Counting
) -> Steps[str]:
    """It waits, and the next promotion gives it its turn."""
    now_ms = (yield Query(sql.NOW, (clock_ms,)))[0][0]
    which = (one.org, one.id, _key(one))
    yield from entering.declare_flows(sql, (yield Query(_DEAD_FLOW, which)))
    found = yield Query(_REVIVE, (now_ms, *which, one.job, one.generation))
    yield Query(_REVIVED, (one.org, one.id, one.job, one.generation))
    if not found:
        return f"refused: the job {one.job} is not dead any more"
    queue, lane = found[0]
    counting.job(which[2], queue, lane, "waiting")
    yield Query(
        sql.ACT_ADD, (now_ms, by, "requeue-job", one.org, one.id, f"{one.job}: {reason}".removesuffix(": "))
    )
    return "requeued"
