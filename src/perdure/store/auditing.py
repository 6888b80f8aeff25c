"""The reads of an audit: whether all that was accepted is there, and whether what is there belongs together.

Every statement looks at a bounded number of rows, a page at a time in the order of their key; only counting anew reads
whole tables, at one moment and beside whoever writes. Nothing is changed but what an audit remembers of itself, and the
counters where that is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from perdure.core.frozen import frozen
from perdure.store.base import Driver, Query, Row, Steps
from perdure.store.counting import Key, compared, differing, recount
from perdure.store.reading import Reading

PAGE = 5_000
#: Rows that belong to a document; what is indexed stays, empty, after a purge, and so does news that is not told yet.
OWNED = ("job", "saved", "item", "emitted", "attempt", "outbox", "chunk", "connection", "dead", "indexed")
_REAL = {"indexed": "expected > 0 AND ", "outbox": "token IS NOT NULL AND "}
#: How long after its lease a job that nobody took back is odd.
NEGLECTED_MS = 60_000
START = ("", "")

BALANCE = (
    "SELECT coalesce((SELECT sum(n) FROM counter WHERE subject = 'accepted'), 0) + "
    "coalesce((SELECT value FROM tally WHERE name = 'accepted'), 0), (SELECT count(*) FROM document), "
    "coalesce((SELECT value FROM tally WHERE name = 'purged'), 0)"
)
_PAGE = (
    "SELECT DISTINCT p.org, p.document_id, EXISTS (SELECT 1 FROM document d WHERE d.org = p.org "
    "AND d.id = p.document_id) FROM (SELECT org, document_id FROM {table} WHERE {real}(org, document_id) > ($1, $2) "
    f"ORDER BY org, document_id LIMIT {PAGE}) AS p ORDER BY p.org, p.document_id"
)
DOCUMENTS = (
    "SELECT p.org, p.id, p.state, j.finished_ms IS NULL AND j.id IS NOT NULL, x.org IS NOT NULL FROM "
    f"(SELECT org, id, state FROM document WHERE (org, id) > ($1, $2) ORDER BY org, id LIMIT {PAGE}) AS p "
    "LEFT JOIN job j ON j.org = p.org AND j.document_id = p.id AND j.key = 'doc-' || p.id "
    "LEFT JOIN dead x ON x.org = p.org AND x.document_id = p.id AND x.job = '' ORDER BY p.org, p.id"
)
LOST_JOBS = (
    "SELECT j.document_id FROM job j WHERE j.state = 'running' AND j.worker > 0 AND j.lease_until_ms < $1 "
    "AND NOT EXISTS (SELECT 1 FROM worker w WHERE w.id = j.worker) LIMIT 1000"
)
#: Blobs that rows of a table name, in their order.
BLOBS = f"SELECT DISTINCT blob FROM {{table}} WHERE blob > $1 ORDER BY blob LIMIT {PAGE}"
NAMING = ("document", "saved", "item")
REMEMBER = (
    "INSERT INTO tally (name, value) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
)


@frozen
class Balance:
    """What was accepted, and what of it is there or was purged on purpose."""

    accepted: int
    documents: int
    purged: int

    @property
    def difference(self) -> int:
        """More than 0: so many are lost. Less: so many are there that nobody accepted."""
        return self.accepted - self.documents - self.purged


@frozen
class Reckoned:
    """The balance, documents by state, and where the counters are wrong (what they say, what is there)."""

    balance: Balance
    states: dict[str, int]
    miscounted: dict[Key, tuple[int, int]]


@frozen
class Audited:
    """The last look: at the balance alone (each minute), and at everything."""

    difference: int | None = None  # None: nobody has looked yet
    looked_ms: int | None = None
    problems: int | None = None  # of the last whole audit
    audited_ms: int | None = None


def _balance(found: list[Row]) -> Balance:
    accepted, documents, purged = found[0]
    return Balance(int(accepted), documents, int(purged))


class Auditing(Reading):
    """See the module."""

    driver: Driver
    _write: Callable[[Callable[[], Steps[Any]]], Any]

    async def balance(self) -> Balance:
        """At one moment, with the documents themselves counted."""
        return _balance(await self._rows(BALANCE))

    async def look(self) -> Balance:
        """The balance, remembered."""
        found = await self.balance()
        await self._look(found)
        return found

    async def audited(self) -> Audited:
        """What the last looks found."""
        statement = "SELECT name, value FROM tally WHERE name LIKE 'audit%'"
        known: dict[str, int] = dict(await self._rows(statement))
        names = ("audit_difference", "audit_looked_ms", "audit_problems", "audit_ms")
        return Audited(*(known.get(name) for name in names))

    async def remember_audit(self, problems: int) -> None:
        await self._remember(audit_problems=problems, audit_ms=await self.now_ms())

    async def owned(self, table: str, after: tuple[str, str]) -> list[Row]:
        """The next (organisation, document) that rows of the table belong to, and whether it is there."""
        return await self._rows(_PAGE.format(table=table, real=_REAL.get(table, "")), *after)

    async def audited_documents(self, after: tuple[str, str]) -> list[Row]:
        """The next documents: organisation, id, state, whether the main job is live, whether it is listed as dead."""
        return await self._rows(DOCUMENTS, *after)

    async def lost_jobs(self) -> list[str]:
        """Documents of jobs that run in a worker that nobody knows, long after their leases."""
        before_ms = await self.now_ms() - NEGLECTED_MS
        return [row[0] for row in await self._rows(LOST_JOBS, before_ms)]

    async def blobs_named(self, table: str, after: str) -> list[str]:
        return [row[0] for row in await self._rows(BLOBS.format(table=table), after)]

    async def reckoned(self) -> Reckoned:
        """Everything counted at one moment, from the rows themselves; the balance is remembered."""

        def steps() -> Steps[Reckoned]:
            pairs = yield from compared(self.sql)
            balance = _balance((yield Query(BALANCE)))
            states: Counter[str] = Counter()
            for (subject, *_, state), (_, there) in pairs.items():
                if subject == "document":
                    states[state] += there
            return Reckoned(balance, dict(states), differing(pairs))

        found: Reckoned = await self.driver.snapshot(steps)
        await self._look(found.balance)
        return found

    async def recount(self, by: str = "", reason: str = "") -> None:
        """Count anew what is there; whoever changes something waits meanwhile."""
        clock = self.clock.now_ms()

        def steps() -> Steps[None]:
            yield from recount(self.sql)
            now = (yield Query(self.sql.NOW, (clock,)))[0][0]
            yield Query(self.sql.ACT_ADD, (now, by, "recount", None, "counters", reason))

        await self._write(steps)

    async def _look(self, found: Balance) -> None:
        await self._remember(audit_difference=found.difference, audit_looked_ms=await self.now_ms())

    async def _remember(self, **values: int) -> None:
        def steps() -> Steps[None]:
            for name, value in sorted(values.items()):
                yield Query(REMEMBER, (name, value))

        await self._write(steps)
