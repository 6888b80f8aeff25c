"""PostgreSQL's statements: arrays for many rows, row locks in id order, SKIP LOCKED where others may be at work."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.words import Term
from perdure.store.base import Query, Row, Steps
from perdure.store.counting import ADDED, NEW_COUNT
from perdure.store.dialect import (
    DOCUMENT_COLUMNS,
    FENCE_SAVE,
    FENCE_SETTLE,
    FINISH,
    FINISH_ATTEMPT,
    FINISH_DOCUMENT,
    FINISH_SET,
    HAND_OVER,
    HAND_OVER_SET,
    HELD_PARKED,
    HELD_READY,
    IN_SERVICE,
    JOB_COLUMNS,
    LEND_SET,
    LOCK_DOCUMENT,
    NEW_ATTEMPT,
    NEW_CALL,
    NEW_CHUNK,
    NEW_CONNECTION,
    NEW_DEAD,
    NEW_DOCUMENT,
    NEW_EMITTED,
    NEW_EVENT,
    NEW_ITEM,
    NEW_JOB,
    NEW_SAVED,
    OLD_DOCUMENT,
    OPEN_DOCUMENT,
    RECALL_SET,
    REQUEUE_JOB,
    SAVE_SET,
    SETTLE_SET,
    STATUS_COLUMNS,
    STATUS_FROM,
    UPSERT_CHUNK,
    UPSERT_CONNECTION,
    UPSERT_EMITTED,
    UPSERT_ITEM,
    UPSERT_SAVED,
    Dialect,
)
from perdure.store.feed import NEW_FEED
from perdure.store.operations import Claim

_OLDEST_OPEN = "CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)"


def _unnest(columns: dict[str, str], scalars: int = 0) -> str:
    arrays = ", ".join(f"${n}::{kind}[]" for n, kind in enumerate(columns.values(), scalars + 1))
    return f"unnest({arrays}) AS r({', '.join(columns)})"


def _insert(table: str, columns: dict[str, str], conflict: str) -> str:
    names = ", ".join(columns)
    return f"INSERT INTO {table} ({names}) SELECT {names} FROM {_unnest(columns)} {conflict}"


def _fence(columns: dict[str, str], put: str, also: str = "") -> str:
    """Change what is still ours, in the order of the rows; answers the ordinals that were accepted.

    Only a running job has a token, so its state need not be asked for: the index of running jobs, full of entries
    that are dead already, would be the slower way to a job whose id is known.
    """
    return (
        f"UPDATE job j SET {put.replace('{r}', 'r.')} FROM {_unnest(columns, 1)} "
        f"WHERE j.org = r.org AND j.id = r.id AND j.token = r.token {also} RETURNING r.ord, j.state"
    )


def _quoted(word: str) -> str:
    return f"'{word}'"  # letters and digits only


class PostgresDialect(Dialect):
    """PostgreSQL's own statements."""

    #: It takes a lock on the whole server at commit, so it is sent only when somebody sleeps.
    NOTIFY = "SELECT pg_notify('perdure', '') WHERE EXISTS (SELECT 1 FROM worker WHERE idle)"
    MIGRATED = "SELECT 1 WHERE to_regclass('migration') IS NOT NULL"
    WORKER_AGAIN = (
        "INSERT INTO worker (id, kind, name, queues, started_ms, beat_ms) OVERRIDING SYSTEM VALUE "
        "VALUES ($1, 'worker', $2, $3, $4, $4) ON CONFLICT (id) DO NOTHING"
    )
    DOCUMENT_ADD = _insert("document", NEW_DOCUMENT, "ON CONFLICT DO NOTHING RETURNING org, id")
    FEED_ADD = _insert("feed", NEW_FEED, "")
    #: A place that is ahead of all transactions is of the server that this one was restored from, whose numbers say
    #: nothing here: then everything that is there is told.
    FEED = (
        "SELECT change, number, org, at_ms, name, document_id, data FROM feed WHERE org = $1 AND (change, number) > "
        f"(CASE WHEN $2 < {_OLDEST_OPEN} THEN CAST($2 AS bigint) ELSE 0 END, "
        f"CASE WHEN $2 < {_OLDEST_OPEN} THEN CAST($3 AS bigint) ELSE 0 END) "
        f"AND change < {_OLDEST_OPEN} ORDER BY change, number LIMIT $4"
    )
    FEED_END = f"SELECT {_OLDEST_OPEN} - 1, 999999999999999999"
    DOCUMENT_SAME = (
        f"SELECT r.ord, d.id FROM {_unnest({'ord': 'int', 'org': 'text', 'pipeline': 'text', 'dedupe': 'text'})} "
        "JOIN document d ON d.org = r.org AND d.pipeline = r.pipeline AND d.dedupe = r.dedupe"
    )
    WHICH = "({t}.org, {t}.{id}) IN (SELECT * FROM unnest($1::text[], $2::text[]))"
    DOCUMENT_LOCK = f"{LOCK_DOCUMENT} WHERE {WHICH.format(t='d', id='id')} ORDER BY d.org, d.id FOR UPDATE"
    DOCUMENT_OPEN = (
        f"{OPEN_DOCUMENT} WHERE {WHICH.format(t='document', id='id')} RETURNING org, id, generation"
    )
    DOCUMENT_RESTORE = _insert("document", OLD_DOCUMENT, "ON CONFLICT DO NOTHING RETURNING org, id")
    DEAD_DROP = f"DELETE FROM dead WHERE {WHICH.format(t='dead', id='document_id')}"
    STATUSES = (
        f"SELECT {STATUS_COLUMNS} FROM {STATUS_FROM} "
        f"WHERE (d.org, d.id) IN (SELECT org, id FROM {_unnest({'org': 'text', 'id': 'text'})})"
    )
    JOBS_END = "SELECT org, id FROM job WHERE (org, id) > ($1, $2) ORDER BY org, id LIMIT 1 OFFSET $3"
    JOBS_LEFT = "SELECT count(*) FROM job WHERE (org, id) > ($1, $2)"
    #: In this order and no more, so that it goes by the key whatever the planner thinks of how many there are.
    JOBS_PAGE = (
        "(SELECT * FROM job WHERE (org, id) > ($1, $2) AND (org, id) <= ($3, $4) "
        "ORDER BY org, id LIMIT {size}) j"
    )
    JOBS_OPEN = (
        f"SELECT j.key FROM {_unnest({'org': 'text', 'id': 'text'})} "
        "JOIN job j ON j.org = r.org AND j.document_id = r.id AND j.finished_ms IS NULL"
    )
    ITEMS_SAVED = (
        "SELECT r.id, (SELECT count(*) FROM item i WHERE i.org = r.org AND i.document_id = r.id "
        "AND i.pipeline = r.pipeline AND i.stage = r.stage AND i.generation = r.generation) FROM "
        + _unnest({"org": "text", "id": "text", "pipeline": "text", "stage": "text", "generation": "int"})
    )
    DOCUMENT_END = (
        "UPDATE document d SET state = r.state, finished_ms = r.finished_ms, error_code = r.error_code, "
        "error_message = r.error_message, error_meta = r.error_meta FROM "
        + _unnest(
            {
                "org": "text",
                "id": "text",
                "state": "text",
                "finished_ms": "bigint",
                "error_code": "text",
                "error_message": "text",
                "error_meta": "text",
            }
        )
        + " WHERE d.org = r.org AND d.id = r.id RETURNING d.org, d.collection, d.state"
    )
    JOBS_LIVE = f"{Dialect.JOBS_LIVE} ORDER BY id FOR UPDATE"
    JOB_ADD = _insert("job", NEW_JOB, "ON CONFLICT (org, document_id, key) DO NOTHING")
    JOB_FOLLOW = f"{JOB_ADD} RETURNING org, key"
    JOB_REQUEUE = _insert("job", NEW_JOB, REQUEUE_JOB)
    COUNT_LOCK = "LOCK TABLE counter IN SHARE ROW EXCLUSIVE MODE"
    COUNT_JOB = f"{Dialect.COUNT_JOB} FOR UPDATE"
    COUNT_ADD = (
        f"INSERT INTO counter (client, {', '.join(NEW_COUNT)}) "
        f"SELECT $1, {', '.join(f'r.{name}' for name in NEW_COUNT)} FROM {_unnest(NEW_COUNT, 1)} {ADDED}"
    )
    ATTEMPT_ADD = _insert("attempt", NEW_ATTEMPT, "ON CONFLICT DO NOTHING")
    DEAD_ADD = (
        f"INSERT INTO dead ({', '.join(NEW_DEAD)}, collection) "
        f"SELECT {', '.join(f'r.{name}' for name in NEW_DEAD)}, d.collection "
        f"FROM {_unnest(NEW_DEAD)} JOIN document d ON d.org = r.org AND d.id = r.document_id"
    )
    SAVED_ADD = _insert("saved", NEW_SAVED, UPSERT_SAVED)
    ITEM_ADD = _insert("item", NEW_ITEM, UPSERT_ITEM)
    EMITTED_ADD = _insert("emitted", NEW_EMITTED, UPSERT_EMITTED)
    TURNS = (
        f"WITH r AS (SELECT * FROM {_unnest({'queue': 'text', 'org': 'text'})}) "
        "SELECT r.queue, r.org, t.rank, t.vt, coalesce((SELECT weight FROM org WHERE name = r.org), 1) "
        "FROM r LEFT JOIN LATERAL (SELECT rank, vt FROM turn WHERE queue = r.queue AND org = r.org "
        "ORDER BY rank FOR UPDATE) t ON true"
    )
    TURN_SET = (
        _insert("turn", {"queue": "text", "org": "text", "rank": "int", "vt": "double precision"}, "")
        + "ON CONFLICT (queue, org, rank) DO UPDATE SET vt = greatest(turn.vt, excluded.vt)"
    )
    VT_NOW = (
        "SELECT r.queue, (SELECT min(x.vt) FROM lane l CROSS JOIN LATERAL (SELECT vt FROM job WHERE state = 'queued' "
        "AND queue = r.queue AND lane = l.name AND suspect = false AND vt > 0 ORDER BY vt LIMIT 1) x "
        "WHERE l.down_ms IS NULL), (SELECT max(vt) FROM turn WHERE queue = r.queue) "
        f"FROM {_unnest({'queue': 'text'})}"
    )
    FENCE_SAVE = _fence(FENCE_SAVE, SAVE_SET)
    # whoever takes a job back may have read it long ago: it must still stand where it stood
    FENCE_SETTLE = _fence(
        FENCE_SETTLE,
        SETTLE_SET,
        "AND (NOT r.expired_only OR j.lease_until_ms < $1) AND (NOT r.taken_back OR j.stage = r.stage)",
    )
    HAND_OVER = _fence(HAND_OVER, HAND_OVER_SET)
    OUTBOX_ADD = _insert("outbox", NEW_EVENT, "ON CONFLICT (event_id) DO NOTHING")
    OUTBOX_SENT = f"DELETE FROM outbox o USING {_unnest({'id': 'bigint'})} WHERE o.id = r.id"
    LEASE_BEGIN = (
        "UPDATE job j SET lease_until_ms = CAST($1 AS bigint) + r.wait_ms FROM "
        + _unnest({"org": "text", "id": "bigint", "token": "bigint", "wait_ms": "bigint"}, 1)
        + " WHERE j.org = r.org AND j.id = r.id AND j.token = r.token AND j.lease_until_ms IS NULL"
    )
    _FINISH = (
        f"WITH done AS (UPDATE job j SET {FINISH_SET.replace('{r}', 'r.')} FROM {_unnest(FINISH, 1)} "
        "WHERE j.org = r.org AND j.id = r.id AND j.token = r.token "
        "RETURNING r.ord, r.token, r.stage, r.worker, r.requests, j.org, j.document_id, j.key, j.generation, "
        "j.claims, j.attempts, j.claimed_ms), "
        f"history AS ({FINISH_ATTEMPT.replace('{job}', '').replace('{r}', '')} FROM done ON CONFLICT DO NOTHING), "
        f"ended AS ({FINISH_DOCUMENT} FROM done WHERE done.key = 'doc-' || done.document_id "
        "AND d.org = done.org AND d.id = done.document_id) SELECT ord FROM done"
    )
    #: A locked row is being saved or settled right now, and a save renews the lease itself.
    BEAT = (
        f"WITH r AS (SELECT * FROM {_unnest({'id': 'bigint', 'token': 'bigint'}, 1)}), "
        "ours AS MATERIALIZED (SELECT j.org, j.id FROM job j JOIN r ON j.id = r.id "
        "WHERE j.token = r.token AND j.state = 'running' ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED) "
        "UPDATE job j SET lease_until_ms = CAST($1 AS bigint) + j.lease_ms, beat_ms = $1 FROM ours "
        "WHERE j.org = ours.org AND j.id = ours.id"
    )
    BEAT_HELD = (
        f"SELECT j.id, j.token FROM {_unnest({'id': 'bigint', 'token': 'bigint'})} "
        "JOIN job j ON j.id = r.id AND j.token = r.token AND j.state = 'running'"
    )
    DUE = (
        "SELECT id, org, queue, limit_key, claims, priority, run_at_ms, key, lane FROM job "
        "WHERE state = 'waiting' AND run_at_ms <= $1 ORDER BY run_at_ms, id LIMIT $2 FOR UPDATE SKIP LOCKED"
    )
    PROMOTE = (
        "UPDATE job j SET state = r.state, vt = r.vt FROM "
        + _unnest({"org": "text", "id": "bigint", "state": "text", "vt": "double precision"})
        + " WHERE j.org = r.org AND j.id = r.id AND j.state = 'waiting'"
    )
    SLOT_ADD = _insert("slot", {"key": "text", "concurrency": "int"}, "ON CONFLICT DO NOTHING")
    SLOTS = (
        "SELECT s.key, s.concurrency, s.rate_per_s, s.credit, s.credit_ms FROM slot s "
        f"WHERE s.key IN (SELECT r.key FROM {_unnest({'key': 'text'})}) ORDER BY s.key FOR UPDATE OF s"
    )
    PARKED = (
        "SELECT org, id, key, queue, lane FROM job WHERE limit_key = $1 AND finished_ms IS NULL AND state = 'parked' "
        f"AND {IN_SERVICE} ORDER BY vt, priority DESC, id LIMIT $2 FOR UPDATE SKIP LOCKED"
    )
    UNPARK = (
        f"UPDATE job j SET state = 'queued' FROM {_unnest({'org': 'text', 'id': 'bigint'})} "
        "WHERE j.org = r.org AND j.id = r.id AND j.state = 'parked'"
    )

    DEPENDENCY_SHARED = f"{Dialect.DEPENDENCY_SHARED} FOR UPDATE"
    CALL_ADD = _insert("retry_metrics", NEW_CALL, "")
    CALLS_FORGET = (
        "DELETE FROM retry_metrics WHERE ctid = ANY(ARRAY(SELECT ctid FROM retry_metrics WHERE timestamp < $1 "
        "ORDER BY timestamp LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1"
    )
    JOB_WAITING = f"{Dialect.JOB_WAITING} FOR UPDATE"
    LANES_LOCK = f"{Dialect.LANES_LOCK} FOR UPDATE"
    HELD_READY = f"{HELD_READY} FOR UPDATE SKIP LOCKED"
    HELD_PARKED = f"{HELD_PARKED} FOR UPDATE SKIP LOCKED"
    LEND = (
        f"UPDATE job j SET {LEND_SET} FROM {_unnest({'org': 'text', 'id': 'bigint'}, 1)} "
        "WHERE j.org = r.org AND j.id = r.id"
    )
    JOB_FREED = (
        "UPDATE job j SET limit_key = NULL, state = CASE WHEN j.state = 'parked' THEN 'queued' ELSE j.state END "
        f"FROM {_unnest({'org': 'text', 'id': 'bigint'})} WHERE j.org = r.org AND j.id = r.id"
    )
    UNLEND = (
        f"UPDATE job j SET probe = NULL, home = NULL FROM {_unnest({'org': 'text', 'id': 'bigint'})} "
        "WHERE j.org = r.org AND j.id = r.id"
    )
    #: One that is being claimed right now is not waited for.
    RECALL = (
        "WITH lent AS MATERIALIZED (SELECT org, id FROM job WHERE probe = $1 AND state IN ('queued', 'parked') "
        f"FOR UPDATE SKIP LOCKED) UPDATE job j SET {RECALL_SET} FROM lent "
        "WHERE j.org = lent.org AND j.id = lent.id RETURNING j.key, j.queue, j.lane, j.state"
    )

    CHUNK_ADD = _insert("chunk", NEW_CHUNK, UPSERT_CHUNK)
    CHUNKS_GO = "SELECT set_config('perdure.chunks_go', $1, true)"
    CHUNK_DROP = (
        f"DELETE FROM chunk c USING {_unnest({'org': 'text', 'document_id': 'text', 'id': 'text'})} "
        "WHERE c.org = r.org AND c.document_id = r.document_id AND c.id = r.id"
    )
    INDEXED_LOCK = f"{Dialect.INDEXED_LOCK} FOR UPDATE OF i"
    #: Numbers of transactions: what is not below the oldest that was still open may not have been seen.
    INDEXED_SET = (
        "UPDATE indexed SET revision = $3, expected = $4, saved_ms = $5, generation = $6, "
        "change = CAST(CAST(pg_current_xact_id() AS text) AS bigint) WHERE org = $1 AND document_id = $2"
    )
    INDEXED_MARK = (
        "SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) "
        "WHERE CAST($1 AS text) IS NOT NULL"
    )
    CONNECTION_ADD = _insert(
        "connection",
        NEW_CONNECTION,
        "WHERE EXISTS (SELECT 1 FROM chunk c WHERE c.org = r.org AND c.document_id = r.document_id "
        "AND c.id = r.chunk_id) AND EXISTS (SELECT 1 FROM chunk c WHERE c.org = r.org "
        f"AND c.document_id = r.other_document_id AND c.id = r.other_id) {UPSERT_CONNECTION}",
    )
    CONNECTION_DROP = (
        f"DELETE FROM connection n USING {_unnest(dict(list(NEW_CONNECTION.items())[:5]))} WHERE n.org = r.org "
        "AND n.document_id = r.document_id AND n.chunk_id = r.chunk_id "
        "AND n.other_document_id = r.other_document_id AND n.other_id = r.other_id"
    )
    CONNECTION_CUT = (
        f"DELETE FROM connection n USING {_unnest({'org': 'text', 'document_id': 'text', 'id': 'text'})} "
        "WHERE n.org = r.org AND n.document_id = r.document_id AND n.chunk_id = r.id"
    )
    CHUNK_VECTORS = (
        f"SELECT c.document_id, c.num, c.vector FROM {_unnest({'document_id': 'text'}, 3)} JOIN chunk c "
        "ON c.org = $1 AND c.document_id = r.document_id AND c.model = $2 AND octet_length(c.vector) = $3"
    )
    CHUNK_FOUND = (
        "SELECT f.num FROM (SELECT num, ts_rank(found, CAST(CAST($4 AS text) AS tsquery), 1) AS score FROM chunk "
        "WHERE found @@ CAST(CAST($3 AS text) AS tsquery) LIMIT $1) f ORDER BY f.score DESC, f.num LIMIT $2"
    )
    CHUNK_HITS = (
        "SELECT c.num, c.document_id, c.id, c.text, c.anchor, c.page, d.name FROM chunk c "
        "JOIN document d ON d.org = c.org AND d.id = c.document_id "
        "WHERE c.org = $1 AND (CAST($2 AS text) IS NULL OR d.collection = $2) "
        "AND (CAST($3 AS text) IS NULL OR d.id = $3) AND c.num = ANY($4::bigint[])"
    )

    _CLAIM = (
        "WITH ready AS MATERIALIZED (SELECT x.org, x.id FROM queue q CROSS JOIN lane l CROSS JOIN LATERAL ("
        "SELECT org, id, vt, priority FROM job WHERE state = 'queued' AND queue = q.name AND lane = l.name "
        "AND suspect = $5 ORDER BY vt, priority DESC, id LIMIT $6 FOR UPDATE SKIP LOCKED) x "
        "WHERE q.name = ANY($4::text[]) AND NOT q.paused AND l.down_ms IS NULL "
        "ORDER BY x.vt, x.priority DESC, x.id LIMIT $6) "
        "UPDATE job j SET state = 'running', token = $1, worker = $2, attempts = attempts + 1, claims = claims + 1, "
        "claimed_ms = $3, lease_until_ms = CAST($3 AS bigint) + lease_ms, beat_ms = $3 "
        "FROM ready, document d WHERE j.org = ready.org AND j.id = ready.id AND d.org = j.org AND d.id = j.document_id "
        f"RETURNING {JOB_COLUMNS}, {DOCUMENT_COLUMNS}"
    )

    def looked_up(self, scope: Sequence[str], asked: Sequence[Term], every: bool) -> tuple[str, ...]:
        words = (" & " if every else " | ").join(f"({' <-> '.join(map(_quoted, term))})" for term in asked)
        return " & ".join([*map(_quoted, scope), f"({words})"]), words

    def many(self, values: Sequence[int]) -> object:
        return list(values)

    def finish(self, finished: Sequence[Row], now_ms: int) -> Steps[list[Row]]:
        return (yield Query(self._FINISH, (now_ms,), finished))

    def claim(self, claim: Claim, now_ms: int, suspect: bool, limit: int) -> Steps[list[Row]]:
        return (
            yield Query(self._CLAIM, (claim.token, claim.worker, now_ms, list(claim.queues), suspect, limit))
        )
