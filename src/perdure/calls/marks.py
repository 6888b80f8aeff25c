"""What is written on an error that leaves a call, for the job layer and for people."""

from __future__ import annotations

from perdure.calls.verdict import Verdict
from perdure.core.refusal import mark_refused


def maybe_done(operation: str, verdict: Verdict) -> str:
    return (
        f"{operation} failed ({verdict.reason}) and may have been carried out all the same; it is not repeated. Find "
        "out, then requeue the document, or give the call a key that the service knows"
    )


def mark(error: Exception, operation: str, verdict: Verdict) -> None:
    """Let the job layer know of an error that no other attempt changes; the caller gets it as it is."""
    if (code := verdict.refusal) is not None:
        mark_refused(error, code, operation, verdict.reason, verdict.status)


def note(error: BaseException, text: str) -> None:
    """A note on somebody else's error, which may refuse it."""
    try:
        error.add_note(text)
    except Exception:
        return
