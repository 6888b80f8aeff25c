"""One flush: what a batch of operations does inside one transaction, as Steps without input or output.

Order: operators' acts, fenced saves and settles with all that hangs on them, new documents, promotions, limits,
beats, and the claims last, so that a worker's finished jobs make room for its next ones in the same commit.
Each answer belongs to the operation at the same position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perdure.core.model import Job, job_key
from perdure.core.outcome import Done, Hold
from perdure.store import entering, feed, indexing, once, outbox, rows, stuck
from perdure.store.base import Query, Row, Steps
from perdure.store.counting import Counting
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
from perdure.store.records import Claimed
from perdure.store.text import cleaned


class Flush:
    """The state of one transaction while its steps run."""

    def __init__(self, sql: Dialect, client: int, now_ms: int, known: set[tuple[str, str]]) -> None:
        self.sql = sql
        self.client = client
        self.now_ms = now_ms
        self.known = known  # (queue, lane) pairs that are declared for certain
        self.declared: set[tuple[str, str]] = set()  # those that this flush adds
        self.entries: list[entering.Entry] = []
        self.keys: set[str] = set()  # limits that may have room now
        self.told: list[Row] = []  # what the feed shall say
        self.superseded = 0  # chunks that are gone
        self.counting = Counting()

    def run(self, batch: Sequence[Operation]) -> Steps[list[Any]]:
        """Apply the batch; one answer per operation."""
        answers: list[Any] = [None] * len(batch)
        kinds: dict[type[Operation], list[tuple[int, Any]]] = {}
        for n, op in enumerate(batch):
            kinds.setdefault(type(op), []).append((n, op))
        again = kinds.get(Requeue, [])
        for (n, _), answer in zip(again, (yield from self.requeue([op for _, op in again])), strict=True):
            answers[n] = answer
        for kind, act in ((Cancel, self.cancel), (Raise, self.raise_)):
            for n, op in kinds.get(kind, ()):
                answers[n] = yield from act(op)
        yield from self.fenced(kinds.get(Save, []), kinds.get(Settle, []), answers)
        yield from self.hand_over(kinds.get(HandOver, []), answers)
        yield from self.add(kinds.get(Add, []), answers)
        yield from self.declare({(entry.job.queue, entry.job.lane) for entry in self.entries})
        yield from entering.enter(self.sql, self.entries, self.now_ms, self.keys, self.counting)
        if self.told:
            yield Query(self.sql.FEED_ADD, rows=self.told)
        if self.entries and self.sql.NOTIFY:
            yield Query(self.sql.NOTIFY)
        for n, op in kinds.get(Promote, ()):
            answers[n] = yield from entering.promote(
                self.sql, op.limit, self.now_ms, self.keys, self.counting
            )
        yield from entering.fill(self.sql, self.keys, self.now_ms, self.counting)
        for n, op in kinds.get(Beat, ()):
            answers[n] = yield from self.beat(op)
        for n, op in kinds.get(Claim, ()):
            answers[n] = yield from self.claim(op)
        yield from self.counting.write(self.sql, self.client)
        return answers

    def declare(self, pairs: set[tuple[str, str]]) -> Steps[None]:
        """A claim joins queue and lane, so a job in an undeclared one would never be seen."""
        if new := pairs - self.known:
            yield from entering.declare(self.sql, [queue for queue, _ in new], [lane for _, lane in new])
            self.declared |= new

    # --- fenced writes ---------------------------------------------------------------------------

    def fenced(
        self, saves: Sequence[tuple[int, Save]], settles: Sequence[tuple[int, Settle]], answers: list[Any]
    ) -> Steps[None]:
        """Saves and settles: first the guarded change of the job, then everything that hangs on it."""
        sql, now_ms = self.sql, self.now_ms
        if not saves and not settles:
            return
        moves = {(op.job.queue, op.lane) for _, op in saves} | {(op.job.queue, op.lane) for _, op in settles}
        yield from self.declare(moves)
        accepted: set[int] = set()
        if saves:
            fence = [rows.save_fence(n, op) for n, op in sorted(saves, key=_by_job)]
            accepted |= {row[0] for row in (yield Query(sql.FENCE_SAVE, (now_ms,), fence))}
        finished = sorted([one for one in settles if isinstance(one[1].outcome, Done)], key=_by_job)
        if finished:
            done = [rows.finish(n, op) for n, op in finished]
            ours = {row[0] for row in (yield from sql.finish(done, now_ms))}
            yield from self._finished([op.job for n, op in finished if n in ours])
            accepted |= ours
        if len(finished) < len(settles):
            accepted |= yield from self.settled(
                [one for one in settles if not isinstance(one[1].outcome, Done)]
            )
        for n, _ in (*saves, *settles):
            answers[n] = n in accepted
        jobs = [(n, op.job) for n, op in saves] + [(n, op.job) for n, op in settles]
        if lent := [(job.org, job.id) for n, job in jobs if job.probe is not None and n in accepted]:
            yield Query(sql.UNLEND, rows=lent)
        ended = [op for n, op in settles if n in accepted]
        kept = [op for n, op in saves if n in accepted] + [op.save for op in ended if op.save]
        yield from self.freed(kept)
        yield from self.kept(kept)
        yield from self.ended(ended)
        yield from self.spawned(kept)
        late = [n for n, _ in saves] + [n for n, op in settles if op.ours]
        if refused := len(set(late) - accepted):
            yield Query(sql.WORKER_FENCED, (self.client, refused))

    def _finished(self, jobs: Sequence[Job]) -> Steps[None]:
        """Count what was finished."""
        for job in jobs:
            self.counting.ran(job)
            if "/" in job.key:
                continue
            collection = job.collection
            if collection is None:  # it was not claimed here
                found = yield Query(self.sql.DOCUMENT_COLLECTION, (job.org, job.document_id))
                collection = found[0][0] if found else ""
            self.counting.document(job.org, collection, "open", "done")

    def hand_over(self, ops: Sequence[tuple[int, HandOver]], answers: list[Any]) -> Steps[None]:
        """Jobs that another service works on from now on."""
        if not ops:
            return
        accepted = yield from outbox.hand_over(self.sql, ops, self.now_ms)
        for n, op in ops:
            answers[n] = n in accepted
            if answers[n]:
                self.counting.ran(op.job)
                self.counting.job(op.job.key, op.job.queue, "", "remote")
        if refused := len(ops) - len(accepted):
            yield Query(self.sql.WORKER_FENCED, (self.client, refused))

    def settled(self, settles: Sequence[tuple[int, Settle]]) -> Steps[set[int]]:
        """Claims that end otherwise: what becomes of the job; the ordinals that were still ours."""
        yield from stuck.seize(
            self.sql, [op.job for _, op in settles if op.seized], self.now_ms, self.counting
        )
        down: set[str] = set()
        if any(isinstance(op.outcome, Hold) for _, op in settles):
            down = {row[0] for row in (yield Query(self.sql.LANES_DOWN))}
        fence = [rows.settle_fence(n, op, down) for n, op in sorted(settles, key=_by_job)]
        became = {row[0]: row[1] for row in (yield Query(self.sql.FENCE_SETTLE, (self.now_ms,), fence))}
        ops = dict(settles)
        for n, *_, lane in [row[:9] for row in fence if row[0] in became]:
            self.counting.ran(ops[n].job)
            self.counting.job(ops[n].job.key, ops[n].job.queue, lane, became[n])
        return set(became)

    def freed(self, saves: Sequence[Save]) -> Steps[None]:
        """Jobs that are past what their limit is about make room for others."""
        if free := [save.job for save in saves if save.frees]:
            yield Query(self.sql.JOB_FREED, rows=sorted((job.org, job.id) for job in free))
            self.keys |= {job.limit_key for job in free if job.limit_key is not None}

    def kept(self, saves: Sequence[Save]) -> Steps[None]:
        """Outputs, items, rows, chunks and follow-up jobs of accepted saves."""
        sql, now_ms = self.sql, self.now_ms
        if outputs := [rows.saved(s.job, s.output, now_ms) for s in saves if s.output]:
            yield Query(sql.SAVED_ADD, rows=outputs)
        for save in saves:
            yield from self.degraded(save)
        # one statement must not touch one row twice; of each key the last one written wins
        items = {rows.item_key(s.job, item): rows.item(s.job, item) for s in saves for item in s.items}
        if items:
            yield Query(sql.ITEM_ADD, rows=list(items.values()))
        emitted = {rows.emitted_key(s.job, r): rows.emitted(s, r, now_ms) for s in saves for r in s.rows}
        if emitted:
            yield Query(sql.EMITTED_ADD, rows=list(emitted.values()))
        if stale := [rows.stale(s) for s in saves if s.output and s.fingerprint and s.job.resumed]:
            yield Query(sql.EMITTED_STALE, rows=stale)
        if found := [s for s in saves if s.chunks is not None or s.connections is not None]:
            self.superseded += yield from indexing.index(sql, found, now_ms)
        for save in saves:
            for job in save.jobs:
                self.entries.append(entering.follow_up(save.job, job))
            for statement, params in save.sql:
                yield Query(statement, params)

    def spawned(self, saves: Sequence[Save]) -> Steps[None]:
        """Their children, after all that ends: one that has other content by now may end in this very flush."""
        if documents := [d for s in saves for d in s.documents]:
            yield from self.insert(documents)

    def degraded(self, save: Save) -> Steps[None]:
        """Mark a document whose stage fell back, and take the mark away when that has been made good."""
        if save.output is None or not (save.output.degraded or save.repairs):
            return
        yield Query(self.sql.DOCUMENT_DEGRADED, (save.job.org, save.job.document_id))
        word, job = "degraded" if save.output.degraded else "repaired", save.job
        yield Query(self.sql.TALLY_ADD, (word, 1))
        about = {"generation": job.generation, "pipeline": job.pipeline, "stage": save.output.stage}
        self.told.append(feed.entry(job.org, self.now_ms, word, job.document_id, **about))

    def ended(self, settles: Sequence[Settle]) -> Steps[None]:
        """History, the document's end, its hooks, and room under its limit; a finish wrote the first two itself."""
        sql, now_ms = self.sql, self.now_ms
        self.told += feed.ended(settles, now_ms)
        if others := [op for op in settles if not isinstance(op.outcome, Done)]:
            yield Query(sql.ATTEMPT_ADD, rows=[rows.attempt(op, now_ms) for op in others])
            if ends := [end for op in others if (end := rows.document_end(op, now_ms))]:
                yield from self._end(ends)
                yield Query(sql.DEAD_ADD, rows=[row for op in others if (row := rows.dead(op, now_ms))])
            yield from stuck.counted(sql, others)
        yield from outbox.add(sql, [event for op in settles for event in op.events], now_ms)
        for op in settles:
            if op.save is not None and not isinstance(op.outcome, Done):
                yield Query(sql.JOB_ANSWERED, (now_ms, op.job.org, op.job.id, op.save.lease_ms))
            if hook := rows.hook(op):
                self.entries.append(entering.follow_up(op.job, hook))
            if op.job.limit_key is not None:
                self.keys.add(op.job.limit_key)

    def _end(self, ends: Sequence[Row]) -> Steps[None]:
        for org, collection, state in (yield Query(self.sql.DOCUMENT_END, rows=ends)):
            self.counting.document(org, collection, "open", state)

    # --- new documents ---------------------------------------------------------------------------

    def add(self, adds: Sequence[tuple[int, Add]], answers: list[Any]) -> Steps[None]:
        """What is asked for under a key that was used before is answered as it was then."""
        new, repeated = yield from once.begin(adds, self.now_ms)
        if new:
            yield from self._add(new, answers)
        for n, op in new:
            if op.once is not None:
                answers[n] = yield from once.end(op.once, op.documents, answers[n])
        for n, op in repeated:
            if op.once is not None:
                answers[n] = yield from once.again(op.once)

    def _add(self, adds: Sequence[tuple[int, Add]], answers: list[Any]) -> Steps[None]:
        documents = [d for _, op in adds for d in op.documents]
        added = yield from self.insert(documents)
        others = [d for d in documents if (d.org, d.id) not in added]
        same: dict[tuple[str, str], str] = {}
        if asked := [(i, d.org, d.job.pipeline, d.dedupe) for i, d in enumerate(others) if d.dedupe]:
            for i, known in (yield Query(self.sql.DOCUMENT_SAME, rows=asked)):
                same[others[i].org, others[i].id] = known
        for n, op in adds:
            answers[n] = []
            for d in op.documents:
                new = (d.org, d.id) in added
                added.discard((d.org, d.id))  # the same one again in this flush exists already
                answers[n].append(
                    Added(d.id, "added") if new else Added(same.get((d.org, d.id), d.id), "exists")
                )

    def insert(self, documents: Sequence[NewDocument]) -> Steps[set[tuple[str, str]]]:
        """Write documents that are not there yet, and their jobs; (organisation, id) of those that were written."""
        ordered = sorted(documents, key=lambda d: (d.org, d.job.pipeline, d.dedupe or d.id))
        written = yield Query(self.sql.DOCUMENT_ADD, rows=[rows.document(d, self.now_ms) for d in ordered])
        added = {(row[0], row[1]) for row in written}
        seen: set[tuple[str, str]] = set()
        for document in documents:
            which = (document.org, document.id)
            if which in added and which not in seen:
                seen.add(which)
                self.entries.append(entering.first(document))
                self.counting.document(document.org, document.collection, None, "open")
        self.counting.accepted(len(added))
        for document in documents:
            if document.refresh and (document.org, document.id) not in added:
                yield from self._refresh(document)
        return added

    def _refresh(self, document: NewDocument) -> Steps[None]:
        """Start a child again that has other content by now."""
        known = yield Query(self.sql.DOCUMENT_HASH, (document.org, document.id))
        if known and known[0][0] != document.content_hash:
            reason = "its parent has other content for it"
            yield from self.requeue(
                [Requeue(document.org, document.id, document.job, None, "parent", reason, document)]
            )

    # --- operators' acts -------------------------------------------------------------------------

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
            self.counting.document(org, found[org, id_][3], found[org, id_][0], "open")
            self.entries.append(
                entering.Entry(org, id_, job_key(id_), op.job, generation, op.fresh_from, again=True)
            )
            self.told.append(feed.entry(org, self.now_ms, "requeued", id_, generation=generation))
        yield Query(self.sql.DEAD_DROP, rows=list(again))
        if contents := [rows.content(op.document_id, op.content) for op in again.values() if op.content]:
            yield Query(self.sql.DOCUMENT_CONTENT, rows=contents)
        acts = [(self.now_ms, op.by, "requeue", *key, op.reason) for key, op in again.items()]
        yield Query(self.sql.ACT_ADD, rows=acts)
        return answers

    def _requeueable(self, op: Requeue, found: Row | None) -> Steps[str]:
        """The answer; what is still under way and has other content by now is cut off."""
        if found is None:
            return "refused: no such document"
        state, generation, degraded, _ = found
        if op.name is not None:
            yield Query(self.sql.DOCUMENT_NAME, (op.org, op.document_id, op.name))
        if op.dead_only and state != "dead":
            return f"refused: the document is {'in progress again' if state == 'open' else state}, not dead"
        if state == "open" and op.content is None:
            return "refused: the document is still in progress; cancel it first"
        if state == "open" or degraded:
            # what follows from generations that ended goes on: somebody was promised it
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
        for live in (yield Query(self.sql.JOBS_LIVE, (org, document_id, since, repaired))):
            self.counting.left(live)
        running = yield Query(self.sql.JOB_RUNNING, (org, document_id, since, repaired))
        if cut_off := [rows.cancelled(rows.job(row), reason, self.now_ms) for row in running]:
            yield Query(self.sql.ATTEMPT_ADD, rows=cut_off)
        freed = yield Query(self.sql.JOB_CANCEL, (org, document_id, since, self.now_ms, repaired))
        self.keys |= {row[0] for row in freed if row[0] is not None}
        yield Query(self.sql.OUTBOX_WITHDRAW, (org, document_id))

    def raise_(self, op: Raise) -> Steps[str]:
        answer = yield from entering.raise_(self.sql, op, self.now_ms)
        if not answer.startswith("refused"):
            to = "" if op.priority is None else f"{op.priority}"
            reason = ": ".join(filter(None, (to, op.reason)))
            yield self._act(op.by, op.verb, op.org, op.document_id, reason)
        return answer

    def _act(self, who: str, verb: str, org: str, target: str, reason: str) -> Query:
        return Query(self.sql.ACT_ADD, (self.now_ms, who, verb, org, target, reason))

    # --- leases ----------------------------------------------------------------------------------

    def beat(self, op: Beat) -> Steps[set[tuple[int, int]]]:
        if not (yield Query(self.sql.WORKER_BEAT, (op.worker, self.now_ms))):
            # taken for dead while it was cut off; its documents are others' by now, but it goes on
            yield Query(self.sql.WORKER_AGAIN, (op.worker, op.name, op.queues, self.now_ms))
        if not op.held:
            return set()
        held = sorted(op.held)
        yield Query(self.sql.BEAT, (self.now_ms,), held)
        ours = yield Query(self.sql.BEAT_HELD, rows=held)
        return set(held) - {(row[0], row[1]) for row in ours}

    def claim(self, op: Claim) -> Steps[list[Claimed]]:
        found = []
        if op.suspects:
            found += yield from self.sql.claim(op, self.now_ms, True, op.suspects)
        if op.limit:
            found += yield from self.sql.claim(op, self.now_ms, False, op.limit)
        # with a slot to spare it is worth waking, however many others are taken
        if (idle := not op.alone or len(found) < op.limit + op.suspects) != op.idle:
            yield Query(self.sql.WORKER_IDLE, (op.worker, idle))
        claimed = rows.readable(found)
        self.counting.claimed(one.job for one in claimed)
        return claimed


def _by_job(numbered: tuple[int, Save | Settle]) -> int:
    """Rows are locked in this order, whoever locks them: two flushes cannot wait for each other."""
    return numbered[1].job.id


def _key(op: Requeue | Cancel) -> tuple[str, str]:
    return op.org, op.document_id


def _act_of(op: Requeue | Cancel | Raise) -> tuple[str, str]:
    """What an act is called, and its answer."""
    match op:
        case Requeue():
            return "requeue", "requeued"
        case Cancel():
            return "cancel", "cancelled"
        case Raise():
            return op.verb, "raised" if op.priority is None else "changed"


def resolve(sql: Dialect, batch: Sequence[Operation]) -> Steps[list[Any]]:
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
                acted = yield Query(sql.ACTED_AGAIN, (op.org, op.document_id))
                known = acted == [(verb, op.by)]
                answers.append(done if known else f"refused: could not {verb}; see its state")
            case Beat():
                answers.append(set())
            case Promote():
                answers.append(0)
    return answers


def _added_again(sql: Dialect, documents: Sequence[NewDocument]) -> Steps[list[Added]]:
    answers = []
    for document in documents:
        if (yield Query(sql.DOCUMENT, (document.org, document.id))):
            answers.append(Added(document.id, "added"))
            continue
        asked = [(0, document.org, document.job.pipeline, document.dedupe)]
        same = yield Query(sql.DOCUMENT_SAME, rows=asked)
        answers.append(Added(same[0][1] if same else document.id, "exists"))
    return answers
