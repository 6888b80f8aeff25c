"""What happened to a document, in a line."""

from __future__ import annotations

from collections.abc import Collection

from perdure.cli.words import span
from perdure.store.records import Attempt, Status


def attempt_line(status: Status, attempt: Attempt) -> str:
    """An attempt that ended, in one line."""
    of = f"attempt {attempt.attempt} of {status.attempts_max}"
    match attempt.outcome:
        case "done":
            return f"{status.name}: done, {span(attempt.ended_ms - status.created_ms)} after it came in"
        case "dead":
            return f"{status.name}: dead at {attempt.stage}, {of}: {reason(attempt)}"
        case "retry":
            wait = span(attempt.delay_ms or 0)
            return f"{status.name}: {attempt.stage} failed, {of}: {reason(attempt)}; again in {wait}"
        case "later" if attempt.error_code == "worker_lost":
            return f"{status.name}: its worker died; given back, no attempt charged"
        case _:
            return f"{status.name}: given back, no attempt charged ({attempt.why})"


def reason(attempt: Attempt) -> str:
    """Why an attempt failed."""
    return f"{attempt.error_code}, {attempt.message}"


def pages_named(pages: Collection[int]) -> str:
    """`pages 1-17`, `page 4`; where there are gaps, how many."""
    first, last = min(pages, default=0), max(pages, default=0)
    if len(pages) == 1:
        return f"page {first}"
    return f"pages {first}-{last}" if pages and last - first + 1 == len(pages) else f"{len(pages)} pages"
