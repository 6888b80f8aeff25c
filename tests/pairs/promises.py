"""What holds after every interleaving, whatever the operations were."""

from __future__ import annotations

from perdure.store.auditing import BALANCE, OWNED
from tests.pairs.kit import Stepped

#: Each looks for what must not be there; its rows say where.
_NEVER = {
    "open without a job that goes on": (
        "SELECT d.id FROM document d WHERE d.state = 'open' AND NOT EXISTS (SELECT 1 FROM job j WHERE j.org = d.org "
        "AND j.document_id = d.id AND j.key = 'doc-' || d.id AND j.finished_ms IS NULL)"
    ),
    "ended with its main job going on": (
        "SELECT d.id FROM document d JOIN job j ON j.org = d.org AND j.document_id = d.id AND j.key = 'doc-' || d.id "
        "WHERE d.state <> 'open' AND j.finished_ms IS NULL"
    ),
    "dead and not listed, or listed and not dead": (
        "SELECT d.id FROM document d LEFT JOIN dead x ON x.org = d.org AND x.document_id = d.id "
        "AND x.job = '' WHERE (d.state = 'dead') <> (x.org IS NOT NULL)"
    ),
    "a follow-up job that is listed and not dead": (
        "SELECT x.document_id FROM dead x WHERE x.job <> '' AND NOT EXISTS (SELECT 1 FROM job j WHERE j.org = x.org "
        "AND j.document_id = x.document_id AND j.state = 'dead' AND j.key = 'doc-' || x.document_id || '/' || x.job || "
        "CASE WHEN x.generation > 1 THEN '-g' || x.generation ELSE '' END)"
    ),
    "a job of another generation than its document": (
        "SELECT d.id FROM document d JOIN job j ON j.org = d.org AND j.document_id = d.id AND j.key = 'doc-' || d.id "
        "WHERE j.generation <> d.generation"
    ),
    "cancelled with a job that goes on": (
        "SELECT d.id FROM document d JOIN job j ON j.org = d.org AND j.document_id = d.id "
        "WHERE d.state = 'cancelled' AND j.finished_ms IS NULL"
    ),
    "told twice that it ended": (
        "SELECT document_id FROM feed WHERE name IN ('document.done', 'document.dead') "
        "GROUP BY document_id, data::json ->> 'generation' HAVING count(*) > 1"
    ),
    "ended more often than it was begun": (
        "SELECT d.id FROM document d WHERE (SELECT count(*) FROM feed f WHERE f.document_id = d.id "
        "AND f.name IN ('document.done', 'document.dead', 'document.cancelled')) > d.generation"
    ),
    "handed over without an event, a lease or a service": (
        "SELECT j.document_id FROM job j WHERE j.worker = 0 AND j.lease_until_ms IS NULL AND NOT EXISTS "
        "(SELECT 1 FROM outbox o WHERE o.org = j.org AND o.job_id = j.id AND o.token = j.token)"
    ),
    # one that waits in a lane that is down takes no room: it is parked before the lane opens
    "more let in than the limit allows": (
        "SELECT s.key FROM slot s JOIN job j ON j.limit_key = s.key AND (j.state = 'running' OR j.state = 'queued' "
        "AND j.lane NOT IN (SELECT name FROM lane WHERE down_ms IS NOT NULL)) "
        "GROUP BY s.key, s.concurrency HAVING count(*) > s.concurrency"
    ),
}
_ORPHANED = (
    "SELECT document_id FROM {table} t WHERE {real} NOT EXISTS "
    "(SELECT 1 FROM document d WHERE d.org = t.org AND d.id = t.document_id)"
)
_REAL = {
    "indexed": "t.expected > 0 AND",
    "outbox": "t.token IS NOT NULL AND",
    "delivery": "t.state = 'sent' AND",
}
_ALL = " UNION ALL ".join(
    [
        *(f"SELECT '{name.replace(chr(39), '')}', x.* FROM ({sql}) x(id)" for name, sql in _NEVER.items()),
        *(
            f"SELECT 'a row of {table} without its document', x.* FROM "
            f"({_ORPHANED.format(table=table, real=_REAL.get(table, ''))}) x(id)"
            for table in (*OWNED, "delivery")
        ),
    ]
)


async def broken(world: Stepped) -> list[str]:
    """The promises that do not hold now."""
    wrong = [f"{name}: {id_}" for name, id_ in await world.look(_ALL)]
    accepted, there, gone = (await world.look(BALANCE))[0]
    if accepted - there - gone:
        wrong.append(f"{accepted} were accepted, {there} are there and {gone} were purged")
    wrong += [
        f"counted {said} and {rows} are there: {' '.join(key)}"
        for key, (said, rows) in (await world.miscounted()).items()
    ]
    return wrong
