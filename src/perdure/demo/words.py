"""What happened to a document, in a line."""

from __future__ import annotations

from perdure.store.records import Attempt, Status


def attempt_line(status: Status, attempt: Attempt) -> str:
    """An attempt that ended, in one line."""
    of = f"attempt {attempt.attempt} of {status.attempts_max}"
    match attempt.outcome:
        case "done":
            seconds = (attempt.ended_ms - status.created_ms) / 1000
            return f"{status.name}: done, {seconds:.1f} s after it came in"
        case "dead":
            why = reason(status, attempt.error_code, attempt.message)
            return f"{status.name}: dead at {attempt.stage}, {of}: {why}"
        case "retry":
            wait_s = (attempt.delay_ms or 0) / 1000
            return f"{status.name}: {attempt.stage} failed, {of}: {attempt.message}; again in {wait_s:g} s"
        case "later" if attempt.error_code == "worker_lost":
            return f"{status.name}: its worker died; given back, no attempt charged"
        case _:
            return f"{status.name}: given back, no attempt charged ({attempt.why})"


def reason(status: Status, code: str | None, message: str | None) -> str:
    """Why a document is dead, without saying again which document it is."""
    return f"{code}, {(message or '').replace(f'document {status.id} ({status.name})', 'it')}"
