"""How patient the collections that have attempts of their own are: `RETRY_JOB_MAX_ATTEMPTS_…` and the delays beside it.

They hold in every pipeline, built in or not, and for remote stages, unless pipeline, stage or document says otherwise.
"""

from __future__ import annotations

from perdure.core.frozen import frozen

COLLECTIONS = ("archives", "messages", "chunks", "threads")


@frozen
class Patience:
    """Executions in all, and the first and the longest wait between two."""

    attempts: int
    base_ms: int
    cap_ms: int


def patience(collection: str) -> Patience | None:
    """That of the collection by the settings of now; None for one that has none of its own."""
    if collection not in COLLECTIONS:
        return None
    from perdure.settings import current  # heavy, and a pipeline is defined without it

    settings = current()
    attempts: int = getattr(settings, f"retry_job_max_attempts_{collection}")
    base_s, cap_s = settings.retry_job_base_delay_seconds, settings.retry_job_max_delay_seconds
    return Patience(attempts, round(base_s * 1000), round(cap_s * 1000))
