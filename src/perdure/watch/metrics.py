"""Every metric: its name, kind, labels and meaning. The only place where they are listed; docs/metrics.md is tested
against it.

A metric of the *process* is counted where it happens: each event by exactly one process, so rules take `sum`. A metric
of the *store* is read from the store and is the same whichever process is asked, so rules take `max by`. No label is an
id or an organisation, and of each label only so many values are told apart (`LABEL_VALUES_MAX`): the rest is `other`.
"""

from __future__ import annotations

from typing import Literal

from perdure.core.frozen import frozen

LABEL_VALUES_MAX = 100
LABEL_BYTES_MAX = 60
OTHER = "other"

#: Seconds of a stage: from a look at a row to the longest book.
STAGE_BUCKETS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0)
#: Seconds that retries added to a call; more than ten are an alarm.
ADDED_BUCKETS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
#: Seconds of a sweep: from a few jobs to millions.
SWEEP_BUCKETS = (0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0)
#: Size of a document in bytes, up to which it is called so.
SIZES: tuple[tuple[int, str], ...] = ((64 << 10, "64KiB"), (1 << 20, "1MiB"), (16 << 20, "16MiB"))
LARGER = "larger"

OUTCOMES = ("done", "answered", "retry", "rescheduled", "later", "hold", "gather", "dead")
STATES = ("open", "done", "dead", "cancelled")
OPEN_STATES = ("queued", "running", "waiting", "held")
#: What jobs of a queue may be; `parked` ones are over a limit, `remote` are those running ones that others work on.
JOB_STATES = ("queued", "running", "remote", "waiting", "parked", "held", "paused")
STATUSES = ("success", "partial", "failure")
COLLECTIONS = ("archives", "chunks", "documents", "images", "messages", "threads")
#: Types of errors of sweeps that are told apart; any other is `other`, so that each label begins at 0.
ERROR_TYPES = (
    "BlobCorrupt", "BlobMissing", "DocumentUnknown", "JSONDecodeError", "KeyError", "LeaseLost", "OSError",
    "SchemaNewer", "SchemaOutdated", "StoreBusy", "StoreError", "StoreUnavailable", "TimeoutError", "TypeError",
    "Unstorable", "ValueError", OTHER,
)  # fmt: skip
BREAKER_STATES = ("closed", "half_open", "open")
DEPENDENCY_STATES = ("up", "flickering", "pressed", "paused", "down", "ramping")

Kind = Literal["counter", "gauge", "histogram"]
Of = Literal["process", "store"]


@frozen
class Metric:
    """One metric. `buckets` are those of a histogram; `known` are values of its labels that start at 0."""

    name: str
    kind: Kind
    of: Of
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()
    known: tuple[tuple[str, ...], ...] = ()


def _counter(
    name: str, labels: tuple[str, ...], help_: str, known: tuple[tuple[str, ...], ...] = (), of: Of = "process"
) -> Metric:  # fmt: skip
    return Metric(name, "counter", of, labels, help_, known=known if labels else ((),))


def _gauge(
    name: str, labels: tuple[str, ...], help_: str, known: tuple[tuple[str, ...], ...] = (), of: Of = "store"
) -> Metric:  # fmt: skip
    return Metric(name, "gauge", of, labels, help_, known=known)


_EACH_FOLLOW_UP = (("detect_connections",), ("on_dead",), ("on_done",))
_EACH_COLLECTION = tuple((name,) for name in COLLECTIONS)

RETRY_JOB = (
    _counter(
        "retry_job_documents_requeued_total", ("collection",),
        "Stuck documents that a sweep made due again.", _EACH_COLLECTION,
    ),
    _counter(
        "retry_job_documents_skipped_backoff_total", ("collection",),
        "Stuck documents that a sweep left alone because their backoff is not over.", _EACH_COLLECTION,
    ),
    _counter(
        "retry_job_documents_max_retries_exceeded_total", ("collection",),
        "Documents set aside because their attempts were used up.", _EACH_COLLECTION,
    ),
    _counter(
        "retry_job_runs_total", ("status",),
        "Sweeps for stuck documents, by how they ended.", tuple((status,) for status in STATUSES),
    ),
    _counter(
        "retry_job_errors_total", ("error_type",), "What went wrong in such sweeps.",
        tuple((name,) for name in ERROR_TYPES),
    ),
    _gauge("retry_job_stuck_documents", ("collection",), "Documents that are stuck now.", _EACH_COLLECTION),
    _gauge("retry_job_failed_documents", ("collection",), "Documents that are dead now.", _EACH_COLLECTION),
    Metric(
        "retry_job_duration_seconds", "histogram", "process", (), "How long sweeps for stuck documents took.",
        SWEEP_BUCKETS, known=((),),
    ),
)  # fmt: skip

_DOCUMENTS = (
    _gauge(
        "perdure_documents", ("collection", "state"), "Documents by state: open, done, dead, cancelled.",
        tuple((collection, state) for collection in COLLECTIONS for state in STATES),
    ),
    _gauge(
        "perdure_documents_open", ("state",), "Those that are open: queued, running, waiting, held.",
        tuple((state,) for state in OPEN_STATES),
    ),
    _gauge("perdure_follow_ups_dead", ("job",), "Follow-up jobs of documents that are dead now.", _EACH_FOLLOW_UP),
    _gauge("perdure_queue_depth", ("queue", "state"), "Jobs of a queue that have not ended."),
    _gauge("perdure_queue_oldest_seconds", ("queue",), "For how long the oldest ready job has been waiting."),
    _gauge("perdure_queue_paused", ("queue",), "1 while an operator has paused the queue."),
    _gauge("perdure_workers", (), "Workers that were heard of in the last 30 seconds."),
    _gauge(
        "perdure_heartbeat_age_seconds", (),
        "How long ago the running job that was heard of longest ago was heard of.",
    ),
    _gauge(
        "perdure_loop_silent_seconds", (),
        "For how long the worker's event loop that has stood still longest has done so; 0: all run.",
    ),
    _gauge(
        "perdure_stuck_oldest_seconds", (), "For how long the document that is stuck longest has been due."
    ),
    _gauge("perdure_starved_documents", (), "Documents that are overdue only because no worker is free."),
    _gauge("perdure_escalation_tier", (), "Who should look: 1 nobody, 2 in hours, 3 within an hour, 4 at once."),
    _gauge(
        "perdure_audit_difference", (),
        "Documents accepted less those that are done, in progress, dead, cancelled or purged; not 0: a loss.",
    ),
    _counter("perdure_degraded_total", (), "Stages whose fallback stood in, or whose result is partial.", of="store"),
    _counter("perdure_repaired_total", (), "Stages that were made good later.", of="store"),
    _counter(
        "perdure_chunk_deletions_unexpected_total", (),
        "Chunks that went without a revision that superseded them and without a purge.", of="store",
    ),
    _gauge("perdure_outbox_events", (), "Events that wait to be published."),
    _gauge("perdure_outbox_oldest_seconds", (), "For how long the oldest of them has been waiting."),
    _gauge(
        "perdure_feed_waiting_seconds", (),
        "For how long the transaction that the feed and webhooks wait for has been open; 0: they wait for none.",
    ),
)  # fmt: skip

_WORK = (
    _counter("perdure_attempts_total", ("pipeline", "outcome"), "Attempts that ended, by how."),
    Metric(
        "perdure_stage_seconds", "histogram", "process", ("pipeline", "stage", "size"),
        "How long stages ran whose output was saved, by the size of the document.", STAGE_BUCKETS,
    ),
    _counter(
        "perdure_stages_resumed_total", ("pipeline", "stage"),
        "Stages that did not run because an earlier attempt had saved them.",
    ),
    _counter(
        "perdure_stages_rerun_total", ("pipeline", "stage"),
        "Stages that ran although an earlier attempt had begun or saved them.",
    ),
    _counter(
        "perdure_documents_dead_total", ("collection",), "Documents that were set aside.", _EACH_COLLECTION
    ),
    _counter(
        "perdure_follow_up_deaths_total", ("job",), "Follow-up jobs that were set aside.", _EACH_FOLLOW_UP
    ),
    _counter(
        "perdure_lease_recoveries_total", ("reason",), "Jobs taken back from workers.",
        (("lease_expired",), ("worker_lost",), ("stuck",)),
    ),
    _counter("perdure_workers_lost_total", (), "Deaths of workers that were noticed."),
    _counter("perdure_workers_stalled_total", (), "Workers whose event loop stood still for too long."),
    _counter("perdure_fenced_writes_total", (), "Late writes that were refused because the lease had passed on."),
    _counter("perdure_sweep_failures_total", (), "Rounds of a sweep in which a part failed."),
    _counter("perdure_foreign_key_errors_total", (), "Writes that the database refused for a foreign key."),
    _counter(
        "perdure_chunk_deletions_total", ("kind",), "Chunks deleted as they should be.",
        (("superseded",), ("purged",)),
    ),
)  # fmt: skip

_CALLS = (
    _counter("perdure_calls_total", ("dependency", "outcome"), "Operations on a service, retries included."),
    _counter(
        "perdure_calls_retried_total", ("dependency", "outcome"), "Those of them that needed a retry."
    ),
    _counter("perdure_call_retries_total", ("dependency",), "Requests that were retries."),
    Metric(
        "perdure_call_added_seconds", "histogram", "process", ("dependency",),
        "What retries added to the operations that needed any.", ADDED_BUCKETS,
    ),
    _counter("perdure_requests_total", ("dependency",), "Requests that went out to a service."),
    _counter(
        "perdure_request_failures_total", ("dependency", "kind"),
        "Those of them that found it away (outage) or too busy (rate_limited).",
    ),
    _gauge(
        "perdure_retry_budget_tokens", ("dependency",), "What is left for retries in this process.", of="process"
    ),
    _gauge(
        "perdure_request_limit", ("dependency",), "Requests a second that this process may make; 0: no limit.",
        of="process",
    ),
    _gauge(
        "perdure_breaker_state", ("dependency",), "0 closed, 1 half open, 2 open, as this process knows it.",
        of="process",
    ),
    _gauge("perdure_documents_held", ("dependency",), "Documents that wait for a service that is down."),
    _gauge("perdure_dependency_held_seconds", ("dependency",), "For how long a service has been down; 0: it is up."),
    _gauge(
        "perdure_dependency_success_share", ("dependency",),
        "Share of requests of late that a service answered, as the fleet found out; 1: nothing is amiss.",
    ),
    _gauge("perdure_dependency_state", ("dependency", "state"), "1 for the state that a service is in, 0 for others."),
    _gauge("perdure_dependency_breaker_state", ("dependency",), "0 closed, 1 half open, 2 open, of all workers."),
    _gauge("perdure_dependency_rate_per_second", ("dependency",), "Requests a second that all workers make."),
    _gauge(
        "perdure_dependency_limit_per_second", ("dependency",),
        "Requests a second that all workers may make; 0: no limit.",
    ),
    _gauge("perdure_dependency_requests_in_flight", ("dependency",), "Requests of all workers that are not back."),
    _gauge("perdure_dependency_tokens", ("dependency",), "What each worker has left for retries."),
    _gauge(
        "perdure_dependency_paused_seconds", ("dependency",),
        "For how long no request goes out because the service asked for that; 0: it did not.",
    ),
)  # fmt: skip

_OWN = (
    _counter("perdure_scrape_errors_total", ("part",), "Parts of the store that could not be read for a scrape."),
)  # fmt: skip

METRICS: tuple[Metric, ...] = (*RETRY_JOB, *_DOCUMENTS, *_WORK, *_CALLS, *_OWN)
BY_NAME: dict[str, Metric] = {metric.name: metric for metric in METRICS}


def size_of(count: int) -> str:
    """What a document of so many bytes is called."""
    return next((name for most, name in SIZES if count <= most), LARGER)


def label(value: str) -> str:
    """A value as it is shown: not longer than a label should be."""
    return value.encode(errors="replace")[:LABEL_BYTES_MAX].decode(errors="ignore") or "none"
