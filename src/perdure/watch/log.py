"""One JSON line per attempt start, completion and failure, and an ERROR line when a document dies."""

from __future__ import annotations

import logging
import sys
import traceback
from typing import Any

import structlog

from perdure.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    DocumentDead,
    Events,
    ForeignKeyRefused,
    JobRecovered,
    StageHandedOver,
    StageSaved,
    StageSkipped,
    StuckSwept,
    SweepPartial,
    WorkerLost,
    WorkerStalled,
    WorkerStarted,
    WorkerStopped,
    WriteFenced,
)
from perdure.errors import SettingInvalid, redacted
from perdure.settings import LEVELS
from perdure.watch import log_text

_log = structlog.get_logger("perdure")
STAGE_FACTS = ("document_id", "org_id", "attempt", "stage")
FORMS = ("auto", "json", "text")


def configure(level: str = "INFO", form: str = "json") -> None:
    """Write lines to standard error, one per event, nothing below `level`; SettingInvalid for an unknown one.

    `form`: json, text for people, or auto: text if standard error is a terminal. What stage code logs through `ctx.log`
    (or any logger below "perdure") becomes such a line too.
    """
    name = level.strip().upper()
    if name not in LEVELS:
        known = ", ".join(LEVELS)
        raise SettingInvalid(
            f"PERDURE_LOG_LEVEL is {level!r}; it must be one of {known}", code="log_level_invalid"
        )
    if form not in FORMS:
        raise SettingInvalid(f"PERDURE_LOG_FORMAT is {form!r}; it must be one of {', '.join(FORMS)}")
    text = form == "text" or (form == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
            lambda _logger, _name, facts: _without_secrets(facts),
            log_text.line if text else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(name.lower()),
        logger_factory=structlog.WriteLoggerFactory(
            sys.stderr
        ),  # a line is one write: processes share the file
        cache_logger_on_first_use=True,
    )
    ours = logging.getLogger("perdure")
    ours.handlers[:], ours.propagate = [StageLines()], False
    ours.setLevel(name)


def _without_secrets(fact: Any) -> Any:
    """Hide passwords and keys in all that is logged, also in what a stage says."""
    match fact:
        case str():
            return redacted(fact)
        case dict():
            return {name: _without_secrets(value) for name, value in fact.items()}
        case list() | tuple():
            return [_without_secrets(value) for value in fact]
    return fact


class StageLines(logging.Handler):
    """Turns what stage code logs into JSON lines like all others."""

    def emit(self, record: logging.LogRecord) -> None:
        facts = {key: getattr(record, key) for key in STAGE_FACTS if hasattr(record, key)}
        facts |= getattr(record, "facts", {})
        if record.exc_info:
            facts["exception"] = "".join(traceback.format_exception(*record.exc_info))
        _log.log(record.levelno, record.getMessage(), logger=record.name, **facts)


def log_events(events: Events) -> None:
    """Log what happens from now on."""
    events.subscribe(_line)


def _line(event: AnyEvent) -> None:
    match event:
        case WorkerStarted() | WorkerStopped() | WorkerLost() | WorkerStalled():
            _worker_line(event)
        case SweepPartial() | StuckSwept():
            _sweep_line(event)
        case ForeignKeyRefused():
            _log.error("foreign key refused", error=event.message)
        case AttemptStarted():
            _log.info("attempt started", **_facts(event), generation=event.generation, resumed=event.resumed)
        case StageSaved() | StageSkipped() | StageHandedOver():
            _stage_line(event)
        case AttemptEnded():
            _ended_line(event)
        case DocumentDead():
            job = {"job": event.follow_up} if event.follow_up else {}
            _log.error(
                "follow-up job dead" if event.follow_up else "document dead", **_facts(event), **job,
                collection=event.collection, attempts=event.attempts, last_attempt_ms=event.last_attempt_ms,
                error=event.error,
            )  # fmt: skip
        case WriteFenced():
            _log.warning("late write refused", **_facts(event))
        case JobRecovered():
            _log.warning("job recovered", **_facts(event), reason=event.reason, suspect=event.suspect)


def _ended_line(event: AttemptEnded) -> None:
    if event.outcome in ("done", "answered"):
        _log.info(f"attempt {event.outcome}", **_facts(event), duration_ms=event.duration_ms)
    elif event.outcome != "later" or not event.recovered:  # that was told, and there may be thousands
        (_log.info if event.outcome == "gather" else _log.warning)(  # every parent waits for what it spawned
            f"attempt ended: {event.outcome}", **_facts(event), duration_ms=event.duration_ms, error=event.error,
            error_type=event.error_type, error_code=event.error_code, place=event.place, delay_ms=event.delay_ms,
            why=event.why,
        )  # fmt: skip


def _stage_line(event: StageSaved | StageSkipped | StageHandedOver) -> None:
    match event:
        case StageSaved():
            _log.debug("stage saved", **_facts(event), duration_ms=event.duration_ms)
        case StageSkipped():
            _log.debug("stage already saved", **_facts(event))
        case StageHandedOver():
            _log.info("stage handed over", **_facts(event), event_name=event.event)


def _sweep_line(event: SweepPartial | StuckSwept) -> None:
    """Something for somebody to look at is a warning."""
    if isinstance(event, SweepPartial):
        _log.warning("sweep partial", failed=list(event.failed))
        return
    facts = {
        "status": event.status, "stuck": event.stuck, "starved": event.starved, "requeued": event.requeued,
        "skipped": event.skipped, "buried": event.buried, "stuck_since_ms": event.since_ms,
        "problems": list(event.problems),
    }  # fmt: skip
    if event.stuck or event.starved or event.status != "success":
        _log.warning("documents are stuck" if event.stuck else "stuck sweep", **facts)
    else:
        _log.debug("stuck sweep", **facts)


def _worker_line(event: WorkerStarted | WorkerStopped | WorkerLost | WorkerStalled) -> None:
    match event:
        case WorkerStarted(queues=queues, concurrency=concurrency):
            _log.info(
                "worker started", worker=event.worker, queues=", ".join(queues), concurrency=concurrency
            )
        case WorkerStopped():
            _log.info("worker stopped", worker=event.worker)
        case WorkerLost():
            _log.warning("worker lost", worker=event.worker, jobs=event.jobs, reason=event.reason)
        case WorkerStalled():
            begun = [{"document_id": id_, "stage": stage} for id_, stage in event.begun]
            _log.error(
                "worker stands still", worker=event.worker, silent_s=event.silent_ms / 1000, begun=begun,
                stack=event.stack,
            )  # fmt: skip


def _facts(event: Any) -> dict[str, Any]:
    return {
        "job_id": event.job_id, "document_id": event.document_id, "org_id": event.org, "pipeline": event.pipeline,
        "attempt": event.attempt, "stage": event.stage,
    }  # fmt: skip
