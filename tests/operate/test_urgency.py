"""What needs a person first, as a table: facts, the problems that are found, and the headline."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.operate.urgency import grade, headline, problems
from perdure.store.base import BREAKER, OldestWriter

NOW = 1_800_000_000_000
HOUR = 3_600_000
QUEUE = {
    "name": "documents", "paused": False, "ready": 0, "running": 0, "waiting": 0, "held": 0, "over_limit": 0,
    "stopped": 0, "remote": 0, "ready_since_ms": None, "workers": 1,
}  # fmt: skip
WORKER = {
    "id": 3,
    "name": "host:1",
    "queues": ["documents"],
    "alive": True,
    "in_hand": 0,
    "beat_ms": NOW - HOUR,
    "silent_since_ms": None,
}
OCR = {
    "name": "ocr", "state": "down", "since_ms": NOW - HOUR, "reason": "refused", "held_by": BREAKER, "held": 41,
    "probe_at_ms": None, "probes": 1, "ramp_per_s": None, "nominal_per_s": None,
    "tokens": 10.0, "tokens_max": 10.0, "limit_per_s": None, "success_share": None, "breaker": "open",
}  # fmt: skip
CALLS = {
    "api_name": "ocr", "operations": 9, "retry_rate": 0.0, "success_after_retry": None, "retries_per_retried": None,
    "p95_added_ms": None, "failure_rate": 0.0,
}  # fmt: skip
GROUP = {
    "fingerprint": "f",
    "stages": ["embed"],
    "error_type": "E",
    "code": "http_503",
    "count": 8,
    "job": "",
}
WELL: dict[str, Any] = {
    "now_ms": NOW, "documents": {"queued": 0, "running": 2, "done": 1_200}, "due_ms": {}, "queues": [QUEUE],
    "workers": [WORKER], "dependencies": [{**OCR, "state": "up"}], "calls": [CALLS],
    "dead": {"documents": 0, "follow_ups": {}, "groups": []},
    "stuck": {"documents": 0, "since_ms": None, "starved": 0, "checked_ms": None},
    "escalation": {"tier": 1, "name": "automatic", "why": "all is seen to by itself", "answer_by_ms": None},
    "audit": {"difference": 0, "looked_ms": NOW, "problems": None, "audited_ms": None},
    "outbox": {"waiting": 0, "since_ms": None, "reason": None}, "given_back": [], "unserved": [], "oldest_writer": None,
    "exposed": None, "clear_secrets": 0, "dead_deliveries": {},
    "durability": {"synchronous_commit": "on", "fsync": "on"},
}  # fmt: skip
GONE = {**WORKER, "alive": False, "in_hand": 2}


def test_all_is_well() -> None:
    assert problems(WELL) == []
    assert headline(WELL, []) == "All well: 2 running, 1,200 done."


@pytest.mark.parametrize(
    ("more", "severity", "text", "press"),
    [
        (
            {"queues": [{**QUEUE, "ready": 7, "workers": 0}], "workers": [{**GONE, "in_hand": 0}]}, "critical",
            "No worker serves 7 jobs in queue documents (the last one, host:1, went 1.0 h ago)", "perdure worker",
        ),
        (
            {"dead_deliveries": {"acme": 2}}, "warning",
            "2 deliveries to webhooks of organisation acme failed for good", "perdure webhook retry --org acme",
        ),
        (
            {"dead": {"documents": 0, "follow_ups": {"on_dead": 1}, "groups": []}}, "warning",
            "1 follow-up job on_dead is dead", "perdure dead groups on_dead.failed",
        ),
        (
            {"clear_secrets": 2}, "notice",
            "The secrets of 2 webhooks are in clear in the store; set PERDURE_SECRET_KEY and add them again", None,
        ),
        (
            {"exposed": "chmod o-rwx a"}, "warning", "Other users can use the files of this store", "chmod o-rwx a",
        ),
        (
            {"oldest_writer": OldestWriter(7, "psql", "shop", 2 * HOUR)}, "warning",
            "Events and webhooks wait for a transaction of psql (database shop) that has been open for 2.0 h; SELECT "
            "pg_terminate_backend(7) ends it", None,
        ),
        (
            {"given_back": [("books", 3, "0197")]}, "warning",
            "No worker that took them could run 3 jobs of pipeline books", "perdure why 0197",
        ),
        (
            {"queues": [{**QUEUE, "ready": 1, "workers": 0}], "workers": []}, "critical",
            "No worker serves 1 job in queue documents", "perdure worker",
        ),
        (
            {"queues": [{**QUEUE, "waiting": 3, "workers": 0}], "due_ms": {"documents": NOW - HOUR}, "workers": []},
            "critical",
            "No worker serves 3 jobs in queue documents", "perdure worker",
        ),
        (
            {"escalation": {"tier": 3, "name": "critical", "why": "5 documents are dead", "answer_by_ms": NOW + HOUR}},
            "critical", "Escalation tier 3 (critical): 5 documents are dead, answer in 1.0 h", "perdure dead groups",
        ),
        (
            {"escalation": {"tier": 2, "name": "warning", "why": "60 documents are stuck", "answer_by_ms": NOW - 1}},
            "warning", "Escalation tier 2 (warning): 60 documents are stuck, an answer is overdue",
            "perdure sweep --once",
        ),
        (
            {"audit": {"difference": 2, "looked_ms": NOW, "problems": None, "audited_ms": None}}, "critical",
            "2 documents are accepted and not there", "perdure audit",
        ),
        (
            {"audit": {"difference": -1, "looked_ms": NOW, "problems": None, "audited_ms": None}}, "critical",
            "1 document is there that nobody accepted", "perdure audit",
        ),
        (
            {"audit": {"difference": 0, "looked_ms": NOW, "problems": 3, "audited_ms": NOW - HOUR}}, "warning",
            "The audit 1.0 h ago found 3 problems", "perdure audit",
        ),
        (
            {"workers": [GONE]}, "critical",
            "Worker 3 (host:1) is gone with 2 jobs in hand and there is no other", "perdure worker",
        ),
        (
            {"workers": [GONE, WORKER]}, "notice",
            "Worker 3 (host:1) is gone with 2 jobs in hand; others take them back within seconds", None,
        ),
        (
            {"dead": {"documents": 12, "follow_ups": {}, "groups": [GROUP]}}, "warning",
            "12 documents are dead, 8 of them of http_503 at stage embed", "perdure dead groups",
        ),
        (
            {"dead": {"documents": 8, "follow_ups": {}, "groups": [GROUP]}}, "warning",
            "8 documents are dead of http_503 at stage embed", "perdure dead groups",
        ),
        (
            {"stuck": {"documents": 1, "since_ms": NOW - 30 * HOUR, "starved": 0, "checked_ms": NOW}}, "warning",
            "1 document is stuck, the longest for 30 h", "perdure sweep --once",
        ),
        (
            {"dependencies": [OCR]}, "warning",
            "ocr has been down for 1.0 h (refused): 41 documents wait, it is probed by itself; "
            "`perdure release ocr` lets them go now", "perdure dependencies",
        ),
        (
            {"dependencies": [{**OCR, "since_ms": NOW - 60_000, "held": 1}]}, "notice",
            "ocr has been down for 1.0 min (refused): 1 document waits, it is probed by itself; "
            "`perdure release ocr` lets them go now", "perdure dependencies",
        ),
        (
            {"dependencies": [{**OCR, "held_by": "ann"}]}, "warning",
            "ocr is held by ann (refused): 41 documents wait", "perdure release ocr",
        ),
        (
            {"dependencies": [{**OCR, "held_by": "configuration", "reason": "no URL"}]}, "warning",
            "ocr has been down for 1.0 h (no URL): 41 documents wait until a worker starts that is configured for it",
            "perdure worker",
        ),
        (
            {"queues": [{**QUEUE, "paused": True, "stopped": 5}]}, "warning",
            "Queue documents is paused, 5 jobs wait", "perdure resume documents",
        ),
        (
            {"workers": [{**WORKER, "in_hand": 2, "silent_since_ms": NOW - 40_000}]}, "warning",
            "Worker 3 (host:1) has not answered for 40 s with 2 jobs in hand; its supervisor replaces it, and the log "
            "says where it stands", None,
        ),
        (
            {"queues": [{**QUEUE, "paused": True}]}, "notice",
            "Queue documents is paused, 0 jobs wait", "perdure resume documents",
        ),
        (
            {"outbox": {"waiting": 2, "since_ms": NOW - HOUR, "reason": "refused"}}, "warning",
            "2 events wait to be published, the oldest for 1.0 h (refused)", None,
        ),
        (
            {"calls": [{**CALLS, "retry_rate": 0.35}]}, "warning",
            "35% of the calls to ocr are retried", "perdure dependencies",
        ),
        (
            {"durability": {"synchronous_commit": "off", "fsync": "on"}}, "notice",
            "synchronous_commit is off at PostgreSQL; sessions of Perdure set it on", None,
        ),
        (
            {"durability": {"synchronous_commit": "on", "fsync": "off"}}, "critical",
            "fsync is off at PostgreSQL: a power cut can destroy the store; set it on", None,
        ),
        (
            {"stuck": {"documents": 0, "since_ms": None, "starved": 4, "checked_ms": NOW}}, "notice",
            "4 documents only lack a free worker", None,
        ),
    ],
)  # fmt: skip
def test_each_problem(more: dict[str, Any], severity: str, text: str, press: str | None) -> None:
    facts = {**WELL, **more}
    (found,) = problems(facts)
    assert (found.severity, found.text, found.press) == (severity, text, press)
    said = headline(facts, [found])
    assert said.startswith("All well: 2 running, 1,200 done" if severity == "notice" else text)


def test_the_worst_comes_first() -> None:
    facts = {
        **WELL,
        "workers": [GONE],
        "dead": {"documents": 8, "follow_ups": {}, "groups": [GROUP]},
        "dependencies": [OCR],
    }
    found = problems(facts)
    assert [one.severity for one in found] == ["critical", "warning", "warning"]
    assert headline(facts, found) == (
        "Worker 3 (host:1) is gone with 2 jobs in hand and there is no other: press `perdure worker` (2 more below)."
    )


def test_what_is_late_in_one_queue_says_nothing_of_another() -> None:
    later = {**QUEUE, "name": "later", "waiting": 3, "workers": 0}
    facts = {**WELL, "queues": [QUEUE, later], "due_ms": {"documents": NOW - HOUR, "later": NOW + HOUR}}
    assert problems(facts) == []


def test_that_nobody_works_comes_before_what_has_died() -> None:
    tier = {"tier": 3, "name": "critical", "why": "17 documents are dead", "answer_by_ms": NOW + HOUR}
    facts = {**WELL, "escalation": tier, "queues": [{**QUEUE, "ready": 1, "workers": 0}], "workers": [GONE]}
    assert [one.text.split()[0] for one in problems(facts)] == ["No", "Worker", "Escalation"]


def test_kpis_are_graded() -> None:
    rates = [grade("retry_rate", value) for value in (None, 0.05, 0.06, 0.2, 0.21)]
    assert rates == ["", "", "look", "look", "alarm"]
    assert [grade("success_after_retry", value) for value in (0.9, 0.7, 0.4)] == ["", "look", "alarm"]
    assert [grade("retries_per_retried", value) for value in (2.0, 2.1, 3.1)] == ["", "look", "alarm"]
    assert [grade("p95_added_ms", value) for value in (5_000, 9_999, 10_001)] == ["", "look", "alarm"]
    assert [grade("failure_rate", value) for value in (0.01, 0.02, 0.06)] == ["", "look", "alarm"]
