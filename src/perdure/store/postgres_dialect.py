"""PostgreSQL's statements: arrays for many rows, row locks in id order, SKIP LOCKED where others may be at work."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.core.words import Term
from perdure.store.base import Query, Row, Steps
from perdure.store.counting import ADDED, NEW_COUNT
from perdure.store.dialect import (
    DEAD_RENEWED,
    DOCUMENT_COLUMNS,
    FENCE_SAVE,
    FENCE_SETTLE,
    FINISH,
    FINISH_SET,
    FOUND_STATE,
    HAND_OVER,
    HAND_OVER_SET,
    HELD_PARKED,
    HELD_READY,
    IS_LARGE,
    JOB_COLUMNS,
    KEPT,
    LEND_SET,
    LIMIT_CHANGES,
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
    NEW_STAGED,
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
from perdure.store.fairness import FLOW_TIMES, NEW_FLOW, NEW_TURN, PARKED, PARKED_FIRST, TURN
from perdure.store.feed import NEW_FEED
from perdure.store.lacking import IS_LACKED
from perdure.store.operations import Claim, Kind
from perdure.store.postgres_making import SAVED_OR_DONE, either, finishing, guarded, insert, unnest
from perdure.store.serving import NEW_SERVED, SERVED_AGAIN

_OLDEST_OPEN = "CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)"


def _quoted(word: str) -> str:
    return f"'{word}'"  # letters and digits only


class PostgresDialect(Dialect):
    """PostgreSQL's own statements."""

    name = "postgres"
    POSITION = "strpos"
    #: It takes a lock on the whole server at commit, so it is sent only when somebody sleeps.
    NOTIFY = "SELECT pg_notify('perdure', '') WHERE EXISTS (SELECT 1 FROM worker WHERE idle)"
    MIGRATED = "SELECT 1 WHERE to_regclass('migration') IS NOT NULL"
    #: At random: a standby that is promoted without the last commits would give the next ones of a sequence again,
    #: while those who have them live on.
    WORKER_ADD = (
        "INSERT INTO worker (id, kind, name, queues, started_ms, beat_ms) OVERRIDING SYSTEM VALUE "
        "SELECT CAST(1 + floor(random() * 2147483646) AS int), $1, $2, $3, now_ms, now_ms "
        "FROM (SELECT coalesce(CAST($4 AS bigint), perdure_now()) AS now_ms) AS t "
        "ON CONFLICT (id) DO NOTHING RETURNING id"
    )
    WORKER_AGAIN = (
        "INSERT INTO worker (id, kind, name, queues, started_ms, beat_ms) OVERRIDING SYSTEM VALUE "
        "VALUES ($1, 'worker', $2, $3, $4, $4) ON CONFLICT (id) DO NOTHING"
    )
    DOCUMENT_ADD = insert("document", NEW_DOCUMENT, "ON CONFLICT DO NOTHING RETURNING org, id")
    FEED_ADD = insert("feed", NEW_FEED, "")
    #: A place that is ahead of all transactions is of the server that this one was restored from, whose numbers say
    #: nothing here: then everything that is there is told.
    FEED = (
        "SELECT change, number, org, at_ms, name, document_id, data FROM feed WHERE org = $1 AND (change, number) > "
        f"(CASE WHEN $2 < {_OLDEST_OPEN} THEN CAST($2 AS bigint) ELSE 0 END, "
        f"CASE WHEN $2 < {_OLDEST_OPEN} THEN CAST($3 AS bigint) ELSE 0 END) "
        f"AND change < {_OLDEST_OPEN} ORDER BY change, number LIMIT $4"
    )
    FEED_HEARD = (
        "NOT EXISTS (SELECT 1 FROM webhook w WHERE w.org = feed.org AND (feed.change, feed.number) > "
        "(CAST(split_part(w.place, '-', 1) AS bigint), CAST(split_part(w.place, '-', 2) AS bigint)))"
    )
    FEED_END = f"SELECT {_OLDEST_OPEN} - 1, 999999999999999999"
    #: The lock keeps a purge away until we have committed that it is there.
    DOCUMENT_SAME = (
        f"SELECT r.ord, d.id, {FOUND_STATE} FROM "
        + unnest({"ord": "int", "org": "text", "id": "text", "pipeline": "text", "dedupe": "text"})
        + " CROSS JOIN LATERAL (SELECT b.id FROM document b WHERE b.org = r.org AND b.id = r.id UNION SELECT b.id "
        "FROM document b WHERE b.org = r.org AND b.pipeline = r.pipeline AND b.dedupe = r.dedupe) w "
        "JOIN document d ON d.org = r.org AND d.id = w.id LEFT JOIN job j ON j.org = d.org AND j.document_id = d.id "
        "AND j.key = 'doc-' || d.id LEFT JOIN lane l ON l.name = j.lane ORDER BY d.org, d.id FOR KEY SHARE OF d"
    )
    KEY_SHARE = " FOR KEY SHARE"
    WHICH = "({t}.org, {t}.{id}) IN (SELECT * FROM unnest($1::text[], $2::text[]))"
    _DOCUMENT_LOCK = f"{LOCK_DOCUMENT} WHERE {WHICH.format(t='d', id='id')} ORDER BY d.org, d.id"
    #: An add of a follow-up job, or of the same document, does not wait for it.
    DOCUMENT_LOCK = f"{_DOCUMENT_LOCK} FOR NO KEY UPDATE"
    DOCUMENT_LOCK_PURGE = f"{_DOCUMENT_LOCK} FOR UPDATE"
    DOCUMENT_SIZES = Dialect._SIZES.format(which=WHICH.format(t="d", id="id"))
    DOCUMENT_OPEN = (
        f"{OPEN_DOCUMENT} WHERE {WHICH.format(t='document', id='id')} RETURNING org, id, generation"
    )
    DOCUMENT_RESTORE = insert("document", OLD_DOCUMENT, "ON CONFLICT DO NOTHING RETURNING org, id")
    DEAD_DROP = f"DELETE FROM dead WHERE {WHICH.format(t='dead', id='document_id')} AND {DEAD_RENEWED}"
    STATUSES = (
        f"SELECT {STATUS_COLUMNS} FROM {STATUS_FROM} "
        f"WHERE (d.org, d.id) IN (SELECT org, id FROM {unnest({'org': 'text', 'id': 'text'})})"
    )
    JOBS_END = "SELECT org, id FROM job WHERE (org, id) > ($1, $2) ORDER BY org, id LIMIT 1 OFFSET $3"
    JOBS_LEFT = "SELECT count(*) FROM job WHERE (org, id) > ($1, $2)"
    #: In this order and no more, so that it goes by the key whatever the planner thinks of how many there are.
    JOBS_PAGE = (
        "(SELECT * FROM job WHERE (org, id) > ($1, $2) AND (org, id) <= ($3, $4) "
        "ORDER BY org, id LIMIT {size}) j"
    )
    JOBS_OPEN = (
        f"SELECT j.key FROM {unnest({'org': 'text', 'id': 'text'})} "
        "JOIN job j ON j.org = r.org AND j.document_id = r.id AND j.finished_ms IS NULL"
    )
    ITEMS_SAVED = (
        "SELECT r.id, (SELECT count(*) FROM item i WHERE i.org = r.org AND i.document_id = r.id "
        "AND i.pipeline = r.pipeline AND i.stage = r.stage AND i.generation = r.generation) FROM "
        + unnest({"org": "text", "id": "text", "pipeline": "text", "stage": "text", "generation": "int"})
    )
    DOCUMENT_END = (
        "UPDATE document d SET state = r.state, finished_ms = r.finished_ms, error_code = r.error_code, "
        f"error_message = r.error_message, error_meta = r.error_meta, {', '.join(f'{c} = j.{c}' for c in KEPT)} FROM "
        + unnest(
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
        + " LEFT JOIN job j ON j.org = r.org AND j.document_id = r.id AND j.key = 'doc-' || r.id "
        "WHERE d.org = r.org AND d.id = r.id RETURNING d.org, d.collection, d.state"
    )
    #: The rows come in order, and each is locked before the next is looked for.
    JOBS_LOCK = (
        f"SELECT j.id FROM {unnest({'org': 'text', 'document_id': 'text', 'key': 'text'})} CROSS JOIN LATERAL ("
        "SELECT k.id FROM job k WHERE k.org = r.org AND k.document_id = r.document_id "
        "AND k.key = coalesce(r.key, k.key) ORDER BY k.key FOR NO KEY UPDATE) j"
    )
    _PARK = (
        "WITH own AS MATERIALIZED (SELECT k.org, k.id FROM job k WHERE k.limit_key IS NOT NULL "
        "AND k.finished_ms IS NULL AND k.state = 'queued' AND {which} "
        "ORDER BY k.org, k.document_id, k.key FOR NO KEY UPDATE) "
        "UPDATE job j SET state = 'parked' FROM own WHERE j.org = own.org AND j.id = own.id "
        "RETURNING j.key, j.queue, j.lane"
    )
    PARK_LANE = _PARK.format(which="k.lane IN (SELECT * FROM unnest($1::text[]))")
    PARK_QUEUE = _PARK.format(which="k.queue = $1")
    PARK_KEY = _PARK.format(which=f"k.limit_key = $1 AND {LIMIT_CHANGES}")
    PARK_LACKED = _PARK.format(which=IS_LACKED.format(now="$1"))
    #: A locked row is left to the next round.
    PRUNE_JOB = (
        "WITH own AS MATERIALIZED (SELECT k.org, k.id FROM "
        + unnest({"org": "text", "id": "bigint"})
        + " JOIN job k ON k.org = r.org AND k.id = r.id AND k.state IN ('done', 'cancelled') "
        "FOR UPDATE OF k SKIP LOCKED) "
        "DELETE FROM job j USING own WHERE j.org = own.org AND j.id = own.id "
        "RETURNING j.org, j.document_id, j.pipeline, j.generation"
    )
    JOB_ADD = insert("job", NEW_JOB, "ON CONFLICT (org, document_id, key) DO NOTHING")
    JOB_FOLLOW = f"{JOB_ADD} RETURNING org, key"
    JOB_REQUEUE = insert("job", NEW_JOB, REQUEUE_JOB)
    COUNT_LOCK = "LOCK TABLE counter IN SHARE ROW EXCLUSIVE MODE"
    COUNT_JOB = f"{Dialect.COUNT_JOB} FOR UPDATE"
    COUNT_ADD = (
        f"INSERT INTO counter (client, {', '.join(NEW_COUNT)}) "
        f"SELECT $1, {', '.join(f'r.{name}' for name in NEW_COUNT)} FROM {unnest(NEW_COUNT, 1)} {ADDED}"
    )
    ATTEMPT_ADD = insert("attempt", NEW_ATTEMPT, "ON CONFLICT DO NOTHING")
    DEAD_ADD = (
        f"INSERT INTO dead ({', '.join(NEW_DEAD)}, collection) "
        f"SELECT {', '.join(f'r.{name}' for name in NEW_DEAD)}, d.collection "
        f"FROM {unnest(NEW_DEAD)} JOIN document d ON d.org = r.org AND d.id = r.document_id"
    )
    SAVED_ADD = insert("saved", NEW_SAVED, UPSERT_SAVED)
    ITEM_ADD = insert("item", NEW_ITEM, UPSERT_ITEM)
    EMITTED_ADD = insert("emitted", NEW_EMITTED, UPSERT_EMITTED)
    TURNS = (
        f"WITH r AS (SELECT * FROM {unnest({'queue': 'text', 'org': 'text'})}) "
        "SELECT r.queue, r.org, t.pipeline, t.lane, t.rank, t.vt, "
        "coalesce((SELECT weight FROM org WHERE name = r.org), 1) "
        "FROM r LEFT JOIN LATERAL (SELECT pipeline, lane, rank, vt FROM turn WHERE queue = r.queue AND org = r.org "
        "ORDER BY lane, pipeline, rank FOR UPDATE) t ON true"
    )
    TURN_SET = (
        insert("turn", NEW_TURN, "")
        + "ON CONFLICT (queue, org, lane, pipeline, rank) DO UPDATE SET vt = greatest(turn.vt, excluded.vt)"
    )
    SERVED_SET = insert("served", NEW_SERVED, SERVED_AGAIN)
    FLOW_TIMES = FLOW_TIMES.format(
        flow=f"{unnest(NEW_FLOW)} JOIN flow f ON f.queue = r.queue AND f.lane = r.lane AND f.pipeline = r.pipeline"
    )
    FENCE_SAVE = guarded(FENCE_SAVE, SAVE_SET)
    # whoever takes a job back may have read it long ago: it must still stand where it stood
    FENCE_SETTLE = guarded(
        FENCE_SETTLE,
        SETTLE_SET,
        "AND (NOT r.expired_only OR j.lease_until_ms < $1) AND (NOT r.taken_back OR j.stage = r.stage)",
    )
    HAND_OVER = guarded(HAND_OVER, HAND_OVER_SET)
    OUTBOX_ADD = insert("outbox", NEW_EVENT, "ON CONFLICT (event_id) DO NOTHING")
    OUTBOX_SENT = f"DELETE FROM outbox o USING {unnest({'id': 'bigint'})} WHERE o.id = r.id"
    LEASE_BEGIN = (
        "WITH own AS MATERIALIZED (SELECT k.org, k.id, r.wait_ms FROM "
        + unnest({"org": "text", "id": "bigint", "token": "bigint", "wait_ms": "bigint"}, 1)
        + " JOIN job k ON k.org = r.org AND k.id = r.id AND k.token = r.token AND k.lease_until_ms IS NULL "
        "ORDER BY k.org, k.document_id, k.key FOR NO KEY UPDATE OF k) "
        "UPDATE job j SET lease_until_ms = CAST($1 AS bigint) + own.wait_ms FROM own "
        "WHERE j.org = own.org AND j.id = own.id"
    )
    _FINISH = finishing(FINISH, FINISH_SET, "TRUE")
    #: Both in one statement, which locks the jobs in order.
    _SAVE_AND_FINISH = finishing(SAVED_OR_DONE, either("r.done", FINISH_SET, SAVE_SET), "r.done")
    #: A locked row is being saved or settled right now, and a save renews the lease itself.
    BEAT = (
        f"WITH r AS (SELECT * FROM {unnest({'id': 'bigint', 'token': 'bigint'}, 1)}), "
        "ours AS MATERIALIZED (SELECT j.org, j.id FROM job j JOIN r ON j.id = r.id "
        "WHERE j.token = r.token AND j.state = 'running' ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED) "
        "UPDATE job j SET lease_until_ms = CAST($1 AS bigint) + j.lease_ms, beat_ms = $1 FROM ours "
        "WHERE j.org = ours.org AND j.id = ours.id"
    )
    BEAT_HELD = (
        f"SELECT j.id, j.token FROM {unnest({'id': 'bigint', 'token': 'bigint'})} "
        "JOIN job j ON j.id = r.id AND j.token = r.token AND j.state = 'running'"
    )
    DUE = (
        "SELECT id, org, queue, pipeline, lane, limit_key, claims, priority, run_at_ms, key FROM job "
        "WHERE state = 'waiting' AND run_at_ms <= $1 ORDER BY run_at_ms, id LIMIT $2 FOR UPDATE SKIP LOCKED"
    )
    DUE_LATEST = (
        "SELECT id, org, queue, pipeline, lane, limit_key, claims, priority, run_at_ms, key FROM job "
        "WHERE state = 'waiting' AND run_at_ms <= $1 ORDER BY run_at_ms DESC, id DESC LIMIT $2 FOR UPDATE SKIP LOCKED"
    )
    PROMOTE = (
        "UPDATE job j SET state = r.state, vt = r.vt FROM "
        + unnest({"org": "text", "id": "bigint", "state": "text", "vt": "double precision"})
        + " WHERE j.org = r.org AND j.id = r.id AND j.state = 'waiting'"
    )
    SLOT_ADD = insert("slot", {"key": "text", "concurrency": "int"}, "ON CONFLICT DO NOTHING")
    SLOTS = (
        "SELECT s.key, s.concurrency, s.rate_per_s, s.credit, s.credit_ms, s.had FROM slot s "
        f"WHERE s.key IN (SELECT r.key FROM {unnest({'key': 'text'})}) ORDER BY s.key FOR UPDATE OF s"
    )
    PARKED = PARKED.format(
        jobs=f"LATERAL (SELECT org, id, key, vt, priority {PARKED_FIRST} FOR UPDATE SKIP LOCKED) x", which=""
    )
    UNPARK = (
        "UPDATE job j SET state = 'queued', vt = r.vt FROM "
        f"{unnest({'org': 'text', 'id': 'bigint', 'vt': 'double precision'})} "
        "WHERE j.org = r.org AND j.id = r.id AND j.state = 'parked'"
    )

    SLOTS_FREE = f"{SLOTS} SKIP LOCKED"
    GATES_LOCK = f"{Dialect.GATES} FOR UPDATE OF s"
    GUARD = Dialect.GUARD.format(joined="string_agg(key, ',')")
    GATE = (
        "WITH over AS MATERIALIZED (SELECT k.org, k.id, r.gate FROM "
        + unnest({"org": "text", "id": "bigint", "gate": "text"})
        + " JOIN job k ON k.org = r.org AND k.id = r.id AND k.state = 'queued' FOR UPDATE OF k SKIP LOCKED) "
        "UPDATE job j SET state = 'parked', limit_own = j.limit_key, limit_key = over.gate FROM over "
        "WHERE j.org = over.org AND j.id = over.id RETURNING j.key, j.queue, j.lane, j.limit_own"
    )
    REGATE = (
        f"UPDATE job j SET limit_key = r.gate FROM {unnest({'org': 'text', 'id': 'bigint', 'gate': 'text'})} "
        "WHERE j.org = r.org AND j.id = r.id AND j.state = 'parked'"
    )
    UNGATE = (
        "UPDATE job j SET state = CASE WHEN j.limit_own IS NULL THEN 'queued' ELSE 'parked' END, "
        "limit_key = j.limit_own, limit_own = NULL, vt = r.vt FROM "
        f"{unnest({'org': 'text', 'id': 'bigint', 'vt': 'double precision'})} "
        "WHERE j.org = r.org AND j.id = r.id AND j.state = 'parked' RETURNING j.key, j.queue, j.lane, j.limit_key"
    )

    DEPENDENCY_SHARED = f"{Dialect.DEPENDENCY_SHARED} FOR UPDATE"
    CALL_ADD = insert("retry_metrics", NEW_CALL, "")
    CALLS_FORGET = (
        "DELETE FROM retry_metrics WHERE ctid = ANY(ARRAY(SELECT ctid FROM retry_metrics WHERE timestamp < $1 "
        "ORDER BY timestamp LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING 1"
    )
    JOB_WAITING = f"{Dialect.JOB_WAITING} FOR UPDATE"
    LANES_LOCK = f"{Dialect.LANES_LOCK} FOR UPDATE"
    HELD_READY = f"{HELD_READY} FOR UPDATE SKIP LOCKED"
    HELD_PARKED = f"{HELD_PARKED} FOR UPDATE SKIP LOCKED"
    LEND = (
        f"UPDATE job j SET {LEND_SET.format(job='j', vt='r.vt')} "
        f"FROM {unnest({'org': 'text', 'id': 'bigint', 'vt': 'double precision'}, 1)} "
        "WHERE j.org = r.org AND j.id = r.id"
    )
    JOB_FREED = (
        f"UPDATE job j SET limit_key = NULL FROM {unnest({'org': 'text', 'id': 'bigint'})} "
        "WHERE j.org = r.org AND j.id = r.id"
    )
    UNLEND = (
        f"UPDATE job j SET probe = NULL, home = NULL FROM {unnest({'org': 'text', 'id': 'bigint'})} "
        "WHERE j.org = r.org AND j.id = r.id"
    )
    #: One that is being claimed right now is not waited for.
    RECALL = (
        "WITH lent AS MATERIALIZED (SELECT org, id FROM job WHERE probe = $1 AND state IN ('queued', 'parked') "
        f"FOR UPDATE SKIP LOCKED) UPDATE job j SET {RECALL_SET.format(job='j')} FROM lent "
        "WHERE j.org = lent.org AND j.id = lent.id RETURNING j.key, j.queue, j.lane, j.state, "
        "j.org, j.id, j.limit_key"
    )
    PARK = (
        f"UPDATE job j SET state = 'parked' FROM {unnest({'org': 'text', 'id': 'bigint'})} "
        "WHERE j.org = r.org AND j.id = r.id"
    )

    CHUNK_ADD = insert("chunk", NEW_CHUNK, UPSERT_CHUNK)
    #: Under the number that its words and its vector have; a new one if they are not there as they are now.
    CHUNK_ADD_STAGED = (
        f"INSERT INTO chunk (num, {', '.join(NEW_CHUNK)}) "
        f"SELECT coalesce(s.num, nextval('chunk_number')), {', '.join(f'r.{name}' for name in NEW_CHUNK)} "
        f"FROM {unnest(NEW_CHUNK)} LEFT JOIN chunk_staged s ON s.org = r.org AND s.document_id = r.document_id "
        "AND s.id = r.id AND s.scope = r.scope AND s.words = r.words AND s.model IS NOT DISTINCT FROM r.model "
        f"AND s.vector IS NOT DISTINCT FROM r.vector {UPSERT_CHUNK}"
    )
    #: A purge that comes later finds these rows, and after one nothing is added.
    STAGED_ADD = (
        "WITH there AS MATERIALIZED (SELECT 1 FROM document WHERE org = $1 AND id = $2 FOR KEY SHARE) "
        "INSERT INTO chunk_staged (org, document_id, scope, staged_ms, id, words, model, vector) "
        f"SELECT $1, $2, $3, $4, r.* FROM there CROSS JOIN {unnest(NEW_STAGED, 4)} ON CONFLICT DO NOTHING"
    )
    STAGED_LOCK = (
        "SELECT count(*) FROM (SELECT num FROM chunk_staged WHERE org = $1 AND document_id = $2 "
        "ORDER BY num FOR UPDATE) s"
    )
    STAGED_DROP = (
        f"DELETE FROM chunk_staged s USING {unnest({'org': 'text', 'document_id': 'text'})} "
        "WHERE s.org = r.org AND s.document_id = r.document_id"
    )
    STAGED_FORGET = (
        "DELETE FROM chunk_staged WHERE num IN "
        "(SELECT num FROM chunk_staged WHERE staged_ms < $1 LIMIT $2 FOR UPDATE SKIP LOCKED) RETURNING 1"
    )
    CHUNKS_GO = "SELECT set_config('perdure.chunks_go', $1, true)"
    CHUNK_DROP = (
        f"DELETE FROM chunk c USING {unnest({'org': 'text', 'document_id': 'text', 'id': 'text'})} "
        "WHERE c.org = r.org AND c.document_id = r.document_id AND c.id = r.id"
    )
    INDEXED_LOCK = f"{Dialect.INDEXED_LOCK} FOR UPDATE OF i"
    #: With those whose connections lead to them: who writes connections has locked both ends.
    INDEXED_LOCK_PURGE = (
        f"WITH gone AS (SELECT * FROM {unnest({'org': 'text', 'document_id': 'text'})}), "
        "ends AS (SELECT org, document_id FROM gone UNION SELECT n.org, n.document_id FROM gone g "
        "JOIN connection n ON n.org = g.org AND n.other_document_id = g.document_id), "
        "locked AS MATERIALIZED (SELECT i.org, i.document_id, i.expected FROM ends e JOIN indexed i "
        "ON i.org = e.org AND i.document_id = e.document_id ORDER BY i.org, i.document_id FOR UPDATE OF i) "
        "SELECT l.org, l.document_id, l.expected FROM locked l JOIN gone g "
        "ON g.org = l.org AND g.document_id = l.document_id"
    )
    #: Numbers of transactions: what is not below the oldest that was still open may not have been seen.
    INDEXED_SET = (
        "UPDATE indexed SET revision = $3, expected = $4, saved_ms = $5, generation = $6, "
        "change = CAST(CAST(pg_current_xact_id() AS text) AS bigint) WHERE org = $1 AND document_id = $2"
    )
    INDEXED_MARK = (
        "SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint), "
        "CAST(extract(epoch FROM pg_postmaster_start_time()) AS text) "
        "WHERE CAST($1 AS text) IS NOT NULL"
    )
    #: OFFSET 0: as a join, each row would be compared with all chunks of its organisation.
    CONNECTION_ADD = insert(
        "connection",
        NEW_CONNECTION,
        "WHERE EXISTS (SELECT 1 FROM chunk c WHERE c.org = r.org AND c.document_id = r.document_id "
        "AND c.id = r.chunk_id OFFSET 0) AND EXISTS (SELECT 1 FROM chunk c WHERE c.org = r.org "
        f"AND c.document_id = r.other_document_id AND c.id = r.other_id OFFSET 0) {UPSERT_CONNECTION}",
    )
    CONNECTION_DROP = (
        f"DELETE FROM connection n USING {unnest(dict(list(NEW_CONNECTION.items())[:5]))} WHERE n.org = r.org "
        "AND n.document_id = r.document_id AND n.chunk_id = r.chunk_id "
        "AND n.other_document_id = r.other_document_id AND n.other_id = r.other_id"
    )
    CONNECTION_CUT = (
        f"DELETE FROM connection n USING {unnest({'org': 'text', 'document_id': 'text', 'id': 'text'})} "
        "WHERE n.org = r.org AND n.document_id = r.document_id AND n.chunk_id = r.id"
    )
    CHUNK_VECTORS = (
        f"SELECT c.document_id, c.num, c.vector FROM {unnest({'document_id': 'text'}, 3)} JOIN chunk c "
        "ON c.org = $1 AND c.document_id = r.document_id AND c.model = $2 AND octet_length(c.vector) = $3"
    )
    #: With those that are staged: CHUNK_HITS leaves them out, and to look each up here takes as long as the search.
    CHUNK_FOUND = "SELECT num FROM chunk_text WHERE found @@ CAST(CAST($2 AS text) AS tsquery) LIMIT $1"
    CHUNK_WORDS = (
        f"SELECT c.words FROM {unnest({'document_id': 'text', 'most': 'bigint'}, 1)} CROSS JOIN LATERAL ("
        "SELECT words FROM chunk WHERE org = $1 AND document_id = r.document_id ORDER BY id LIMIT r.most) c"
    )
    CHUNK_HITS = (
        "SELECT c.num, c.document_id, c.id, c.text, c.anchor, c.page, d.name, c.heading, c.words, "
        "CASE WHEN c.model = $5 AND octet_length(c.vector) = $6 THEN c.vector END FROM chunk c "
        "JOIN document d ON d.org = c.org AND d.id = c.document_id "
        "WHERE c.org = $1 AND (CAST($2 AS text) IS NULL OR d.collection = $2) "
        "AND (CAST($3 AS text) IS NULL OR d.id = $3) AND c.num = ANY($4::bigint[])"
    )

    _OPEN_FLOWS = "flow f JOIN queue q ON q.name = f.queue JOIN lane l ON l.name = f.lane"
    _SERVED = (
        "f.queue = ANY({queues}::text[]) AND ({pipelines}::text[] IS NULL OR f.pipeline = ANY({pipelines}::text[])) "
        "AND NOT q.paused AND l.down_ms IS NULL"
    )
    #: The rest of a claim: the rows are locked, so they stay where they are.
    _TAKEN = (
        "UPDATE job j SET state = 'running', token = $1, worker = $2, attempts = j.attempts + 1, "
        "claims = j.claims + 1, claimed_ms = $3, lease_until_ms = CAST($3 AS bigint) + lease_ms, beat_ms = $3 "
        "FROM ready, document d WHERE j.ctid = ready.place AND d.org = j.org AND d.id = j.document_id "
        f"RETURNING {JOB_COLUMNS}, {DOCUMENT_COLUMNS}, ready.turn"
    )
    #: The rows are locked, so they stay where they are; by key, what the planner knows of young tables misleads it.
    _CLAIM = (
        "WITH ready AS MATERIALIZED (SELECT z.place, z.turn FROM (SELECT y.*, row_number() OVER ("
        "PARTITION BY y.suspect, y.large ORDER BY y.turn > 0, y.nth, y.which) AS place_in_all FROM ("
        f"SELECT x.ctid AS place, {TURN.format(vt='x.vt')} AS turn, k.*, array_position($4, f.queue) AS which, "
        f"row_number() OVER (PARTITION BY k.suspect, k.large, x.vt > 0, CASE WHEN x.vt > 0 THEN f.queue END "
        f"ORDER BY {TURN.format(vt='x.vt')}, x.priority DESC, x.id) AS nth "
        "FROM (VALUES (TRUE, NULL::boolean, $6::int), (FALSE, $7::boolean, $8::int), (FALSE, TRUE, $9::int)) "
        "AS k (suspect, large, most) "
        f"CROSS JOIN {_OPEN_FLOWS} CROSS JOIN LATERAL ("
        "SELECT ctid, id, vt, priority FROM job WHERE state = 'queued' AND queue = f.queue AND lane = f.lane "
        "AND pipeline = f.pipeline AND suspect = k.suspect ORDER BY vt, priority DESC, id LIMIT k.most "
        "FOR UPDATE SKIP LOCKED) x "
        f"WHERE {_SERVED.format(queues='$4', pipelines='$5')} AND (k.large IS NULL OR k.large = {IS_LARGE})"
        f") AS y) AS z WHERE z.place_in_all <= z.most LIMIT $10) {_TAKEN}"
    )
    _LOOK = (
        f"SELECT w.n, f.queue, f.lane, f.pipeline, {TURN.format(vt='x.vt')}, -x.priority, x.id, x.org, "
        "coalesce(x.home, f.lane) FROM unnest($4::float8[]) WITH ORDINALITY AS w (since, n) "
        f"CROSS JOIN {_OPEN_FLOWS} CROSS JOIN LATERAL ("
        "SELECT id, org, vt, priority, home FROM job WHERE state = 'queued' AND queue = f.queue AND lane = f.lane "
        "AND pipeline = f.pipeline AND suspect = $6 AND vt >= w.since - f.shift "
        "ORDER BY vt, priority DESC, id LIMIT $5) x "
        f"WHERE {_SERVED.format(queues='$1', pipelines='$2')} AND ($3::boolean IS NULL OR $3 = {IS_LARGE})"
    )
    _TAKE = (
        "WITH ready AS MATERIALIZED (SELECT k.ctid AS place, r.turn FROM "
        + unnest({"org": "text", "id": "bigint", "turn": "double precision"}, 3)
        + " JOIN job k ON k.org = r.org AND k.id = r.id AND k.state = 'queued' FOR UPDATE OF k SKIP LOCKED) "
        + _TAKEN
    )

    def keep_staged(self, org: str, document_id: str) -> Steps[None]:
        yield Query(self.STAGED_LOCK, (org, document_id))
        # a plan that was made while the table was empty would read all of it for every chunk
        yield Query("SELECT set_config('enable_seqscan', 'off', true)")

    def looked_up(self, scope: Sequence[str], asked: Sequence[Sequence[Term]], alone: bool) -> str:
        groups = ((f"({' <-> '.join(map(_quoted, term))})" for term in group) for group in asked)
        # what all chunks have need not be looked up, and would take half of the time
        within = [f"'in {word}'" for word in (scope[1:] if alone else scope)]
        return " & ".join([*within, *(f"({' | '.join(group)})" for group in groups)])

    def many(self, values: Sequence[int]) -> object:
        return list(values)

    def fence(
        self, saves: Sequence[Row], finished: Sequence[Row], order: Sequence[int], now_ms: int
    ) -> Steps[list[Row]]:
        if not saves or not finished:
            return (yield from super().fence(saves, finished, order, now_ms))
        both = {row[0]: (*row, None, None, False) for row in saves}
        for ordinal, org, id_, token, stage, worker, requests in finished:
            both[ordinal] = (ordinal, org, id_, token, stage, "", 0, False, worker, requests, True)
        return (yield Query(self._SAVE_AND_FINISH, (now_ms,), [both[n] for n in order]))

    def finish(self, finished: Sequence[Row], now_ms: int) -> Steps[list[Row]]:
        return (yield Query(self._FINISH, (now_ms,), finished))

    def claim(self, claim: Claim, now_ms: int, kinds: Sequence[Kind]) -> Steps[list[Row]]:
        suspects = sum(kind.most for kind in kinds if kind.suspect)
        large = sum(kind.most for kind in kinds if kind.large)
        others = [kind for kind in kinds if not kind.suspect and not kind.large]
        usual = others[0] if others else Kind(0)
        most = (suspects, usual.large, usual.most, large, suspects + usual.most + large)
        asked = (claim.token, claim.worker, now_ms, *_asked(claim), *most)
        return (yield Query(self._CLAIM, asked))

    def look(
        self, claim: Claim, large: bool | None, since: Sequence[float], window: int, suspect: bool = False
    ) -> Steps[list[Row]]:
        seen = yield Query(self._LOOK, (*_asked(claim), large, list(since), window, suspect))
        return [(row[0] - 1, *row[1:]) for row in seen]

    def take(self, claim: Claim, now_ms: int, chosen: Sequence[Row]) -> Steps[list[Row]]:
        rows = [(org, id_, turn) for turn, _, id_, org, _ in chosen]
        return (yield Query(self._TAKE, (claim.token, claim.worker, now_ms), rows)) if rows else []


def _asked(claim: Claim) -> tuple[list[str], list[str] | None]:
    """The queues and pipelines that a claim is for."""
    return list(claim.queues), None if claim.pipelines is None else list(claim.pipelines)
