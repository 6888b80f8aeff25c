"""Locks of rows, all verbs in one order, so that no two transactions wait for each other. Steps of transactions.

See "The order of locks" in docs/architecture.md. SQLite has one writer and needs none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.core.model import Job, repairs
from perdure.core.outcome import Dead, Done
from perdure.errors import StoreBusy
from perdure.store.base import Query, Row, Steps
from perdure.store.dialect import Dialect
from perdure.store.operations import Cancel, HandOver, Operation, Raise, Requeue, Save, Settle

#: Jobs that are locked together: organisation, document, and the job's key; None: all jobs of the document.
Which = tuple[str, str, str | None]


def by_document(job: Job) -> tuple[str, str, str]:
    """The order in which jobs are locked. That of their documents, so that a statement which changes both jobs and
    documents locks both in order."""
    return job.org, job.document_id, job.key


def lock_jobs(sql: Dialect, which: Iterable[Which]) -> Steps[set[int]]:
    """Lock these jobs in order, those that are there; their numbers."""
    if sql.JOBS_LOCK is None:
        return set()
    ordered = sorted(which, key=lambda one: (one[0], one[1], one[2] or ""))
    return {row[0] for row in (yield Query(sql.JOBS_LOCK, rows=ordered))}


def jobs_of(batch: Sequence[Operation]) -> list[Which]:
    """The jobs that must be locked before the first of these operations: all that the flush changes, where several
    statements change them. One statement alone locks its jobs in order itself."""
    kinds: set[object] = set()
    which: list[Which] = []
    for op in batch:
        match op:
            case Requeue() | Cancel() | Raise():
                kinds |= {Requeue, Cancel}  # which of a document's jobs, only the lock can tell
                which.append((op.org, op.document_id, None))
            case Save() | Settle() | HandOver():
                ends = isinstance(op, Settle) and not isinstance(op.outcome, Done)
                # one statement saves and finishes
                kinds.add(
                    HandOver if isinstance(op, HandOver) else (ends, isinstance(op, Settle) and op.seized)
                )
                which.append(by_document(op.job))
        for child in _renewed(op):
            kinds |= {Requeue, Cancel}
            which.append((*child, None))
    return which if len(kinds) > 1 else []


def documents_of(batch: Sequence[Operation]) -> list[tuple[str, str]]:
    """The documents that must be locked before the first of these operations: all that the flush changes, where
    several statements change them."""
    kinds: set[object] = set()
    which: set[tuple[str, str]] = set()
    for op in batch:
        match op:
            case Requeue() | Cancel():
                kinds |= {Requeue, type(op)}  # requeues lock theirs together, a cancel its own
                which.add((op.org, op.document_id))
            case Settle(outcome=Done() | Dead()) if "/" not in op.job.key:
                kinds.add(type(op.outcome))
                which.add((op.job.org, op.job.document_id))
            case Settle(outcome=Done()) if repairs(op.job.key):
                kinds |= {Save}
                which.add((op.job.org, op.job.document_id))
        save = op.save if isinstance(op, Settle) else op
        if isinstance(save, Save) and save.output is not None and (save.output.degraded or save.repairs):
            kinds |= {Save}
            which.add((save.job.org, save.job.document_id))
        if renewed := _renewed(op):
            kinds |= {Requeue, Cancel}
            which.update(renewed)
    return sorted(which) if len(kinds) > 1 else []


def _renewed(op: Operation) -> list[tuple[str, str]]:
    """Children that may be started again with other content."""
    save = op.save if isinstance(op, Settle) else op
    if not isinstance(save, Save):
        return []
    return [(child.org, child.id) for child in save.documents if child.refresh]


def there(sql: Dialect, asked: Sequence[Row]) -> Steps[list[tuple[str, str]]]:
    """For each (number, organisation, id, pipeline, dedupe), in this order, id and state of the document that is in the
    way of such a new one, locked until the transaction ends. StoreBusy where there is none: it was purged meanwhile."""
    found: dict[int, tuple[str, str]] = {}
    for n, id_, state in (yield Query(sql.DOCUMENT_SAME, rows=asked)):
        # what has the same dedupe key goes before what has the same id
        if n not in found or id_ != asked[n][2]:
            found[n] = id_, state
    if len(found) < len(asked):
        raise StoreBusy("a document was purged while it was added again; the write is repeated")
    return [found[n] for n in range(len(asked))]
