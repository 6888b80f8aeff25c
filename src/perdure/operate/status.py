"""The whole store, or one document, as facts that can be JSON; doors draw them.

Times are milliseconds since 1970 in the store's own clock, which `now_ms` reads; every key is always there.

    overview   headline, problems [{severity text press}], now_ms,
               documents {queued running waiting held done dead cancelled}, next_due_ms, late_writes_refused,
               fallbacks {degraded repaired},
               queues [{name paused ready running waiting held over_limit stopped remote ready_since_ms workers}],
               workers [{id name queues alive in_hand started_ms beat_ms silent_since_ms
               late_writes_refused slots large_slots organisations [{org in_hand large}] sandbox}],
               dependencies [{name state since_ms reason held_by held probe_at_ms probes ramp_per_s nominal_per_s
                 tokens tokens_max limit_per_s paused_until_ms success_share breaker rate_per_s in_flight}],
               calls [{api_name operations retry_rate success_after_retry retries_per_retried p95_added_ms
               failure_rate}],
               dead {documents follow_ups {name: number} groups [{fingerprint count first_ms last_ms stages
               collections error_type code status_code example org message action advice job}]},
               stuck {documents since_ms starved checked_ms},
               escalation {tier why answer_by_ms settle_by_ms name runbook},
               audit {difference looked_ms problems audited_ms},
               outbox {waiting since_ms reason},
               durability {setting: value}
    document   now_ms, id, org, collection, pipeline, name, state, stage, held_by, generation, attempts_made,
               attempts_max, claims, suspect, degraded, remote, next_due_ms, last_heartbeat_ms, created_ms, finished_ms,
               error {code message} or null, why,
               stages [{stage generation version model saved_ms duration_ms size}],
               attempts [{job generation claim attempt charged stage worker started_ms ended_ms outcome error_type
               error_code status_code message fingerprint delay_ms why requests {dependency: number}}]

`problems` are in the order of their urgency (`critical`, `warning`, `notice`), and `headline` is the first of them.
`stopped` counts what waits in a paused queue, `over_limit` what waits for room under a concurrency limit, `remote` what
of the running ones other services work on, `workers` those that are alive and serve the queue; `outbox` what other
services have not been told yet. `silent_since_ms` is since when a worker's event loop has stood still, null while it
runs. A worker has `slots` for small documents and as many for large ones, together as many and `large_slots`;
`organisations` says whose documents it has in hand, `sandbox` whether the cells that read files are confined (`in
force`, `not available`, `off`, `not used`); null until it has said so.
`audit` is what the last looks found: the difference between what was accepted and what
is there, and problems of the last whole audit; null before the first. `calls` are those of the last 24 hours, `groups`
the five largest, of documents and (`job` is their name) of follow-up jobs. `fallbacks` counts,
since the store was made, how often one stood in for a stage (`degraded`) and how
often it was repaired (`repaired`). `durability` is what the database itself has set for commits: `synchronous` on
SQLite, `synchronous_commit` and `fsync` on PostgreSQL.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from perdure.core.model import TERMINAL, State
from perdure.errors import DocumentUnknown
from perdure.operate.desk import in_words, unknown
from perdure.operate.groups import groups
from perdure.operate.situation import situation
from perdure.operate.urgency import headline, problems
from perdure.operate.whole_ids import whole
from perdure.operate.why import explain
from perdure.store.dead import Where
from perdure.store.records import Attempt, WorkerRecord
from perdure.store.sql_store import SqlStore
from perdure.store.stuck import escalated

Facts = dict[str, Any]

STATES = tuple(str(state) for state in State if state is not State.PARKED)
DAY_MS = 86_400_000
GROUPS_MAX = 5


async def overview(store: SqlStore) -> Facts:
    """The whole store at one moment, what needs a person first."""
    counts = await store.counts()
    ended = {str(state): counts.states().get(state, 0) for state in TERMINAL}
    workers = await worker_facts(store)
    facts = {
        **await dependency_facts(store),
        "documents": {state: ended.get(state, counts.live.get(state, 0)) for state in STATES},
        "next_due_ms": min(counts.due_ms.values(), default=None),
        "late_writes_refused": (await store.tally()).fenced,
        "fallbacks": {name: await store.counted(name) for name in ("degraded", "repaired")},
        "queues": await _queues(store, counts.queues, workers),
        "workers": workers,
        "dead": await _dead(store, ended[State.DEAD], await store.dead_jobs()),
        **await _stuck(store),
        "audit": asdict(await store.audited()),
        "outbox": asdict(await store.outbox_state()),
        "durability": await store.driver.durability(),
    }
    told = {
        "given_back": await store.given_back(), "unserved": await store.unserved(),
        "oldest_writer": await store.driver.oldest_writer(), "exposed": store.driver.exposed(),
        "clear_secrets": await store.clear_secrets(), "dead_deliveries": await store.dead_deliveries(),
    }  # fmt: skip
    found = problems({**facts, **told, "due_ms": counts.due_ms})
    return {"headline": headline(facts, found), "problems": [asdict(one) for one in found], **facts}


async def dependency_facts(store: SqlStore) -> Facts:
    """Every dependency that anybody knows of, and the calls of a day."""
    now_ms = await store.now_ms()
    return {
        "now_ms": now_ms,
        "dependencies": [asdict(dependency) for dependency in await store.dependencies()],
        "calls": [asdict(kpi) for kpi in await store.kpis(now_ms - DAY_MS)],
    }


async def _queues(store: SqlStore, jobs: dict[str, dict[str, int]], workers: list[Facts]) -> list[Facts]:
    words = {
        "ready": "queued", "running": "running", "waiting": "waiting", "held": "held", "over_limit": "parked",
        "stopped": "paused", "remote": "remote",
    }  # fmt: skip
    facts: list[Facts] = [
        {"name": queue.name, "paused": queue.paused, "ready_since_ms": queue.ready_since_ms}
        | {word: jobs.get(queue.name, {}).get(state, 0) for word, state in words.items()}
        | {"workers": sum(w["alive"] and queue.name in w["queues"] for w in workers)}
        for queue in await store.queues()
    ]
    for queue in facts:
        queue["running"] += queue["remote"]
    return facts


async def worker_facts(store: SqlStore) -> list[Facts]:
    """Every worker, and whether its process is there."""
    workers = [worker for worker in await store.workers() if worker.kind == "worker"]
    gone = await store.missing([worker.id for worker in workers])
    shares = await store.in_hand_of()
    return [
        {
            "id": w.id, "name": w.name, "queues": list(w.queues), "alive": w.id not in gone, "in_hand": w.running,
            "started_ms": w.started_ms, "beat_ms": w.beat_ms, "silent_since_ms": w.silent_since_ms,
            "late_writes_refused": w.fenced, **_about(w),
            "organisations": [
                {"org": org, "in_hand": number, "large": large} for org, number, large in shares.get(w.id, ())
            ],
        }
        for w in workers
    ]  # fmt: skip


def _about(worker: WorkerRecord) -> Facts:
    """What a worker says of itself; null for what it has not said yet."""
    told = json.loads(worker.about) if worker.about else {}
    return {name: told.get(name) for name in ("slots", "large_slots", "sandbox")}


async def _dead(store: SqlStore, number: int, follow_ups: dict[str, int]) -> Facts:
    found = await groups(store, Where(), GROUPS_MAX) if number or follow_ups else []
    return {"documents": number, "follow_ups": follow_ups, "groups": [asdict(group) for group in found]}


async def _stuck(store: SqlStore) -> Facts:
    """What the sweeps found, and who should look because of it."""
    known = await store.retry_job()
    tier = escalated(known, await store.now_ms())
    return {
        "stuck": {
            "documents": sum(known.stuck.values()), "since_ms": known.stuck_since_ms,
            "starved": sum(known.starved.values()), "checked_ms": known.ran_ms,
        },
        "escalation": {**asdict(tier), "name": tier.name, "runbook": tier.runbook},
    }  # fmt: skip


async def document(store: SqlStore, document_id: str, words: str | None = None) -> Facts:
    """One document with its stages and attempts, its state in the words of a system; DocumentUnknown."""
    found = await whole(store, document_id, None)
    status = await store.status(*found) if found is not None else None
    if status is None:
        raise DocumentUnknown(f"{unknown(document_id)}; and check --store")
    org, document_id = status.org, status.id
    facts = asdict(in_words([status], words)[0])
    code, message = facts.pop("error_code"), facts.pop("error_message")
    facts["next_due_ms"] = facts.pop("run_at_ms")
    saves = await store.saves(org, document_id, status.pipeline)
    known = await situation(store, status)
    return {
        "now_ms": known.now_ms,
        **facts,
        "error": None if code is None else {"code": code, "message": message},
        "why": explain(known).sentence,
        "stages": [
            {
                "stage": s.stage, "generation": s.generation, "version": s.version, "model": s.model,
                "saved_ms": s.saved_ms, "duration_ms": s.duration_ms, "size": s.size,
            }
            for s in saves
        ],
        "attempts": [attempt_facts(attempt) for attempt in known.attempts],
    }  # fmt: skip


def attempt_facts(attempt: Attempt) -> Facts:
    facts = asdict(attempt)
    del facts["document_id"]
    return {"job": facts.pop("job_key"), **facts}
