"""SQLite's statements: one writer at a time, so no row locks; many rows are many runs of a prepared statement."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from perdure.core.words import Term
from perdure.store import rotation
from perdure.store.base import Query, Row, Steps
from perdure.store.counting import ADDED, NEW_COUNT
from perdure.store.dialect import (
    DEAD_RENEWED,
    DOCUMENT_COLUMNS,
    FENCE_SAVE,
    FENCE_SETTLE,
    FINISH,
    FINISH_ATTEMPT,
    FINISH_DOCUMENT,
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
    STATUS_FROM,
    UPSERT_CHUNK,
    UPSERT_CONNECTION,
    UPSERT_EMITTED,
    UPSERT_ITEM,
    UPSERT_SAVED,
    Dialect,
)
from perdure.store.fairness import FLOW_TIMES, NEW_TURN, PARKED, PARKED_FIRST
from perdure.store.feed import NEW_FEED
from perdure.store.operations import Claim, Kind
from perdure.store.serving import NEW_SERVED, SERVED_AGAIN


def _insert(table: str, columns: dict[str, str], conflict: str) -> str:
    values = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values}) {conflict}"


def _bind(template: str, columns: dict[str, str]) -> str:
    """`{r}name` → the parameter that carries that column, after the one scalar."""
    numbers = {name: n for n, name in enumerate(columns, 2)}
    return re.sub(r"\{r\}(\w+)", lambda m: f"${numbers[m[1]]}", template)


class SqliteDialect(Dialect):
    """SQLite's own statements."""

    name = "sqlite"
    one_writer = True
    POSITION = "instr"
    MIGRATED = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'migration'"
    WORKER_ADD = (
        "INSERT INTO worker (kind, name, queues, started_ms, beat_ms) SELECT $1, $2, $3, now_ms, now_ms "
        "FROM (SELECT coalesce($4, perdure_now()) AS now_ms) AS t RETURNING id"
    )
    WORKER_AGAIN = (
        "INSERT INTO worker (id, kind, name, queues, started_ms, beat_ms) VALUES ($1, 'worker', $2, $3, $4, $4) "
        "ON CONFLICT (id) DO NOTHING"
    )
    DOCUMENT_ADD = _insert("document", NEW_DOCUMENT, "ON CONFLICT DO NOTHING RETURNING org, id")
    FEED_ADD = _insert("feed", NEW_FEED, "")
    FEED = (
        "SELECT change, number, org, at_ms, name, document_id, data FROM feed WHERE org = $1 "
        "AND (change, number) > ($2, $3) AND change < 1 "
        "ORDER BY change, number LIMIT $4"
    )
    FEED_HEARD = (
        "NOT EXISTS (SELECT 1 FROM webhook w WHERE w.org = feed.org "
        "AND feed.number > CAST(substr(w.place, instr(w.place, '-') + 1) AS integer))"
    )
    FEED_END = "SELECT 0, coalesce(max(number), 0) FROM feed"
    _SAME = f"SELECT $1, d.id, {FOUND_STATE} FROM {STATUS_FROM} WHERE d.org = $2"
    DOCUMENT_SAME = f"{_SAME} AND d.pipeline = $4 AND d.dedupe = $5 UNION {_SAME} AND d.id = $3"
    WHICH = "({t}.org, {t}.{id}) = ($1, $2)"
    DOCUMENT_LOCK = f"{LOCK_DOCUMENT} WHERE {WHICH.format(t='d', id='id')}"
    DOCUMENT_LOCK_PURGE = DOCUMENT_LOCK
    DOCUMENT_SIZES = Dialect._SIZES.format(which=WHICH.format(t="d", id="id"))
    DOCUMENT_OPEN = (
        f"{OPEN_DOCUMENT} WHERE {WHICH.format(t='document', id='id')} RETURNING org, id, generation"
    )
    DOCUMENT_RESTORE = _insert("document", OLD_DOCUMENT, "ON CONFLICT DO NOTHING RETURNING org, id")
    DEAD_DROP = f"DELETE FROM dead WHERE {WHICH.format(t='dead', id='document_id')} AND {DEAD_RENEWED}"
    STATUSES = Dialect.STATUS
    JOBS_END = "SELECT org, id FROM job WHERE id > $2 ORDER BY id LIMIT 1 OFFSET $3"
    JOBS_LEFT = "SELECT count(*) FROM job WHERE id > $2"
    JOBS_PAGE = "(SELECT * FROM job WHERE id > $2 AND id <= $4 ORDER BY id LIMIT {size}) j"
    JOBS_OPEN = "SELECT key FROM job WHERE org = $1 AND document_id = $2 AND finished_ms IS NULL"
    ITEMS_SAVED = (
        "SELECT $2, count(*) FROM item WHERE org = $1 AND document_id = $2 AND pipeline = $3 AND stage = $4 "
        "AND generation = $5"
    )
    JOB_ADD = _insert("job", NEW_JOB, "ON CONFLICT (org, document_id, key) DO NOTHING")
    JOB_FOLLOW = f"{JOB_ADD} RETURNING org, key"
    JOB_REQUEUE = _insert("job", NEW_JOB, REQUEUE_JOB)
    COUNT_ADD = _insert("counter", {"client": "int", **NEW_COUNT}, ADDED)
    ATTEMPT_ADD = _insert("attempt", NEW_ATTEMPT, "ON CONFLICT DO NOTHING")
    DEAD_ADD = (
        f"INSERT INTO dead ({', '.join(NEW_DEAD)}, collection) "
        f"SELECT {', '.join(f'${n}' for n in range(1, len(NEW_DEAD) + 1))}, d.collection "
        "FROM document d WHERE d.org = $1 AND d.id = $2"
    )
    SAVED_ADD = _insert("saved", NEW_SAVED, UPSERT_SAVED)
    ITEM_ADD = _insert("item", NEW_ITEM, UPSERT_ITEM)
    EMITTED_ADD = _insert("emitted", NEW_EMITTED, UPSERT_EMITTED)
    TURNS = (
        "SELECT $1, $2, t.pipeline, t.lane, t.rank, t.vt, coalesce((SELECT weight FROM org WHERE name = $2), 1) "
        "FROM (SELECT 1) LEFT JOIN turn t ON t.queue = $1 AND t.org = $2"
    )
    TURN_SET = _insert(
        "turn",
        NEW_TURN,
        "ON CONFLICT (queue, org, lane, pipeline, rank) DO UPDATE SET vt = max(turn.vt, excluded.vt)",
    )
    SERVED_SET = _insert("served", NEW_SERVED, SERVED_AGAIN)
    FLOW_TIMES = FLOW_TIMES.format(flow="flow f") + " WHERE f.queue = $1 AND f.pipeline = $2 AND f.lane = $3"
    FENCE_SAVE = _bind(
        f"UPDATE job SET {SAVE_SET} WHERE id = {{r}}id AND token = {{r}}token AND state = 'running' RETURNING {{r}}ord",
        FENCE_SAVE,
    )
    FENCE_SETTLE = _bind(
        f"UPDATE job SET {SETTLE_SET} WHERE id = {{r}}id AND token = {{r}}token AND state = 'running' "
        "AND (NOT {r}expired_only OR lease_until_ms < $1) AND (NOT {r}taken_back OR stage = {r}stage) "
        "RETURNING {r}ord, state",
        FENCE_SETTLE,
    )
    HAND_OVER = _bind(
        f"UPDATE job SET {HAND_OVER_SET} WHERE id = {{r}}id AND token = {{r}}token RETURNING {{r}}ord",
        HAND_OVER,
    )
    OUTBOX_ADD = _insert("outbox", NEW_EVENT, "ON CONFLICT (event_id) DO NOTHING")
    OUTBOX_SENT = "DELETE FROM outbox WHERE id = $1"
    LEASE_BEGIN = (
        "UPDATE job SET lease_until_ms = $1 + $5 WHERE org = $2 AND id = $3 AND token = $4 "
        "AND lease_until_ms IS NULL"
    )
    _FINISH = _bind(
        f"UPDATE job SET {FINISH_SET} WHERE id = {{r}}id AND token = {{r}}token AND state = 'running' "
        "RETURNING {r}ord",
        FINISH,
    )
    _FINISH_ATTEMPT = _bind(
        f"{FINISH_ATTEMPT} FROM job j WHERE j.id = {{r}}id ON CONFLICT DO NOTHING".replace("{job}", "j."),
        FINISH,
    )
    _FINISH_DOCUMENT = (
        f"{FINISH_DOCUMENT} ({', '.join(KEPT)}) = (SELECT {', '.join(KEPT)} FROM job WHERE id = $2) "
        "WHERE (d.org, d.id) = "
        "(SELECT org, document_id FROM job WHERE id = $2 AND key = 'doc-' || document_id)"
    )
    BEAT = (
        "UPDATE job SET lease_until_ms = $1 + lease_ms, beat_ms = $1 "
        "WHERE id = $2 AND token = $3 AND state = 'running'"
    )
    BEAT_HELD = "SELECT id, token FROM job WHERE id = $1 AND token = $2 AND state = 'running'"
    DUE = (
        "SELECT id, org, queue, pipeline, lane, limit_key, claims, priority, run_at_ms, key FROM job "
        "WHERE state = 'waiting' AND run_at_ms <= $1 ORDER BY run_at_ms, id LIMIT $2"
    )
    DUE_LATEST = (
        "SELECT id, org, queue, pipeline, lane, limit_key, claims, priority, run_at_ms, key FROM job "
        "WHERE state = 'waiting' AND run_at_ms <= $1 ORDER BY run_at_ms DESC, id DESC LIMIT $2"
    )
    PROMOTE = "UPDATE job SET state = $3, vt = $4 WHERE org = $1 AND id = $2 AND state = 'waiting'"
    SLOT_ADD = _insert("slot", {"key": "text", "concurrency": "int"}, "ON CONFLICT DO NOTHING")
    SLOTS = "SELECT key, concurrency, rate_per_s, credit, credit_ms, had FROM slot WHERE key = $1"
    PARKED = PARKED.format(jobs="job x", which=f"AND x.id IN (SELECT id {PARKED_FIRST}) ")
    UNPARK = "UPDATE job SET state = 'queued', vt = $3 WHERE org = $1 AND id = $2 AND state = 'parked'"
    SLOTS_FREE = SLOTS
    GUARD = Dialect.GUARD.format(joined="group_concat(key)")
    GATE = (
        "UPDATE job SET state = 'parked', limit_own = limit_key, limit_key = $3 WHERE org = $1 AND id = $2 "
        "AND state = 'queued' RETURNING key, queue, lane, limit_own"
    )
    REGATE = "UPDATE job SET limit_key = $3 WHERE org = $1 AND id = $2 AND state = 'parked'"
    UNGATE = (
        "UPDATE job SET state = CASE WHEN limit_own IS NULL THEN 'queued' ELSE 'parked' END, limit_key = limit_own, "
        "limit_own = NULL, vt = $3 WHERE org = $1 AND id = $2 AND state = 'parked' "
        "RETURNING key, queue, lane, limit_key"
    )
    CALL_ADD = _insert("retry_metrics", NEW_CALL, "")
    CALLS_FORGET = (
        "DELETE FROM retry_metrics WHERE rowid IN "
        "(SELECT rowid FROM retry_metrics WHERE timestamp < $1 ORDER BY timestamp LIMIT $2) RETURNING 1"
    )
    HELD_READY = HELD_READY
    HELD_PARKED = HELD_PARKED
    LEND = f"UPDATE job SET {LEND_SET.format(job='job', vt='$4')} WHERE org = $2 AND id = $3"
    JOB_FREED = "UPDATE job SET limit_key = NULL WHERE org = $1 AND id = $2"
    UNLEND = "UPDATE job SET probe = NULL, home = NULL WHERE org = $1 AND id = $2"
    RECALL = (
        f"UPDATE job SET {RECALL_SET.format(job='job')} WHERE probe = $1 AND state IN ('queued', 'parked') "
        "RETURNING key, queue, lane, state, org, id, limit_key"
    )
    PARK = "UPDATE job SET state = 'parked' WHERE org = $1 AND id = $2"

    CHUNK_ADD = _insert("chunk", NEW_CHUNK, UPSERT_CHUNK)
    #: Under the number that its words have in the index; a new one if they are not there as they are now.
    CHUNK_ADD_STAGED = CHUNK_ADD.replace("INSERT INTO chunk (", "INSERT INTO chunk (num, ").replace(
        "VALUES (",
        "VALUES ((SELECT num FROM chunk_staged s WHERE s.org = $1 AND s.document_id = $2 AND s.id = $3 "
        f"AND s.scope = ${[*NEW_CHUNK].index('scope') + 1} AND s.words = ${[*NEW_CHUNK].index('words') + 1}), ",
    )
    STAGED_ADD = (
        "INSERT INTO chunk_staged (org, document_id, scope, staged_ms, id, words, num) "
        "SELECT $1, $2, $3, $4, $5, $6, $9 WHERE EXISTS (SELECT 1 FROM document WHERE org = $1 AND id = $2) "
        "ON CONFLICT DO NOTHING"
    )
    STAGED_DROP = "DELETE FROM chunk_staged WHERE org = $1 AND document_id = $2"
    STAGED_FORGET = (
        "DELETE FROM chunk_staged WHERE num IN (SELECT num FROM chunk_staged WHERE staged_ms < $1 LIMIT $2) "
        "RETURNING 1"
    )
    STAGED_LAST = (
        "SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'chunk'), 0), "
        "coalesce((SELECT max(num) FROM chunk_staged), 0))"
    )
    STAGED_RESERVE = (
        "UPDATE sqlite_sequence SET seq = max(seq, $1) WHERE name = 'chunk'",
        "INSERT INTO sqlite_sequence (name, seq) SELECT 'chunk', $1 "
        "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'chunk')",
    )
    #: One writes at a time, so one row is enough.
    CHUNKS_GO = (
        "INSERT INTO tally (name, value) VALUES ('chunks_go', $1 <> '') "
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    )
    CHUNK_DROP = "DELETE FROM chunk WHERE org = $1 AND document_id = $2 AND id = $3"
    INDEXED_SET = (
        "UPDATE indexed SET revision = $3, expected = $4, saved_ms = $5, generation = $6, "
        "change = (SELECT max(change) + 1 FROM indexed WHERE org = $1) WHERE org = $1 AND document_id = $2"
    )
    INDEXED_LOCK_PURGE = "SELECT org, document_id, expected FROM indexed WHERE org = $1 AND document_id = $2"
    INDEXED_MARK = "SELECT coalesce(max(change), 0) + 1, '' FROM indexed WHERE org = $1"
    CONNECTION_ADD = (
        f"INSERT INTO connection ({', '.join(NEW_CONNECTION)}) SELECT $1, $2, $3, $4, $5, $6, $7 "
        "WHERE EXISTS (SELECT 1 FROM chunk WHERE org = $1 AND document_id = $2 AND id = $3) "
        f"AND EXISTS (SELECT 1 FROM chunk WHERE org = $1 AND document_id = $4 AND id = $5) {UPSERT_CONNECTION}"
    )
    CONNECTION_DROP = (
        "DELETE FROM connection WHERE org = $1 AND document_id = $2 AND chunk_id = $3 AND other_document_id = $4 "
        "AND other_id = $5"
    )
    CONNECTION_CUT = "DELETE FROM connection WHERE org = $1 AND document_id = $2 AND chunk_id = $3"
    CHUNK_VECTORS = (
        "SELECT document_id, num, vector FROM chunk WHERE org = $1 AND model = $2 AND octet_length(vector) = $3 "
        "AND document_id = $4"
    )
    CHUNK_FOUND = (
        "SELECT rowid FROM chunk_text WHERE chunk_text MATCH $2 "
        "AND NOT EXISTS (SELECT 1 FROM chunk_staged s WHERE s.num = chunk_text.rowid) LIMIT $1"
    )
    CHUNK_WORDS = "SELECT words FROM chunk WHERE org = $1 AND document_id = $2 ORDER BY id LIMIT $3"
    #: In this order: by number, and not through all that the organisation has.
    CHUNK_HITS = (
        "SELECT c.num, c.document_id, c.id, c.text, c.anchor, c.page, d.name, c.heading, c.words, "
        "CASE WHEN c.model = $5 AND octet_length(c.vector) = $6 THEN c.vector END FROM json_each($4) j "
        "CROSS JOIN chunk c ON c.num = j.value CROSS JOIN document d ON d.org = c.org AND d.id = c.document_id "
        "WHERE c.org = $1 AND (CAST($2 AS text) IS NULL OR d.collection = $2) "
        "AND (CAST($3 AS text) IS NULL OR d.id = $3)"
    )

    _FLOWS = (
        f"SELECT f.queue, f.lane, f.pipeline, f.shift, {IS_LARGE} FROM flow f JOIN queue q ON q.name = f.queue "
        "JOIN lane l ON l.name = f.lane WHERE f.queue IN (SELECT value FROM json_each($1)) "
        "AND ($2 IS NULL OR f.pipeline IN (SELECT value FROM json_each($2))) AND NOT q.paused AND l.down_ms IS NULL"
    )
    _READY = (
        "SELECT vt, -priority, id FROM job WHERE state = 'queued' AND queue = $1 AND lane = $2 AND pipeline = $3 "
        "AND suspect = $4 ORDER BY vt, priority DESC, id LIMIT $5"
    )
    _LOOK = (
        "SELECT vt, -priority, id, org, coalesce(home, lane) FROM job WHERE state = 'queued' AND queue = $1 "
        "AND lane = $2 AND pipeline = $3 AND suspect = $6 AND vt >= $4 ORDER BY vt, priority DESC, id LIMIT $5"
    )
    _TAKE = (
        "UPDATE job SET state = 'running', token = $1, worker = $2, attempts = attempts + 1, claims = claims + 1, "
        "claimed_ms = $3, lease_until_ms = $3 + lease_ms, beat_ms = $3 WHERE id = $4"
    )
    _TAKEN = (
        f"SELECT {JOB_COLUMNS}, {DOCUMENT_COLUMNS} FROM job j "
        "JOIN document d ON d.org = j.org AND d.id = j.document_id WHERE j.id = $1"
    )

    def looked_up(self, scope: Sequence[str], asked: Sequence[Sequence[Term]], alone: bool) -> str:
        org, *narrower = scope  # each word begins with its organisation's
        phrases = ([f'"{" ".join(org + word for word in term)}"' for term in group] for group in asked)
        words = " AND ".join(f"({' OR '.join(group)})" for group in phrases)
        return " AND ".join([*(f'scope : "{word}"' for word in narrower), f"found : ({words})"])

    def many(self, values: Sequence[int]) -> object:
        return json.dumps(values)

    def finish(self, finished: Sequence[Row], now_ms: int) -> Steps[list[Row]]:
        accepted = yield Query(self._FINISH, (now_ms,), [row[:-2] for row in finished])
        ours = {row[0] for row in accepted}
        kept = [row for row in finished if row[0] in ours]
        if kept:
            yield Query(self._FINISH_ATTEMPT, (now_ms,), kept)
            yield Query(self._FINISH_DOCUMENT, (now_ms,), [(row[2],) for row in kept])
        return accepted

    def claim(self, claim: Claim, now_ms: int, kinds: Sequence[Kind]) -> Steps[list[Row]]:
        chosen: list[Row] = []
        flows = yield from self._flows(claim)
        for most, suspect, large, _ in kinds:
            ready: list[tuple[str, Row]] = []
            for *flow, shift, is_large in flows:
                if large is None or large == is_large:
                    for vt, rank, id_ in (yield Query(self._READY, (*flow, suspect, most))):
                        ready.append((flow[0], (vt + shift if vt > 0 else vt, rank, id_)))
            chosen += rotation.first(ready, most, claim.queues)
        return (yield from self.take(claim, now_ms, chosen))

    def _flows(self, claim: Claim) -> Steps[list[Row]]:
        served = None if claim.pipelines is None else json.dumps(claim.pipelines)
        return (yield Query(self._FLOWS, (json.dumps(claim.queues), served)))

    def look(
        self, claim: Claim, large: bool | None, since: Sequence[float], window: int, suspect: bool = False
    ) -> Steps[list[Row]]:
        seen: list[Row] = []
        for *flow, shift, is_large in (yield from self._flows(claim)):
            for n, turn in enumerate(since if large is None or large == is_large else ()):
                for vt, *job in (yield Query(self._LOOK, (*flow, turn - shift, window, suspect))):
                    seen.append((n, *flow, vt + shift if vt > 0 else vt, *job))
        return seen

    def take(self, claim: Claim, now_ms: int, chosen: Sequence[Row]) -> Steps[list[Row]]:
        if not chosen:
            return []
        ids = [(row[2],) for row in chosen]
        yield Query(self._TAKE, (claim.token, claim.worker, now_ms), rows=ids)
        taken = yield Query(self._TAKEN, rows=ids)
        return [(*row, one[0]) for row, one in zip(taken, chosen, strict=True)]
