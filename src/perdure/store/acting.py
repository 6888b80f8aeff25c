"""What operators do to documents within a flush: requeue, cancel, raise. The part of `apply.Flush` that does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perdure.core.model import job_key
from perdure.errors import StoreBusy
from perdure.store import entering, feed, rows
from perdure.store.base import Query, Row, Steps
from perdure.store.counting import Counting
from perdure.store.dialect import Dialect
from perdure.store.operations import Cancel, NewJob, Raise, Requeue
from perdure.store.text import cleaned


class Acting:
    """Acts of a flush, whose state they change; the jobs and documents that they are about are locked."""

    sql: Dialect
    name: str
    now_ms: int
    entries: list[entering.Entry]
    keys: set[str]
    told: list[Row]
    locked: set[int]
    raised: list[entering.Raised]
    counting: Counting
    _end: Callable[[Sequence[Row]], Steps[None]]
    job_of: Callable[[Requeue], NewJob]

    def requeue(self, ops: Sequence[Requeue]) -> Steps[list[str]]:
        """Begin a new generation of documents, each named once."""
        if not ops:
            return []
        found = {
            row[:2]: row[2:] for row in (yield Query(self.sql.DOCUMENT_LOCK, rows=[_key(op) for op in ops]))
        }
        answers = []
        for op in ops:
            answers.append((yield from self._requeueable(op, found.get(_key(op)))))
        again = {_key(op): op for op, answer in zip(ops, answers, strict=True) if answer == "requeued"}
        if not again:
            return answers
        for org, id_, generation in sorted((yield Query(self.sql.DOCUMENT_OPEN, rows=list(again)))):
            op = again[org, id_]
            # an operator's requeue in the flush in which the parent has other content for it: the last one counts
            self.entries[:] = [e for e in self.entries if (e.org, e.key) != (org, job_key(id_))]
            self.counting.document(org, found[org, id_][3], found[org, id_][0], "open")
            self.entries.append(
                entering.Entry(org, id_, job_key(id_), self.job_of(op), generation, op.fresh_from, again=True)
            )
            self.told.append(feed.entry(org, self.now_ms, "requeued", id_, generation=generation))
            yield Query(self.sql.SAVED_SUPERSEDED, (org, id_, generation))
        yield Query(self.sql.DEAD_DROP, rows=list(again))
        if contents := [rows.content(op.document_id, op.content) for op in again.values() if op.content]:
            yield Query(self.sql.DOCUMENT_CONTENT, rows=contents)
        acts = [(self.now_ms, op.by, "requeue", *key, op.reason) for key, op in again.items()]
        yield Query(self.sql.ACT_ADD_FLUSHED, (self.name,), acts)
        return answers

    def _requeueable(self, op: Requeue, found: Row | None) -> Steps[str]:
        """The answer; what is still under way and has other content by now is cut off."""
        if found is None:
            return "refused: no such document"
        state, generation, to_be_repaired, _ = found
        if op.name is not None:
            yield Query(self.sql.DOCUMENT_NAME, (op.org, op.document_id, op.name))
        if op.dead_only and state != "dead":
            return f"refused: the document is {'in progress again' if state == 'open' else state}, not dead"
        if state == "open" and op.content is None:
            return "refused: the document is still in progress; cancel it first"
        if state == "open" or to_be_repaired:
            # follow-ups of generations that ended go on: their caller was promised them
            since = generation if state == "open" else generation + 1
            made_anew = None if op.content is not None else op.job.pipeline
            yield from self._cut_off(
                op.org, op.document_id, since, "superseded by a new generation", made_anew
            )
        return "requeued"

    def cancel(self, op: Cancel) -> Steps[str]:
        found = yield Query(self.sql.DOCUMENT_LOCK, rows=[_key(op)])
        if not found:
            return "refused: no such document"
        if (state := found[0][2]) != "open":
            return f"refused: the document is {state}"
        yield from self._cut_off(op.org, op.document_id, 0, op.reason)
        reason = cleaned(op.reason) or None
        end = (op.org, op.document_id, "cancelled", self.now_ms, "cancelled", reason, None)
        yield from self._end([end])
        yield self._act(op.by, "cancel", op.org, op.document_id, op.reason)
        self.told.append(feed.entry(op.org, self.now_ms, "cancelled", op.document_id, reason=reason or ""))
        return "cancelled"

    def _cut_off(
        self, org: str, document_id: str, since: int, reason: str, repaired: str | None = None
    ) -> Steps[None]:
        """End all jobs of the document from this generation on, and older repairs, all or of one pipeline; a worker
        that runs one is fenced."""
        for id_, *live in (yield Query(self.sql.JOBS_LIVE, (org, document_id, since, repaired))):
            if self.sql.JOBS_LOCK is not None and id_ not in self.locked:
                raise StoreBusy(f"a job of document {document_id} came meanwhile; the write is repeated")
            self.counting.left(tuple(live))
        running = yield Query(self.sql.JOB_RUNNING, (org, document_id, since, repaired))
        if cut_off := [rows.cancelled(rows.job(row), reason, self.now_ms) for row in running]:
            yield Query(self.sql.ATTEMPT_ADD, rows=cut_off)
        freed = yield Query(self.sql.JOB_CANCEL, (org, document_id, since, self.now_ms, repaired))
        self.keys |= {row[0] for row in freed if row[0] is not None}
        yield Query(self.sql.OUTBOX_WITHDRAW, (org, document_id))

    def raise_(self, op: Raise) -> Steps[str]:
        answer = yield from entering.raise_(self.sql, op, self.now_ms, self.raised)
        if not answer.startswith("refused"):
            to = "" if op.priority is None else f"{op.priority}"
            reason = ": ".join(filter(None, (to, op.reason)))
            yield self._act(op.by, op.verb, op.org, op.document_id, reason)
        return answer

    def _act(self, who: str, verb: str, org: str, target: str, reason: str) -> Query:
        return Query(self.sql.ACT_ADD_FLUSHED, (self.name, self.now_ms, who, verb, org, target, reason))


def _key(op: Requeue | Cancel) -> tuple[str, str]:
    return op.org, op.document_id
