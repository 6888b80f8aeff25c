"""The statements, written per database where speed or locking asks for it and shared otherwise.

Parameters are `$1, $2 …` in both (SQLite gets `?1`): first the scalars, then the columns of each row. A statement for
many rows runs once over arrays (`unnest`) on PostgreSQL and once per row on SQLite, with the same parameters.
Answers of many-row statements name the row they belong to by its ordinal, never by id.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from perdure.core.lane import LARGE
from perdure.core.limit_key import IS_DEPENDENCY, IS_GATE, IS_ORG
from perdure.core.model import GATHERING_MS, REPAIR
from perdure.core.words import Term
from perdure.store.base import Query, Row, Steps
from perdure.store.counting import CountingSql
from perdure.store.fairness import HEAD, FairnessSql
from perdure.store.lacking import IS_LACKED
from perdure.store.operations import Claim, Kind

#: A delay that stands for "until all that it spawned has ended".
GATHERS = -1
JOB_COLUMNS = (
    "j.id, j.org, j.key, j.document_id, j.pipeline, j.queue, "
    "CASE WHEN j.home IS NULL THEN j.lane ELSE j.home END, j.stage, j.token, j.generation, "
    "j.attempts, "
    "j.claims, j.postpones, j.releases, j.crashes, j.postponed_ms, j.suspect, j.attempts_max, j.policy, "
    "j.claimed_ms, "
    "j.lease_ms, j.fresh_from, j.priority, j.input, j.limit_key, j.worker, j.holds, j.progress_ms, j.probe, "
    "j.remote, j.flickers"
)
DOCUMENT_COLUMNS = (
    "d.id, d.org, d.collection, d.pipeline, d.kind, d.name, d.media_type, d.content_hash, d.size, "
    "d.inline, d.blob, "
    "d.meta, d.parent_id, d.created_ms"
)
#: The state of a document d with its job j and its lane l, as users see it.
LIVE_STATE = (
    "CASE WHEN d.state <> 'open' THEN d.state "
    "WHEN j.state IN ('queued', 'parked') AND l.down_ms IS NOT NULL THEN 'held' "
    "WHEN j.state = 'parked' THEN 'queued' ELSE j.state END"
)
#: The same for one whose job this very flush has yet to write.
FOUND_STATE = f"coalesce({LIVE_STATE}, 'queued')"
#: How it ended, or the last failure of a document that waits to be tried again.
_FAILURE = (
    "CASE WHEN d.state <> 'open' THEN d.error_{what} WHEN j.claims > 0 AND j.state <> 'running' THEN "
    "(SELECT a.{column} FROM attempt a WHERE a.org = d.org AND a.document_id = d.id AND a.job_key = j.key "
    "AND a.generation = j.generation AND a.error_code IS NOT NULL ORDER BY a.claim DESC LIMIT 1) END"
)
#: The job's row is pruned some time after its end; the document keeps what it said.
STATUS_COLUMNS = (
    f"d.id, d.org, d.collection, d.pipeline, d.name, {LIVE_STATE} AS live, coalesce(j.stage, d.stage) AS stage, "
    "d.generation, coalesce(j.attempts, d.attempts), coalesce(j.attempts_max, d.attempts_max), "
    "coalesce(j.claims, d.claims), j.suspect, d.degraded, "
    "CASE WHEN j.state = 'waiting' THEN j.run_at_ms END, coalesce(j.beat_ms, d.beat_ms), d.created_ms, d.finished_ms, "
    f"{_FAILURE.format(what='code', column='error_code')}, {_FAILURE.format(what='message', column='message')}, "
    "CASE WHEN j.state IN ('queued', 'parked') AND l.down_ms IS NOT NULL THEN l.name END, "
    "j.state = 'running' AND j.worker = 0"
)
STATUS_FROM = (
    "document d LEFT JOIN job j ON j.org = d.org AND j.document_id = d.id AND j.key = 'doc-' || d.id "
    "LEFT JOIN lane l ON l.name = j.lane"
)
NEW_DOCUMENT = {
    "org": "text", "id": "text", "collection": "text", "pipeline": "text", "kind": "text", "name": "text",
    "media_type": "text", "content_hash": "text", "size": "bigint", "inline": "bytea", "blob": "text",
    "meta": "bytea", "dedupe": "text", "parent_id": "text", "created_ms": "bigint",
}  # fmt: skip
#: a document as it left the store
OLD_DOCUMENT = NEW_DOCUMENT | {
    "state": "text", "generation": "int", "error_code": "text", "error_message": "text", "error_meta": "text",
    "finished_ms": "bigint",
}  # fmt: skip
NEW_JOB = {
    "org": "text", "key": "text", "document_id": "text", "pipeline": "text", "queue": "text", "lane": "text",
    "stage": "text", "state": "text", "priority": "int", "vt": "double precision", "run_at_ms": "bigint",
    "lease_ms": "int", "generation": "int", "attempts_max": "int", "policy": "text", "fresh_from": "text",
    "limit_key": "text", "input": "bytea", "created_ms": "bigint",
}  # fmt: skip
NEW_ATTEMPT = {
    "org": "text", "document_id": "text", "job_key": "text", "generation": "int", "claim": "int", "attempt": "int",
    "charged": "boolean", "token": "bigint", "stage": "text", "worker": "int", "started_ms": "bigint",
    "ended_ms": "bigint", "outcome": "text", "error_type": "text", "error_code": "text", "status_code": "int",
    "message": "text", "fingerprint": "text", "delay_ms": "bigint", "why": "text", "requests": "text",
    "traceback": "text",
}  # fmt: skip
NEW_SAVED = {
    "org": "text", "document_id": "text", "pipeline": "text", "stage": "text", "generation": "int", "version": "int",
    "model": "text", "input_hash": "text", "output_hash": "text", "size": "bigint", "inline": "bytea", "blob": "text",
    "token": "bigint", "saved_ms": "bigint", "duration_ms": "bigint", "degraded": "boolean",
}  # fmt: skip
NEW_ITEM = {
    "org": "text", "document_id": "text", "pipeline": "text", "stage": "text", "generation": "int", "key": "text",
    "fingerprint": "text", "size": "bigint", "inline": "bytea", "blob": "text", "token": "bigint",
}  # fmt: skip
NEW_EMITTED = {
    "org": "text", "document_id": "text", "name": "text", "key": "text", "data": "bytea", "pipeline": "text",
    "stage": "text", "fingerprint": "text", "generation": "int", "written_ms": "bigint",
}  # fmt: skip
NEW_CALL = {
    "api_name": "text", "retry_count": "int", "success": "boolean", "latency_ms": "bigint", "timestamp": "bigint",
    "added_ms": "bigint",
}  # fmt: skip
NEW_CHUNK = {
    "org": "text", "document_id": "text", "id": "text", "position": "int", "starts": "int", "ends": "int",
    "anchor": "text", "page": "int", "model": "text", "vector": "bytea", "heading": "text", "text": "text",
    "scope": "text", "words": "text",
}  # fmt: skip
NEW_STAGED = {"id": "text", "words": "text", "model": "text", "vector": "bytea"}
NEW_CONNECTION = {
    "org": "text", "document_id": "text", "chunk_id": "text", "other_document_id": "text", "other_id": "text",
    "score": "double precision", "model": "text",
}  # fmt: skip
#: a dead document or follow-up job, without its collection, which is read from the document
NEW_DEAD = {
    "org": "text", "document_id": "text", "pipeline": "text", "queue": "text", "lane": "text", "stage": "text",
    "error_type": "text", "error_code": "text", "status_code": "int", "fingerprint": "text", "attempts": "int",
    "generation": "int", "died_ms": "bigint", "job": "text", "message": "text",
}  # fmt: skip
#: what a saved job becomes
FENCE_SAVE = {
    "ord": "int", "org": "text", "id": "bigint", "token": "bigint", "stage": "text", "lane": "text",
    "lease_ms": "int", "suspect": "boolean",
}  # fmt: skip
#: what a settled job becomes
FENCE_SETTLE = {
    "ord": "int", "org": "text", "id": "bigint", "token": "bigint", "expired_only": "boolean",
    "taken_back": "boolean", "state": "text", "stage": "text", "lane": "text", "delay_ms": "bigint",
    "attempts": "int", "postpones": "int", "postponed_ms": "bigint", "releases": "int", "crashes": "int",
    "holds": "int", "flickers": "int", "suspect": "boolean", "terminal": "boolean", "aside": "boolean",
}  # fmt: skip
#: a job whose every stage is saved
FINISH = {
    "ord": "int", "org": "text", "id": "bigint", "token": "bigint", "stage": "text", "worker": "int",
    "requests": "text",
}  # fmt: skip
#: a job that another service works on from now on
HAND_OVER = {
    "ord": "int", "org": "text", "id": "bigint", "token": "bigint", "stage": "text", "lane": "text",
    "next_token": "bigint", "remote": "text",
}  # fmt: skip
HAND_OVER_SET = (
    "token = {r}next_token, worker = 0, stage = {r}stage, lane = {r}lane, lease_until_ms = NULL, beat_ms = $1, "
    "remote = {r}remote"
)
NEW_EVENT = {
    "event_id": "text", "org": "text", "document_id": "text", "name": "text", "payload": "text", "job_id": "bigint",
    "token": "bigint", "wait_ms": "bigint", "created_ms": "bigint", "due_ms": "bigint",
}  # fmt: skip
WHY_DONE = "every stage is saved"
_FINISHED_ATTEMPT = (
    "org", "document_id", "job_key", "generation", "claim", "attempt", "charged", "token", "stage", "worker",
    "started_ms", "ended_ms", "outcome", "why", "requests",
)  # fmt: skip
FINISH_SET = (
    "state = 'done', stage = {r}stage, token = NULL, worker = NULL, lease_until_ms = NULL, run_at_ms = $1, "
    "suspect = FALSE, finished_ms = $1"
)
#: The history of a finished job follows from its row; {job} names it, {r} what came with the finish.
FINISH_ATTEMPT = (
    f"INSERT INTO attempt ({', '.join(_FINISHED_ATTEMPT)}) SELECT {{job}}org, {{job}}document_id, {{job}}key, "
    "{job}generation, {job}claims, {job}attempts, TRUE, {r}token, {r}stage, {r}worker, {job}claimed_ms, $1, 'done', "
    f"'{WHY_DONE}', {{r}}requests "
)
#: A new generation begins.
OPEN_DOCUMENT = (
    "UPDATE document SET state = 'open', finished_ms = NULL, error_code = NULL, error_message = NULL, "
    "error_meta = NULL, generation = generation + 1, degraded = degraded AND EXISTS (SELECT 1 FROM job j "
    "WHERE j.org = document.org AND j.document_id = document.id AND j.finished_ms IS NULL "
    f"AND j.key LIKE '%/{REPAIR}%')"
)
#: A repair whose own stage is repaired may still run the stages that depend on it.
LOCK_DOCUMENT = (
    "SELECT d.org, d.id, d.state, d.generation, d.degraded OR EXISTS (SELECT 1 FROM job j WHERE j.org = d.org "
    f"AND j.document_id = d.id AND j.finished_ms IS NULL AND j.key LIKE '%/{REPAIR}%'), d.collection FROM document d"
)
#: What a document keeps of its main job: the status of a document must not change when the job's row is pruned.
KEPT = ("stage", "attempts", "attempts_max", "claims", "beat_ms")
FINISH_DOCUMENT = (
    "UPDATE document AS d SET state = 'done', finished_ms = $1, error_code = NULL, error_message = NULL, "
    "error_meta = NULL, "
)


def excluded(columns: dict[str, str], *keys: str) -> str:
    """`a = excluded.a, …` for every column that is not part of the key."""
    return ", ".join(f"{name} = excluded.{name}" for name in columns if name not in keys)


_SAVED_KEY = ("org", "document_id", "pipeline", "stage", "generation")
UPSERT_SAVED = f"ON CONFLICT ({', '.join(_SAVED_KEY)}) DO UPDATE SET {excluded(NEW_SAVED, *_SAVED_KEY)}"
UPSERT_ITEM = (
    f"ON CONFLICT ({', '.join(_SAVED_KEY)}, key) DO UPDATE SET {excluded(NEW_ITEM, *_SAVED_KEY, 'key')}"
)
UPSERT_EMITTED = "ON CONFLICT (org, document_id, name, key) DO UPDATE SET " + excluded(
    NEW_EMITTED, "org", "document_id", "name", "key"
)
#: What is there as it should be is not written again, so a repeated save touches no index.
UPSERT_CHUNK = (
    f"ON CONFLICT (org, document_id, id) DO UPDATE SET {excluded(NEW_CHUNK, 'org', 'document_id', 'id')} WHERE "
    + " OR ".join(
        f"chunk.{name} IS DISTINCT FROM excluded.{name}"
        for name in (
            "position",
            "starts",
            "ends",
            "anchor",
            "page",
            "model",
            "vector",
            "heading",
            "text",
            "scope",
            "words",
        )
    )
)
UPSERT_CONNECTION = (
    "ON CONFLICT (org, document_id, chunk_id, other_document_id, other_id) "
    "DO UPDATE SET score = excluded.score, model = excluded.model "
    "WHERE connection.score <> excluded.score OR connection.model <> excluded.model"
)
#: Of a document `d`: its newest save of a stage, as {s}.
NEWEST_SAVE = (
    "{s}.org = d.org AND {s}.document_id = d.id AND {s}.pipeline = d.pipeline AND {s}.stage = {stage} "
    "AND {s}.generation = (SELECT max(x.generation) FROM saved x WHERE x.org = d.org AND x.document_id = d.id "
    "AND x.pipeline = d.pipeline AND x.stage = {stage})"
)
REQUEUE_JOB = (
    "ON CONFLICT (org, document_id, key) DO UPDATE SET "
    + excluded(NEW_JOB, "org", "key", "document_id", "created_ms")
    + ", suspect = FALSE, token = NULL, worker = NULL, claimed_ms = NULL, lease_until_ms = NULL, attempts = 0, "
    "claims = 0, postpones = 0, postponed_ms = 0, releases = 0, crashes = 0, holds = 0, flickers = 0, "
    "finished_ms = NULL, "
    "probe = NULL, home = NULL, limit_own = NULL, aside_ms = NULL, requeues = 0, requeued_ms = NULL"
)
#: What a new generation makes again, of dead rows; a hook that failed told of the generation before.
DEAD_RENEWED = "(job = '' OR substr(job, 1, 3) <> 'on_')"
#: Jobs that wait in a flow that is closed, in the order of their turns.
_HELD = "SELECT suspect, vt, -priority, id, org, limit_key, key, queue, pipeline, lane, state FROM job WHERE"
_HELD_IN = "AND queue = $2 AND pipeline = $3 AND lane = $4"
_HELD_ORDER = "AND holds <= $1 ORDER BY vt, priority DESC, id LIMIT"
HELD_READY = f"{_HELD} state = 'queued' {_HELD_IN} AND suspect = $5 {_HELD_ORDER} $6"
HELD_PARKED = (
    f"{_HELD} limit_key IS NOT NULL AND finished_ms IS NULL AND state = 'parked' {_HELD_IN} {_HELD_ORDER} $5"
)
#: It stands in a lane without needs and can be claimed; under a limit it must be let in first.
LEND_SET = (
    "probe = $1, home = lane, home_vt = nullif({job}.vt, 0), "
    f"lane = CASE WHEN lane LIKE '%{LARGE}' THEN '{LARGE}' ELSE '' END, vt = {{vt}}, "
    "state = CASE WHEN limit_key IS NULL THEN 'queued' ELSE 'parked' END"
)
#: The job gets its old turn back. $2: the dependency was up since then, and a release could not recall the job because
#: it was locked; its old turn lies far back, so the job becomes the first of its flow instead.
RECALL_SET = (
    "lane = home, home = NULL, probe = NULL, vt = CASE WHEN vt > 0 THEN coalesce("
    "CASE WHEN $2 THEN NULL ELSE home_vt END, (SELECT coalesce(({head}), {job}.vt - f.shift) "
    "FROM flow f WHERE f.queue = {job}.queue AND f.pipeline = {job}.pipeline AND f.lane = {job}.home)) ELSE vt END"
).replace("{head}", HEAD)
#: Of a flow f: it is one of large documents.
IS_LARGE = f"(f.lane LIKE '%{LARGE}')"
#: Of a job: neither its lane is down nor its queue paused.
IN_SERVICE = (
    "lane NOT IN (SELECT name FROM lane WHERE down_ms IS NOT NULL) "
    "AND queue NOT IN (SELECT name FROM queue WHERE paused)"
)
SETTLE_SET = (
    # whoever settles it may not have heard that it is past its limit
    "state = CASE WHEN {r}state = 'parked' AND limit_key IS NULL THEN 'queued' ELSE {r}state END, "
    "stage = {r}stage, lane = {r}lane, token = NULL, worker = NULL, lease_until_ms = NULL, "
    f"run_at_ms = CASE WHEN {{r}}delay_ms = {GATHERS} THEN {GATHERING_MS} ELSE CAST($1 AS bigint) + {{r}}delay_ms END, "
    "attempts = {r}attempts, postpones = {r}postpones, "
    "postponed_ms = {r}postponed_ms, releases = {r}releases, crashes = {r}crashes, holds = {r}holds, "
    "flickers = {r}flickers, "
    "suspect = {r}suspect, vt = 0, "
    "finished_ms = CASE WHEN {r}terminal THEN $1 END, "
    "aside_ms = CASE WHEN {r}aside THEN coalesce(aside_ms, run_at_ms) END"
)
SAVE_SET = (
    "stage = {r}stage, lane = {r}lane, lease_ms = {r}lease_ms, lease_until_ms = CAST($1 AS bigint) + "
    "{r}lease_ms, "
    "beat_ms = $1, progress_ms = $1, suspect = {r}suspect"
)


#: Every organisation that has documents, one look at the key for each.
_ORGS = (
    "WITH RECURSIVE o (name) AS (SELECT min(org) FROM document UNION ALL "
    "SELECT (SELECT min(d.org) FROM document d WHERE d.org > o.name) FROM o WHERE o.name IS NOT NULL)"
)
ORGS = f"{_ORGS} SELECT name FROM o WHERE name IS NOT NULL"


_BOUNDS = "(concurrency IS NOT NULL OR rate_per_s IS NOT NULL)"
#: $1: a key. $2, $3: its new bounds.
LIMIT_CHANGES = (
    "NOT EXISTS (SELECT 1 FROM slot s WHERE s.key = $1 AND s.concurrency IS NOT DISTINCT FROM $2 "
    "AND s.rate_per_s IS NOT DISTINCT FROM $3)"
)


class Dialect(CountingSql, FairnessSql, ABC):
    """Statements that both databases take as they are."""

    name: str
    POSITION: str  # the function that finds a text in another one
    one_writer = False  # whether one transaction writes at a time
    GUARD = (
        "UPDATE worker SET flush = $2, beat_ms = coalesce(CAST($3 AS bigint), perdure_now()) "
        "WHERE id = $1 AND flush = $2 - 1 RETURNING beat_ms, (SELECT max(needs) FROM migration), "
        f"EXISTS (SELECT 1 FROM slot WHERE {IS_ORG.format(key='key')} AND {_BOUNDS}), "
        f"(SELECT {{joined}} FROM slot WHERE {IS_DEPENDENCY.format(key='key')} AND {_BOUNDS})"
    )
    WORKER_FENCED = "UPDATE worker SET fenced = fenced + $2 WHERE id = $1"
    FLUSH_NUMBER = "SELECT flush FROM worker WHERE id = $1"
    FLUSH_SEEN = "UPDATE worker SET flush = flush WHERE id = $1"
    NOW = "SELECT coalesce(CAST($1 AS bigint), perdure_now())"
    WORKER_DROP = "DELETE FROM worker WHERE id = $1 RETURNING fenced"
    WORKER_BEAT = "UPDATE worker SET beat_ms = $2, silent_since_ms = $3 WHERE id = $1 RETURNING id"
    WORKER_IDLE = "UPDATE worker SET idle = $2 WHERE id = $1 AND idle <> $2"
    WORKERS = (
        "SELECT w.id, w.kind, w.name, w.queues, w.started_ms, w.beat_ms, "
        "(SELECT count(*) FROM job j WHERE j.state = 'running' AND j.worker = w.id), w.fenced, "
        "w.silent_since_ms, w.about FROM worker w ORDER BY w.started_ms, w.id"
    )
    WORKER_ABOUT = "UPDATE worker SET about = $2 WHERE id = $1 AND coalesce(about, '') <> $2"
    #: What each organisation has of a worker: documents in hand, and the large ones of them.
    IN_HAND_OF = (
        f"SELECT worker, org, count(*), sum(CASE WHEN coalesce(home, lane) LIKE '%{LARGE}' THEN 1 ELSE 0 END) "
        "FROM job WHERE state = 'running' AND worker > 0 GROUP BY worker, org ORDER BY worker, count(*) DESC, org"
    )
    #: Those that have written nothing since.
    CLIENTS = "SELECT id FROM worker WHERE kind = 'client' AND beat_ms < $1 ORDER BY id"
    PEERS = "SELECT id, beat_ms FROM worker WHERE kind = 'worker' ORDER BY id"
    TALLY_ADD = (
        "INSERT INTO tally (name, value) VALUES ($1, $2) "
        "ON CONFLICT (name) DO UPDATE SET value = tally.value + excluded.value"
    )
    TALLY = "SELECT value FROM tally WHERE name = $1"
    FENCED = (
        "SELECT coalesce((SELECT sum(fenced) FROM worker), 0) + "
        "coalesce((SELECT value FROM tally WHERE name = 'fenced'), 0)"
    )
    QUEUE_ADD = "INSERT INTO queue (name) VALUES ($1) ON CONFLICT (name) DO NOTHING"
    QUEUE_PAUSE = (
        "INSERT INTO queue (name, paused) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET paused = "
        "excluded.paused"
    )
    QUEUES = "SELECT name, paused FROM queue ORDER BY name"
    LANES_LOCK = "SELECT coalesce(CAST($1 AS bigint), perdure_now()) FROM lane WHERE name = ''"
    LANES_DOWN = "SELECT name FROM lane WHERE down_ms IS NOT NULL"
    LANE_ADD = "INSERT INTO lane (name, down_ms, reason) VALUES ($1, $2, $3) ON CONFLICT (name) DO NOTHING"
    LANE_SET = "UPDATE lane SET down_ms = $2, reason = $3 WHERE name = $1"
    LANES = "SELECT name, down_ms, reason FROM lane ORDER BY name"
    DEPENDENCY_HOLD = (
        "INSERT INTO dependency (name, down_ms, reason, held_by, probe_at_ms) VALUES ($1, $2, $3, $4, $5) "
        "ON CONFLICT (name) DO UPDATE SET down_ms = excluded.down_ms, reason = excluded.reason, "
        "held_by = excluded.held_by, probe_at_ms = excluded.probe_at_ms, probes = 0, ramp_per_s = NULL, "
        "ramp_ms = NULL, lent_ms = NULL"
    )
    DEPENDENCY_RELEASE = (
        "UPDATE dependency SET down_ms = NULL, reason = NULL, held_by = NULL, probe_at_ms = NULL, probes = 0, "
        "ramp_per_s = NULL, ramp_ms = NULL, lent_ms = NULL WHERE name = $1"
    )
    DEPENDENCY_PROBE = (
        "UPDATE dependency SET probes = $2, probe_at_ms = $3, ramp_per_s = NULL, ramp_ms = NULL, lent_ms = NULL "
        "WHERE name = $1"
    )
    DEPENDENCY_RAMP = (
        "UPDATE dependency SET ramp_per_s = $2, ramp_ms = $3, lent_ms = $4, probe_at_ms = NULL, ramp_good = $5, "
        "ramp_bad = $6, ramp = $7 WHERE name = $1"
    )
    DEPENDENCY_RAMPS = (
        "UPDATE dependency SET ramp_good = ramp_good + $2, ramp_bad = ramp_bad + $3 WHERE name = $1"
    )
    DEPENDENCIES_HELD = (
        "SELECT name, down_ms, held_by, probe_at_ms, probes, ramp_ms, lent_ms, nominal_per_s, ramp_per_s, ramp_good, "
        "ramp_bad, ramp, pace FROM dependency WHERE down_ms IS NOT NULL ORDER BY name"
    )
    DEPENDENCY_ADD = "INSERT INTO dependency (name, counted_ms) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING"
    DEPENDENCY_SHARED = (
        "SELECT down_ms, reason, tokens, nominal_per_s, counted, counted_ms, pace, ramp_ms FROM dependency "
        "WHERE name = $1"
    )
    DEPENDENCY_KNOWN = "SELECT down_ms, reason, tokens, pace, ramp_ms FROM dependency WHERE name = $1"
    DEPENDENCY_TOLD = (
        "UPDATE dependency SET tokens = $2, nominal_per_s = $3, counted = $4, counted_ms = $5, pace = $6 "
        "WHERE name = $1"
    )
    DEPENDENCIES = (
        "SELECT name, down_ms, reason, held_by, probe_at_ms, probes, ramp_per_s, ramp_ms, nominal_per_s, tokens, pace "
        "FROM dependency ORDER BY name"
    )
    REPORTER_SEEN = (
        "INSERT INTO dependency_worker (name, worker, seen_ms, rate, in_flight, looking) "
        "VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (name, worker) DO UPDATE SET seen_ms = excluded.seen_ms, "
        "rate = excluded.rate, in_flight = excluded.in_flight, looking = excluded.looking"
    )
    REPORTERS = (
        "SELECT seen_ms, rate, in_flight, looking FROM dependency_worker WHERE name = $1 AND seen_ms > $2 "
        "ORDER BY worker"
    )
    REPORTERS_OF_ALL = (
        "SELECT name, seen_ms, rate, in_flight, looking FROM dependency_worker WHERE seen_ms > $1 "
        "ORDER BY name, worker"
    )
    REPORTERS_FORGET = "DELETE FROM dependency_worker WHERE seen_ms < $1"
    CALLS_COUNT = (
        "SELECT api_name, count(*), sum(CASE WHEN retry_count > 0 THEN 1 ELSE 0 END), "
        "sum(CASE WHEN retry_count > 0 AND success THEN 1 ELSE 0 END), CAST(sum(retry_count) AS bigint), "
        "sum(CASE WHEN success THEN 0 ELSE 1 END) FROM retry_metrics WHERE timestamp >= $1 "
        "GROUP BY api_name ORDER BY api_name"
    )
    #: The longest ones first: what is left after the first few of a hundred is what the others stay within.
    CALLS_ADDED = (
        "SELECT added_ms FROM retry_metrics WHERE api_name = $1 AND timestamp >= $2 AND retry_count > 0 "
        "ORDER BY added_ms DESC LIMIT 1 OFFSET $3"
    )
    SERVED = "SELECT queues FROM worker WHERE kind = 'worker'"
    DEPENDENCIES_DOWN = "SELECT name, down_ms, reason FROM dependency WHERE down_ms IS NOT NULL ORDER BY name"
    ORG_WEIGH = (
        "INSERT INTO org (name, weight) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET weight = "
        "excluded.weight"
    )
    SLOT_SET = (
        "INSERT INTO slot (key, concurrency, rate_per_s, credit_ms) VALUES ($1, $2, $3, $4) ON CONFLICT "
        "(key) "
        "DO UPDATE SET concurrency = excluded.concurrency, rate_per_s = excluded.rate_per_s"
    )
    #: Limits of organisations and dependencies, and whether somebody waits under them.
    GATES = (
        "SELECT s.key, s.concurrency, s.rate_per_s, s.credit, s.credit_ms, s.had, EXISTS (SELECT 1 FROM job j "
        "WHERE j.limit_key = s.key AND j.finished_ms IS NULL AND j.state = 'parked') "
        f"FROM slot s WHERE {IS_GATE.format(key='s.key')} AND {_BOUNDS} ORDER BY s.key"
    )
    GATES_LOCK = GATES
    IN_USE = (
        "SELECT org, coalesce(home, lane), count(*) FROM job WHERE state = 'running' "
        "GROUP BY org, coalesce(home, lane)"
    )
    SLOT_HAD = "UPDATE slot SET had = $2 WHERE key = $1"
    SLOT_CREDIT = "UPDATE slot SET credit = $2, credit_ms = $3 WHERE key = $1"
    #: What is held or paused uses no room; it is parked again when its lane or queue opens.
    SLOT_USED = (
        "SELECT count(*) FROM job WHERE limit_key = $1 AND finished_ms IS NULL AND state IN ('queued', 'running') "
        f"AND (state = 'running' OR ({IN_SERVICE}))"
    )
    PARK_LANE = (
        "UPDATE job SET state = 'parked' WHERE limit_key IS NOT NULL AND finished_ms IS NULL AND state = "
        "'queued' AND lane = $1 RETURNING key, queue, lane"
    )
    PARK_QUEUE = (
        "UPDATE job SET state = 'parked' WHERE limit_key IS NOT NULL AND finished_ms IS NULL AND state = "
        "'queued' AND queue = $1 RETURNING key, queue, lane"
    )
    #: Ready ones of a key whose limit is about to become another one.
    PARK_KEY = (
        "UPDATE job SET state = 'parked' WHERE limit_key = $1 AND finished_ms IS NULL AND state = 'queued' AND "
        f"{LIMIT_CHANGES} RETURNING key, queue, lane"
    )
    PARK_LACKED = (
        "UPDATE job SET state = 'parked' WHERE limit_key IS NOT NULL AND finished_ms IS NULL AND state = "
        f"'queued' AND {IS_LACKED.format(now='$1')} RETURNING key, queue, lane"
    )
    PARKED_KEYS = (
        "SELECT DISTINCT limit_key FROM job WHERE limit_key IS NOT NULL AND finished_ms IS NULL AND state "
        "= 'parked'"
    )
    ACT_ADD = "INSERT INTO act (at_ms, who, verb, org, target, reason) VALUES ($1, $2, $3, $4, $5, $6)"
    ACT_ADD_FLUSHED = (
        "INSERT INTO act (flush, at_ms, who, verb, org, target, reason) VALUES ($1, $2, $3, $4, $5, $6, $7)"
    )

    IN_HAND = f"SELECT {JOB_COLUMNS} FROM job j WHERE j.state = 'running' AND j.worker = $1 ORDER BY j.id"
    EXPIRED = (
        f"SELECT {JOB_COLUMNS} FROM job j WHERE j.state = 'running' AND j.lease_until_ms < "
        "(SELECT coalesce(CAST($1 AS bigint), perdure_now())) ORDER BY j.worker, j.id LIMIT $2"
    )
    EXPIRED_SINCE = (
        "SELECT j.id, j.token, j.lease_until_ms, t.now_ms - j.lease_until_ms FROM job j, "
        "(SELECT coalesce(CAST($1 AS bigint), perdure_now()) AS now_ms) AS t "
        "WHERE j.state = 'running' AND j.lease_until_ms < t.now_ms ORDER BY j.worker, j.id LIMIT $2"
    )
    NEGLECTED = (
        "SELECT t.now_ms - (SELECT min(lease_until_ms) FROM job WHERE state = 'running'), "
        "t.now_ms - (SELECT min(run_at_ms) FROM job WHERE state = 'waiting'), "
        "t.now_ms - (SELECT min(CASE WHEN ramp_ms IS NULL THEN probe_at_ms ELSE lent_ms END) FROM dependency "
        "WHERE held_by = 'breaker') "
        "FROM (SELECT coalesce(CAST($1 AS bigint), perdure_now()) AS now_ms) AS t"
    )
    CLAIMED_AGAIN = (
        f"SELECT {JOB_COLUMNS}, {DOCUMENT_COLUMNS} FROM job j JOIN document d ON d.org = j.org AND d.id = "
        f"j.document_id "
        "WHERE j.state = 'running' AND j.worker = $1 AND j.token = $2"
    )
    #: By token alone a settle that was refused would pass for the recovery that came before it.
    SETTLED_AGAIN = (
        "SELECT 1 FROM attempt WHERE org = $1 AND document_id = $2 AND job_key = $3 AND generation = $4 "
        "AND token = $5 AND outcome = $6 AND why = $7"
    )
    #: Of this very flush: the same may have been done before, and others may have acted since.
    ACTED_AGAIN = "SELECT 1 FROM act WHERE org = $1 AND target = $2 AND verb = $3 AND who = $4 AND flush = $5"
    SAVED_AGAIN = "SELECT 1 FROM job WHERE org = $1 AND id = $2 AND token = $3 AND state = 'running'"

    DOCUMENT_END = (
        "UPDATE document SET state = $3, finished_ms = $4, error_code = $5, error_message = $6, "
        f"error_meta = $7, ({', '.join(KEPT)}) = (SELECT {', '.join(KEPT)} FROM job WHERE org = $1 "
        "AND document_id = $2 AND key = 'doc-' || $2) WHERE org = $1 AND id = $2 RETURNING org, collection, state"
    )
    DOCUMENT_DEGRADED = (
        "UPDATE document SET degraded = EXISTS (SELECT 1 FROM saved s WHERE s.org = $1 AND s.document_id = $2 "
        "AND s.generation = document.generation AND s.degraded) WHERE org = $1 AND id = $2"
    )
    #: What fallbacks gave, once a repair has done without it: under names that its release does not have.
    SAVED_REPAIRED = (
        "DELETE FROM saved WHERE org = $1 AND document_id = $2 AND pipeline = $3 AND generation = $4 AND degraded "
        "RETURNING stage"
    )
    DOCUMENT_COLLECTION = "SELECT collection FROM document WHERE org = $1 AND id = $2"
    DOCUMENT_HASH = "SELECT content_hash FROM document WHERE org = $1 AND id = $2"
    #: Of documents as d: {which}. The size of the document, or of the largest output that a stage gave: a stage that is
    #: not run again does not say so again.
    _SIZES = (
        "SELECT d.org, d.id, d.size, coalesce((SELECT max(s.size) FROM saved s WHERE s.org = d.org "
        "AND s.document_id = d.id AND s.pipeline = d.pipeline), 0) FROM document d WHERE {which}"
    )
    DOCUMENT_SIZES: str
    DOCUMENT_NAME = "UPDATE document SET name = $3 WHERE org = $1 AND id = $2"
    DOCUMENT_CONTENT = (
        "UPDATE document SET kind = $3, name = $4, media_type = $5, content_hash = $6, size = $7, inline = $8, "
        "blob = $9, meta = $10 WHERE org = $1 AND id = $2"
    )
    JOB_RUNNING = (
        f"SELECT {JOB_COLUMNS} FROM job j WHERE j.org = $1 AND j.document_id = $2 AND j.state = 'running' "
        f"AND (j.generation >= $3 OR j.key LIKE '%/{REPAIR}%' AND j.pipeline = coalesce(CAST($4 AS text), j.pipeline))"
    )
    JOBS_LIVE = (
        "SELECT id, key, queue, lane, CASE WHEN worker = 0 THEN 'remote' ELSE state END FROM job "
        "WHERE org = $1 AND document_id = $2 AND finished_ms IS NULL "
        f"AND (generation >= $3 OR key LIKE '%/{REPAIR}%' AND pipeline = coalesce(CAST($4 AS text), pipeline))"
    )
    JOB_CANCEL = (
        "UPDATE job SET state = 'cancelled', token = NULL, worker = NULL, lease_until_ms = NULL, "
        "finished_ms = $4, probe = NULL, home = NULL "
        "WHERE org = $1 AND document_id = $2 AND finished_ms IS NULL "
        f"AND (generation >= $3 OR key LIKE '%/{REPAIR}%' AND pipeline = coalesce(CAST($5 AS text), pipeline)) "
        "RETURNING limit_key"
    )
    #: The main job of a document, if it neither runs nor has ended.
    JOB_WAITING = (
        "SELECT id, queue, pipeline, lane, state, run_at_ms, home FROM job WHERE org = $1 AND document_id = $2 "
        "AND key = 'doc-' || CAST($2 AS text) AND finished_ms IS NULL AND state <> 'running'"
    )
    #: `home_vt` is the turn of a lent job in its own flow.
    JOB_RAISE = (
        "UPDATE job SET vt = $3, home_vt = $4, run_at_ms = $5, priority = $6 WHERE org = $1 AND id = $2"
    )
    STATUS = f"SELECT {STATUS_COLUMNS} FROM {STATUS_FROM} WHERE d.org = $1 AND d.id = $2"
    FIND = f"{_ORGS} SELECT d.org FROM o CROSS JOIN document d WHERE d.org = o.name AND d.id = $1 LIMIT 1"
    #: Ids that begin so, of one organisation or of all: $1 organisation, $2 and $3 the range, $4 at most.
    FIND_LIKE = "SELECT org, id FROM document WHERE org = $1 AND id >= $2 AND id < $3 ORDER BY id LIMIT $4"
    FIND_LIKE_ANY = (
        f"{_ORGS} SELECT d.org, d.id FROM o CROSS JOIN document d WHERE d.org = o.name AND d.id >= $1 AND d.id < $2 "
        "ORDER BY d.id LIMIT $3"
    )
    DOCUMENT = f"SELECT {DOCUMENT_COLUMNS} FROM document d WHERE d.org = $1 AND d.id = $2"
    #: The newest ones, before (generation, start, claim, job): $3 to $6.
    ATTEMPTS = (
        "SELECT document_id, job_key, generation, claim, attempt, charged, stage, worker, started_ms, "
        "ended_ms, outcome, "
        "error_type, error_code, status_code, message, fingerprint, delay_ms, why, requests FROM attempt "
        "WHERE org = $1 AND document_id = $2 AND (CAST($3 AS bigint) IS NULL "
        "OR (generation, started_ms, claim, job_key) < ($3, $4, $5, $6)) "
        "ORDER BY generation DESC, started_ms DESC, claim DESC, job_key DESC LIMIT $7"
    )
    #: Of each stage the newest one up to a generation, and the newest one before that generation; without a generation
    #: the newest one.
    SAVES = (
        "SELECT stage, generation, version, input_hash, output_hash, inline, blob, model, saved_ms, "
        "duration_ms, size, degraded "
        "FROM saved s WHERE org = $1 AND document_id = $2 AND pipeline = $3 "
        "AND (CAST($4 AS bigint) IS NULL OR generation <= $4) AND NOT EXISTS (SELECT 1 FROM saved n "
        "WHERE n.org = s.org AND n.document_id = s.document_id AND n.pipeline = s.pipeline AND n.stage = s.stage "
        "AND n.generation > s.generation AND (CAST($4 AS bigint) IS NULL OR n.generation < $4)) "
        "ORDER BY generation, saved_ms"
    )
    #: What no job of the document can read any more when generation $3 begins: a job reads of each stage the newest
    #: save of its own generation or earlier ones, and the newest of earlier ones. A dead follow-up may run again in its
    #: generation. Some at a time: it is done again with the next generation.
    SAVED_SUPERSEDED = (
        "DELETE FROM saved WHERE org = $1 AND document_id = $2 AND (pipeline, stage, generation) IN ("
        "SELECT s.pipeline, s.stage, s.generation FROM saved s WHERE s.org = $1 AND s.document_id = $2 "
        "AND EXISTS (SELECT 1 FROM saved n WHERE n.org = s.org AND n.document_id = s.document_id "
        "AND n.pipeline = s.pipeline AND n.stage = s.stage AND n.generation > s.generation AND n.generation < ("
        "SELECT coalesce(min(j.generation), CAST($3 AS int)) FROM job j WHERE j.org = $1 AND j.document_id = $2 "
        "AND (j.finished_ms IS NULL OR (j.state = 'dead' AND j.key <> 'doc-' || j.document_id)))) LIMIT 1000)"
    )
    ITEMS = (
        "SELECT key, generation, inline, blob FROM item WHERE org = $1 AND document_id = $2 AND pipeline "
        "= $3 "
        "AND stage = $4 AND fingerprint = $5 AND generation >= $6 ORDER BY generation"
    )
    #: The next documents after (organisation, id), whatever they are, each with its newest save of a stage under its
    #: name or its former one. As many are looked at as are asked for, so every page costs the same.
    CHECKPOINTS = (
        "SELECT d.org, d.id, d.pipeline, d.collection, d.state, coalesce(s.version, w.version), "
        "CASE WHEN s.version IS NULL THEN w.model ELSE s.model END FROM (SELECT org, id, pipeline, collection, state "
        "FROM document WHERE (org, id) > ($1, $2) ORDER BY org, id LIMIT $3) AS d "
        f"LEFT JOIN saved s ON {NEWEST_SAVE.format(s='s', stage='CAST($4 AS text)')} "
        f"LEFT JOIN saved w ON {NEWEST_SAVE.format(s='w', stage='CAST($5 AS text)')} ORDER BY d.org, d.id"
    )
    #: What another version, model or input of the stage emitted and this one did not emit again.
    EMITTED_STALE = (
        "DELETE FROM emitted WHERE org = $1 AND document_id = $2 AND pipeline = $3 AND stage = $4 "
        "AND fingerprint <> $5"
    )
    ROWS = (
        "SELECT key, data FROM emitted WHERE org = $1 AND document_id = $2 AND name = $3 ORDER BY key "
        "LIMIT $4 OFFSET $5"
    )
    #: The time since which the oldest ready job could have run, of those whose turn comes next: each organisation's
    #: oldest is among the first of its stream.
    READY_SINCE = (
        "SELECT min(CASE WHEN run_at_ms > created_ms THEN run_at_ms ELSE created_ms END) FROM (SELECT run_at_ms, "
        "created_ms FROM job WHERE state = 'queued' AND queue = $1 AND pipeline = $2 AND lane = $3 AND suspect = $4 "
        "ORDER BY vt, priority DESC, id LIMIT 500) AS t"
    )
    #: Many end in one flush and so in one millisecond; the id tells them apart.
    PRUNE_BEYOND = (
        "SELECT org, id FROM job WHERE queue = $1 "
        "AND state IN ('done', 'cancelled') ORDER BY finished_ms DESC, id DESC LIMIT $3 OFFSET $2"
    )
    PRUNE_AGED = (
        "SELECT org, id FROM job WHERE queue = $1 "
        "AND state IN ('done', 'cancelled') AND finished_ms <= $2 ORDER BY finished_ms LIMIT $3"
    )
    PRUNE_JOB = (
        "DELETE FROM job WHERE org = $1 AND id = $2 AND state IN ('done', 'cancelled') "
        "RETURNING org, document_id, pipeline, generation"
    )
    #: Not of later generations, nor while another job of the pipeline (a repair) may read or save some: the prune of
    #: the last one deletes them.
    PRUNE_ITEM = (
        "DELETE FROM item WHERE org = $1 AND document_id = $2 AND pipeline = $3 AND generation <= $4 "
        "AND NOT EXISTS (SELECT 1 FROM job j WHERE j.org = $1 AND j.document_id = $2 AND j.pipeline = $3 "
        "AND j.finished_ms IS NULL)"
    )
    BLOB_NAMED = (
        "SELECT 1 WHERE EXISTS (SELECT 1 FROM document WHERE blob = $1) OR EXISTS (SELECT 1 FROM saved "
        "WHERE blob = $1) "
        "OR EXISTS (SELECT 1 FROM item WHERE blob = $1)"
    )

    # --- other services --------------------------------------------------------------------------

    #: Of a document one at a time, in the order in which they were written.
    OUTBOX_DUE = (
        "SELECT o.id, o.event_id, o.name, o.payload, o.org, o.job_id, o.token, o.wait_ms, o.created_ms, o.tries "
        "FROM outbox o WHERE o.due_ms <= (SELECT coalesce(CAST($1 AS bigint), perdure_now())) "
        "AND NOT EXISTS (SELECT 1 FROM outbox e WHERE e.org = o.org AND e.document_id = o.document_id "
        "AND e.id < o.id) ORDER BY o.due_ms, o.id LIMIT $2"
    )
    OUTBOX_LATE = "SELECT coalesce(CAST($1 AS bigint), perdure_now()) - min(due_ms) FROM outbox"
    OUTBOX_FAILED = "UPDATE outbox SET tries = tries + 1, due_ms = $2, error = $3 WHERE id = $1"
    OUTBOX_AWAY = "UPDATE outbox SET error = $1 WHERE id = (SELECT min(id) FROM outbox)"
    #: Those that would hand over what nobody may work on any more.
    OUTBOX_WITHDRAW = (
        "DELETE FROM outbox WHERE org = $1 AND document_id = $2 AND token IS NOT NULL AND NOT EXISTS "
        "(SELECT 1 FROM job j WHERE j.org = outbox.org AND j.id = outbox.job_id AND j.token = outbox.token)"
    )
    OUTBOX_STATE = (
        "SELECT count(*), min(created_ms), "
        "(SELECT error FROM outbox WHERE error IS NOT NULL ORDER BY id LIMIT 1) FROM outbox"
    )
    JOB_AT = f"SELECT {JOB_COLUMNS} FROM job j WHERE j.org = $1 AND j.document_id = $2 AND j.key = $3"
    ENDED_UNDER = (
        "SELECT outcome, error_code FROM attempt "
        "WHERE org = $1 AND document_id = $2 AND job_key = $3 AND token = $4"
    )
    BEAT_REMOTE = (
        "UPDATE job SET lease_until_ms = (SELECT coalesce(CAST($1 AS bigint), perdure_now())) + $5, "
        "beat_ms = (SELECT coalesce(CAST($1 AS bigint), perdure_now())) "
        "WHERE org = $2 AND id = $3 AND token = $4 RETURNING id"
    )
    #: The job goes on at a local stage.
    JOB_ANSWERED = "UPDATE job SET progress_ms = $1, lease_ms = $4 WHERE org = $2 AND id = $3"

    # --- chunks ----------------------------------------------------------------------------------

    INDEXED_ADD = (
        "INSERT INTO indexed (org, document_id) VALUES ($1, $2) ON CONFLICT (org, document_id) DO NOTHING"
    )
    INDEXED_LOCK = (
        "SELECT i.revision, i.generation, d.collection FROM indexed i "
        "JOIN document d ON d.org = i.org AND d.id = i.document_id WHERE i.org = $1 AND i.document_id = $2"
    )
    #: What is indexed of documents that are to be purged: organisation, id, how many chunks.
    INDEXED_LOCK_PURGE: str
    CHUNK_IDS = "SELECT id, model FROM chunk WHERE org = $1 AND document_id = $2"
    CHUNKS = (
        "SELECT id, position, starts, ends, text, anchor, page, model, vector, heading FROM chunk "
        "WHERE org = $1 AND document_id = $2 ORDER BY position, id LIMIT $3 OFFSET $4"
    )
    CHUNKS_EMBEDDED = (
        "SELECT id, model, vector FROM chunk WHERE org = $1 AND document_id = $2 AND vector IS NOT NULL "
        "ORDER BY position, id"
    )
    COMPLETENESS = (
        "SELECT coalesce((SELECT expected FROM indexed WHERE org = $1 AND document_id = $2), 0), "
        "count(*), count(vector) FROM chunk WHERE org = $1 AND document_id = $2"
    )
    INDEXED_LAST = "SELECT coalesce(max(change), 0) FROM indexed WHERE org = $1"
    INDEXED_TOTAL = "SELECT coalesce(sum(expected), 0) FROM indexed WHERE org = $1 AND expected > 0"
    #: Documents in which every so many-th chunk of the organisation stands, and how many of those.
    INDEXED_EACH = (
        "SELECT document_id, CAST(upto / CAST($2 AS bigint) - (upto - expected) / CAST($2 AS bigint) AS bigint) "
        "FROM (SELECT document_id, expected, CAST(sum(expected) OVER (ORDER BY document_id) AS bigint) AS upto "
        "FROM indexed WHERE org = $1 AND expected > 0) s "
        "WHERE upto / CAST($2 AS bigint) > (upto - expected) / CAST($2 AS bigint)"
    )
    #: Whether another organisation has chunks.
    INDEXED_OTHERS = (
        "SELECT 1 WHERE EXISTS (SELECT 1 FROM indexed WHERE org < $1) "
        "OR EXISTS (SELECT 1 FROM indexed WHERE org > $1)"
    )
    #: By their last change: a revision may come back, and what is read of it meanwhile be another's. Of one that was
    #: purged the row is left, so that whoever keeps a copy hears of it.
    INDEXED_SINCE = (
        "SELECT i.document_id, CAST(i.change AS text), coalesce(d.collection, ''), i.expected FROM indexed i "
        "LEFT JOIN document d ON d.org = i.org AND d.id = i.document_id WHERE i.org = $1 AND i.change >= $2"
    )
    CONNECTION_KEYS = (
        "SELECT chunk_id, other_document_id, other_id FROM connection WHERE org = $1 AND document_id = $2"
    )
    CONNECTION_KEYS_TO = (
        "SELECT org, document_id, chunk_id, other_document_id, other_id FROM connection "
        "WHERE org = $1 AND other_document_id = $2"
    )
    #: Found from either side; what leads to a chunk that is gone, or that another model embedded, does not count.
    CONNECTIONS = (
        "SELECT c.id, n.there, o.id, max(n.score), n.model FROM ("
        "SELECT chunk_id AS id, other_document_id AS there, other_id, score, model FROM connection "
        "WHERE org = $1 AND document_id = $2 UNION ALL "
        "SELECT other_id, document_id, chunk_id, score, model FROM connection "
        "WHERE org = $1 AND other_document_id = $2) AS n "
        "CROSS JOIN chunk c CROSS JOIN chunk o "
        "WHERE c.org = $1 AND c.document_id = $2 AND c.id = n.id AND c.model = n.model "
        "AND o.org = $1 AND o.document_id = n.there AND o.id = n.other_id AND o.model = n.model "
        "AND (CAST($3 AS text) IS NULL OR c.id = $3) "
        "GROUP BY c.id, c.position, n.there, o.id, n.model ORDER BY c.position, max(n.score) DESC, n.there, o.id "
        "LIMIT $4 OFFSET $5"
    )

    #: Locks jobs in the order of the rows; None where there is only one writer.
    JOBS_LOCK: str | None = None
    #: Wakes idle workers when the transaction commits; None where that is done otherwise.
    NOTIFY: str | None = None

    # written per database
    WORKER_ADD: str  # answers its new number, or nothing: try again
    WORKER_AGAIN: str
    MIGRATED: str
    DOCUMENT_ADD: str
    DOCUMENT_SAME: str
    DOCUMENT_LOCK: str  # answers organisation, id, state, generation, whether a repair is due, collection
    DOCUMENT_LOCK_PURGE: str  # the same, for those that are to be deleted
    DOCUMENT_OPEN: str  # answers organisation, id, generation
    DOCUMENT_RESTORE: str
    DEAD_DROP: str
    STATUSES: str
    JOBS_OPEN: str
    ITEMS_SAVED: str
    JOB_ADD: str
    JOB_FOLLOW: str  # answers what was not there yet
    JOB_REQUEUE: str
    ATTEMPT_ADD: str
    DEAD_ADD: str
    KEY_SHARE = ""  # at the end of a SELECT: waits for a transaction that deletes the row
    WHICH: str  # organisation and {id} of table {t} are one of the rows
    SAVED_ADD: str
    ITEM_ADD: str
    EMITTED_ADD: str
    FENCE_SAVE: str
    FENCE_SETTLE: str
    SERVED_SET: str
    HAND_OVER: str
    FEED_ADD: str
    FEED: str
    FEED_END: str
    FEED_HEARD: str  # no webhook has yet to be told of this row
    OUTBOX_ADD: str
    OUTBOX_SENT: str
    LEASE_BEGIN: str
    BEAT: str
    BEAT_HELD: str
    #: Whether something that the document of job j spawned has not ended. Of its jobs those that came after j: it
    #: cannot have spawned others, and two that both gather would wait for each other. A repair waits for all of them,
    #: and nobody waits for a repair.
    _SPAWNED = (
        "EXISTS (SELECT 1 FROM document c WHERE c.org = j.org AND c.parent_id = j.document_id AND c.state = 'open') "
        "OR EXISTS (SELECT 1 FROM job f WHERE f.org = j.org AND f.document_id = j.document_id AND f.id <> j.id "
        f"AND (f.id > j.id OR j.key LIKE '%/{REPAIR}%') "
        f"AND f.finished_ms IS NULL AND f.key NOT LIKE '%/{REPAIR}%')"
    )
    GATHERED = (
        "SELECT j.org, j.document_id, j.key, j.id FROM job j WHERE j.state = 'waiting' "
        f"AND j.run_at_ms = {GATHERING_MS} AND NOT ({_SPAWNED}) LIMIT $1"
    )
    GATHER = (
        "UPDATE job SET run_at_ms = $1 WHERE org = $2 AND id = $3 AND state = 'waiting' "
        f"AND run_at_ms = {GATHERING_MS}"
    )
    SPAWNED = f"SELECT 1 FROM job j WHERE j.org = $1 AND j.id = $2 AND ({_SPAWNED})"
    CHILDREN = (
        "SELECT pipeline, state, count(*), sum(CASE WHEN degraded THEN 1 ELSE 0 END) FROM document "
        "WHERE org = $1 AND parent_id = $2 GROUP BY 1, 2"
    )
    #: How follow-up jobs ended, the newest generation last; one that was cancelled in its queue has no attempts.
    FOLLOWED = (
        "SELECT job_key, generation, outcome FROM attempt WHERE org = $1 AND document_id = $2 "
        "AND generation >= $3 AND generation <= $4 "
        "AND job_key <> 'doc-' || $2 AND outcome IN ('done', 'dead', 'cancelled') "
        "UNION SELECT key, generation, state FROM job WHERE org = $1 AND document_id = $2 "
        "AND generation >= $3 AND generation <= $4 AND key <> 'doc-' || $2 AND state IN ('dead', 'cancelled') "
        "ORDER BY 2"
    )
    JOBS_FAILED = (
        "SELECT key, generation, pipeline, input FROM job WHERE org = $1 AND document_id = $2 "
        "AND generation >= $3 AND generation < $4 AND key <> 'doc-' || $2 AND state IN ('dead', 'cancelled') "
        "ORDER BY generation"
    )
    JOBS_END: str  # the last of a number of jobs after (organisation, id)
    JOBS_LEFT: str
    JOBS_PAGE: str  # jobs, as j: after the first such pair, up to the second
    DUE: str
    DUE_LATEST: str  # the same rows, those that fell due last first
    PROMOTE: str
    SLOT_ADD: str
    SLOTS: str
    SLOTS_FREE: str  # those that nobody else has locked
    GATE: str  # park ready jobs (organisation, id) under the key of a gate: key, queue, lane, key of their own limit
    REGATE: str  # under that of another
    UNGATE: str  # with a turn, ready or parked under their own key: key, queue, lane, own key
    PARKED: str
    UNPARK: str
    HELD_READY: str
    HELD_PARKED: str
    LEND: str
    UNLEND: str
    JOB_FREED: str
    RECALL: str
    PARK: str
    CALL_ADD: str
    CALLS_FORGET: str
    CHUNK_ADD: str
    CHUNK_ADD_STAGED: str  # of a document whose words are indexed already (`staging`)
    STAGED_ADD: str
    STAGED_DROP: str  # all of a document
    STAGED_FORGET: str
    STAGED_LAST: str | None = None  # the last number that was given, where the one who stages gives them
    STAGED_RESERVE: Sequence[str] = ()  # no chunk that is added meanwhile gets one of these numbers
    CHUNK_DROP: str
    CHUNKS_GO: str  # whether chunks may be deleted in this transaction: "1" or ""
    INDEXED_SET: str
    INDEXED_MARK: str  # what changes from now on is not below it; and of which server the number is
    CONNECTION_ADD: str
    CONNECTION_DROP: str  # by its key
    CONNECTION_CUT: str  # all that lead from a chunk
    CHUNK_VECTORS: str
    CHUNK_FOUND: str  # numbers of chunks, up to a limit
    CHUNK_WORDS: str  # of some documents' chunks, so many of each, by their ids, which follow from a hash
    CHUNK_HITS: str

    def keep_staged(self, org: str, document_id: str) -> Steps[None]:
        """Let nobody forget the staged chunks of a document before this transaction ends."""
        yield from ()

    @abstractmethod
    def looked_up(self, scope: Sequence[str], asked: Sequence[Sequence[Term]], alone: bool) -> str:
        """What CHUNK_FOUND takes after its limit: chunks in the scope with a term of every group.
        `alone` says that there is no other organisation."""

    @abstractmethod
    def many(self, values: Sequence[int]) -> object:
        """Numbers as one parameter."""

    def fence(
        self, saves: Sequence[Row], finished: Sequence[Row], order: Sequence[int], now_ms: int
    ) -> Steps[list[Row]]:
        """Save and finish jobs, rows of FENCE_SAVE and FINISH; the ordinals that were still ours. `order` has the
        ordinals of all of them in the order in which jobs are locked."""
        accepted = (yield Query(self.FENCE_SAVE, (now_ms,), saves)) if saves else []
        return [*accepted, *((yield from self.finish(finished, now_ms)) if finished else ())]

    @abstractmethod
    def finish(self, finished: Sequence[Row], now_ms: int) -> Steps[list[Row]]:
        """End jobs whose every stage is saved: the job, its history and its document. Rows of FINISH; the ordinals
        that were still ours."""

    @abstractmethod
    def claim(self, claim: Claim, now_ms: int, kinds: Sequence[Kind]) -> Steps[list[Row]]:
        """Take ready jobs under the claim's token; rows of JOB_COLUMNS, DOCUMENT_COLUMNS and the turn of the job."""

    @abstractmethod
    def look(
        self, claim: Claim, large: bool | None, since: Sequence[float], window: int, suspect: bool = False
    ) -> Steps[list[Row]]:
        """Ready jobs that a claim might take, without locks: of each flow the first ones from each of these turns on.
        Rows: number of the turn, queue, lane and pipeline, turn, rank and id of the job, its organisation and lane,
        which of a lent one is its home."""

    @abstractmethod
    def take(self, claim: Claim, now_ms: int, chosen: Sequence[Row]) -> Steps[list[Row]]:
        """Take these jobs (turn, rank, id, organisation, lane) as `claim` does, unless others have or lock them."""
