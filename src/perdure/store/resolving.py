"""The answers of a flush that was applied although the reply to its COMMIT was lost. Steps used by `flusher`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.store import once, rows
from perdure.store.base import Query, Steps
from perdure.store.dialect import Dialect
from perdure.store.operations import (
    Add,
    Added,
    Beat,
    Cancel,
    Claim,
    HandOver,
    NewDocument,
    Once,
    Operation,
    Promote,
    Raise,
    Requeue,
    Save,
    Settle,
)

#: The answer of an operation that is to be done again: what it would have answered with is gone.
AGAIN = object()


def resolve(sql: Dialect, batch: Sequence[Operation], flush: str) -> Steps[list[Any]]:
    """The answers of a flush that was applied although its COMMIT reply was lost, read back."""
    answers: list[Any] = []
    for op in batch:
        match op:
            case Claim():
                found = yield Query(sql.CLAIMED_AGAIN, (op.worker, op.token))
                answers.append(rows.readable(found))
            case Save(job=job):
                still = yield Query(sql.SAVED_AGAIN, (job.org, job.id, job.token))
                answers.append(bool(still))
            case HandOver(job=job, token=token):
                answers.append(bool((yield Query(sql.SAVED_AGAIN, (job.org, job.id, token)))))
            case Settle(job=job):
                key = (job.org, job.document_id, job.key, job.generation, job.token, *rows.ending(op))
                answers.append(bool((yield Query(sql.SETTLED_AGAIN, key))))
            case Add(once=Once() as key):
                answers.append((yield from once.again(key, False)))
            case Add(documents=documents):
                answers.append((yield from _added_again(sql, documents)))
            case Requeue() | Cancel() | Raise():
                verb, done = _act_of(op)
                acted = yield Query(sql.ACTED_AGAIN, (op.org, op.document_id, verb, op.by, flush))
                answers.append(done if acted else f"refused: could not {verb}; see its state")
            case Beat():
                answers.append(set())
            case Promote():
                answers.append(0)
    return answers


def _added_again(sql: Dialect, documents: Sequence[NewDocument]) -> Steps[list[Added] | object]:
    """AGAIN where neither the document nor what was in its way is there: it was purged before anybody heard of it."""
    answers: list[Added] = []
    for document in documents:
        if (yield Query(sql.DOCUMENT, (document.org, document.id))):
            answers.append(Added(document.id, "added"))
            continue
        asked = [(0, document.org, document.id, document.job.pipeline, document.dedupe)]
        same = yield Query(sql.DOCUMENT_SAME, rows=asked)
        if not same:
            return AGAIN
        answers.append(Added(same[0][1], "exists", same[0][2]))
    return answers


def _act_of(op: Requeue | Cancel | Raise) -> tuple[str, str]:
    """What an act is called, and its answer."""
    match op:
        case Requeue():
            return "requeue", "requeued"
        case Cancel():
            return "cancel", "cancelled"
        case Raise():
            return op.verb, "raised" if op.priority is None else "changed"
