"""One flush: what a batch of operations does inside one transaction, as Steps without input or output.

Order: locks, operators' acts, fenced saves and settles with all that hangs on them, new documents, promotions, limits,
beats, and the claims last, so that a worker's finished jobs make room for its next ones in the same commit.
Each answer belongs to the operation at the same position.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from perdure.core.lane import is_large, like, sized
from perdure.core.model import Job, State, repairs
from perdure.core.outcome import Done, Hold, Later, Outcome
from perdure.store import (
    entering,
    feed,
    gates,
    handing_out,
    indexing,
    locking,
    once,
    outbox,
    passing,
    ranks,
    rotation,
    rows,
    stuck,
)
from perdure.store.acting import Acting
from perdure.store.base import Query, Row, Steps
from perdure.store.counting import Counting
from perdure.store.dialect import Dialect
from perdure.store.fairness import Flow
from perdure.store.gates import Gates
from perdure.store.operations import (
    Add,
    Added,
    Beat,
    Cancel,
    Claim,
    HandOver,
    Kind,
    NewDocument,
    NewJob,
    Operation,
    Promote,
    Raise,
    Requeue,
    Save,
    Settle,
)

LATEST_PART = 5  # one in so many of the jobs that a full batch promotes fell due last


class Flush(Acting):
    """The state of one transaction while its steps run."""

    def __init__(
        self, sql: Dialect, client: int, number: int, now_ms: int, known: set[Flow], written: dict[Any, Any],
        large_bytes: int = 0, gated: bool = False,
    ) -> None:  # fmt: skip
        self.sql = sql
        self.client = client
        self.name = flush_name(client, number)
        self.now_ms = now_ms
        self.known = known  # flows that are declared for certain
        self.declared: set[Flow] = set()  # those that this flush adds
        #: When this client last wrote down how far a queue's turns have been handed out, and what it serves.
        self.written = written
        self.noted: dict[Any, Any] = {}  # what of that this flush writes down
        self.large_bytes = large_bytes  # from which size on a document is large; 0: none is
        self.gated = gated  # an organisation or a dependency has a limit
        self.large: set[tuple[str, str]] = set()  # of the documents that are requeued
        self.presents: dict[str, float] = {}  # of queues in which it opens flows
        self.entries: list[entering.Entry] = []
        self.keys: set[str] = set()  # limits that may have room now
        self.told: list[Row] = []  # what the feed shall say
        self.superseded = 0  # chunks that are gone
        self.locked: set[int] = set()  # jobs that were locked before anything was changed
        self.due: list[Row] = []  # waiting jobs whose time has come
        self.raised: list[entering.Raised] = []  # jobs that get another turn
        self.held: list[Job] = []  # jobs that wait in a lane that is down from now on
        self.tallies: Counter[str] = Counter()
        self.counting = Counting()

    def run(self, batch: Sequence[Operation]) -> Steps[list[Any]]:
        """Apply the batch; one answer per operation."""
        answers: list[Any] = [None] * len(batch)
        kinds: dict[type[Operation], list[tuple[int, Any]]] = {}
        for n, op in enumerate(batch):
            kinds.setdefault(type(op), []).append((n, op))
        yield from self.weigh(kinds.get(Requeue, ()))
        yield from self.declare({flow for op in batch for flow in self.flows(op)})
        claims = [op for _, op in kinds.get(Claim, ())]
        self.presents = yield from handing_out.open_flows(self.sql, claims, self.now_ms, self.written)
        yield from self.lock(batch)
        again = kinds.get(Requeue, [])
        for (n, _), answer in zip(again, (yield from self.requeue([op for _, op in again])), strict=True):
            answers[n] = answer
        for kind, act in ((Cancel, self.cancel), (Raise, self.raise_)):
            for n, op in kinds.get(kind, ()):
                answers[n] = yield from act(op)
        yield from self.fenced(kinds.get(Save, []), kinds.get(Settle, []), answers)
        yield from self.hand_over(kinds.get(HandOver, []), answers)
        yield from self.add(kinds.get(Add, []), answers)
        for n, op in kinds.get(Promote, ()):
            found = yield Query(self.sql.DUE, (self.now_ms, op.limit))
            if len(found) == op.limit:  # nobody waits until all that fell due at one moment is promoted
                found += yield Query(self.sql.DUE_LATEST, (self.now_ms, op.limit // LATEST_PART))
            new = [row for row in dict.fromkeys(found) if row not in self.due]
            answers[n] = len(new)
            self.due += new
        yield from entering.enter(
            self.sql, self.entries, self.due, self.raised, self.held, self.now_ms, self.keys, self.counting
        )
        if self.told:
            yield Query(self.sql.FEED_ADD, rows=self.told)
        if self.entries and self.sql.NOTIFY:
            yield Query(self.sql.NOTIFY)
        yield from entering.fill(self.sql, self.keys, self.now_ms, self.counting)
        for n, op in kinds.get(Beat, ()):
            answers[n] = yield from self.beat(op)
        yield from self.claims(kinds.get(Claim, []), answers)
        for word, n in sorted(self.tallies.items()):
            yield Query(self.sql.TALLY_ADD, (word, n))
        yield from self.counting.write(self.sql, self.client)
        return answers

    def weigh(self, ops: Sequence[tuple[int, Requeue]]) -> Steps[None]:
        """Find out which documents that are requeued are large: their flows are declared before any row is locked."""
        which = sorted({(op.org, op.document_id) for _, op in ops if op.content is None})
        if which and self.large_bytes:
            sizes = yield Query(self.sql.DOCUMENT_SIZES, rows=which)
            self.large |= {(org, id_) for org, id_, *both in sizes if max(both) >= self.large_bytes}
        self.large |= {(op.org, op.document_id) for _, op in ops if op.content and self.is_large(op.content)}

    def is_large(self, document: NewDocument) -> bool:
        return 0 < self.large_bytes <= document.size

    def job_of(self, op: Requeue) -> NewJob:
        """The job of a requeued document, in the lane that its size asks for."""
        return entering.with_size(op.job, (op.org, op.document_id) in self.large)

    def lock(self, batch: Sequence[Operation]) -> Steps[None]:
        """Where several statements change jobs or documents, lock all of them before the first, in order."""
        if self.sql.JOBS_LOCK is None:
            return
        if which := locking.jobs_of(batch):
            self.locked |= yield from locking.lock_jobs(self.sql, which)
        if documents := locking.documents_of(batch):
            yield Query(self.sql.DOCUMENT_LOCK, rows=documents)

    def declare(self, flows: set[Flow]) -> Steps[None]:
        """A claim looks into the flows that are declared, so a job in another one would never be seen."""
        if new := flows - self.known:
            yield from entering.declare_flows(self.sql, new)
            self.declared |= new

    def flows(self, op: Operation) -> Iterator[Flow]:
        """The flows in which jobs may stand after this operation."""
        match op:
            case Add(documents=documents):
                yield from (_flow(d.job, self.is_large(d)) for d in documents)
            case Requeue(job=job):
                yield _flow(job, (op.org, op.document_id) in self.large)
            case Save() | Settle():
                yield op.job.queue, op.job.pipeline, like(op.lane, op.job.lane)
                if isinstance(op, Settle) and (hook := rows.hook(op)) is not None:
                    yield _flow(hook, is_large(op.job.lane))
                save = op.save if isinstance(op, Settle) else op
                if save is not None:
                    yield from (_flow(job, is_large(op.job.lane)) for job in save.jobs)
                    yield from (_flow(d.job, self.is_large(d)) for d in save.documents)

    # --- fenced writes ---------------------------------------------------------------------------

    def fenced(
        self, saves: Sequence[tuple[int, Save]], settles: Sequence[tuple[int, Settle]], answers: list[Any]
    ) -> Steps[None]:
        """Saves and settles: first the guarded change of the job, then everything that hangs on it."""
        sql, now_ms = self.sql, self.now_ms
        if not saves and not settles:
            return
        finished = sorted([one for one in settles if isinstance(one[1].outcome, Done)], key=_by_job)
        fence = [rows.save_fence(n, op) for n, op in sorted(saves, key=_by_job)]
        done = [rows.finish(n, op) for n, op in finished]
        both: list[tuple[int, Save | Settle]] = [*saves, *finished] if fence and done else []
        order = [n for n, _ in sorted(both, key=_by_job)]
        accepted = {row[0] for row in (yield from sql.fence(fence, done, order, now_ms))}
        yield from self._finished([op.job for n, op in finished if n in accepted])
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
            waits = lane in down or _waits_in_turn(ops[n].outcome)
            if waits and became[n] in (State.QUEUED, State.PARKED):
                self.held.append(replace(ops[n].job, lane=lane))
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
        for save in sorted(saves, key=lambda s: locking.by_document(s.job)):
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
        self._marked("degraded" if save.output.degraded else "repaired", save.job, save.output.stage)

    def repaired(self, job: Job) -> Steps[None]:
        """A repair has ended well: what fell back under another name, before or after it was renamed, goes."""
        which = (job.org, job.document_id, job.pipeline, job.generation)
        if renamed := (yield Query(self.sql.SAVED_REPAIRED, which)):
            yield Query(self.sql.DOCUMENT_DEGRADED, which[:2])
        for (stage,) in renamed:
            self._marked("repaired", job, stage)

    def _marked(self, word: str, job: Job, stage: str) -> None:
        self.tallies[word] += 1
        about = {"generation": job.generation, "pipeline": job.pipeline, "stage": stage}
        self.told.append(feed.entry(job.org, self.now_ms, word, job.document_id, **about))

    def ended(self, settles: Sequence[Settle]) -> Steps[None]:
        """History, the document's end, its hooks, and room under its limit; a finish wrote the first two itself."""
        sql, now_ms = self.sql, self.now_ms
        self.told += feed.ended(settles, now_ms)
        if others := [op for op in settles if not isinstance(op.outcome, Done)]:
            yield Query(sql.ATTEMPT_ADD, rows=[rows.attempt(op, now_ms) for op in others])
            if ends := sorted(end for op in others if (end := rows.document_end(op, now_ms))):
                yield from self._end(ends)
            if dead := [row for op in others if (row := rows.dead(op, now_ms))]:
                yield Query(sql.DEAD_ADD, rows=dead)
            yield from stuck.counted(sql, others)
        yield from outbox.add(sql, [event for op in settles for event in op.events], now_ms)
        for op in settles:
            if isinstance(op.outcome, Done) and repairs(op.job.key):
                yield from self.repaired(op.job)
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
        asked = [(n, d.org, d.id, d.job.pipeline, d.dedupe) for n, d in enumerate(others)]
        there = yield from locking.there(self.sql, asked)
        same = {(d.org, d.id): known for d, known in zip(others, there, strict=True)}
        for n, op in adds:
            answers[n] = []
            for d in op.documents:
                new = (d.org, d.id) in added
                added.discard((d.org, d.id))  # the same one again in this flush exists already
                # the same one again in this flush has been queued by it
                known = same.get((d.org, d.id), (d.id, "queued"))
                answers[n].append(Added(d.id, "added") if new else Added(known[0], "exists", known[1]))

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
                self.entries.append(entering.first(document, self.is_large(document)))
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
            if self.is_large(document):
                self.large.add((document.org, document.id))
            yield from self.requeue(
                [Requeue(document.org, document.id, document.job, None, "parent", reason, document)]
            )

    # --- leases ----------------------------------------------------------------------------------

    def beat(self, op: Beat) -> Steps[set[tuple[int, int]]]:
        silent_since_ms = None if op.silent_ms is None else self.now_ms - op.silent_ms
        if not (yield Query(self.sql.WORKER_BEAT, (op.worker, self.now_ms, silent_since_ms))):
            # taken for dead while it was cut off; its documents are others' by now, but it goes on
            yield Query(self.sql.WORKER_AGAIN, (op.worker, op.name, op.queues, self.now_ms))
        if not op.held:
            return set()
        held = sorted(op.held)
        yield Query(self.sql.BEAT, (self.now_ms,), held)
        ours = yield Query(self.sql.BEAT_HELD, rows=held)
        return set(held) - {(row[0], row[1]) for row in ours}

    def claims(self, ops: Sequence[tuple[int, Claim]], answers: list[Any]) -> Steps[None]:
        """Jobs of all claims first: what is written down about them is locked in one order."""
        handed_out: list[Row] = []
        open_ = (yield from gates.open_(self.sql, self.now_ms, self.counting)) if ops and self.gated else None
        for n, op in ops:
            found = yield from self.claim(op, open_)
            handed_out += found
            answers[n] = rows.readable([row[:-1] for row in found])
            self.counting.claimed(one.job for one in answers[n])
        if open_ is not None:
            yield from gates.close(self.sql, open_, self.now_ms)
            yield from entering.fill(self.sql, open_.own, self.now_ms, self.counting, free=True)
        claims = [op for _, op in ops]
        self.noted |= yield from handing_out.note(
            self.sql, claims, handed_out, self.presents, self.now_ms, self.written
        )

    def claim(self, op: Claim, open_: Gates | None = None) -> Steps[list[Row]]:
        op = rotation.rotated(op, ChainMap(self.noted, self.written), self.noted)
        found = yield from self._claim(op, op.kinds, open_)
        for _ in range(gates.ROUNDS):
            # jobs that waited at full gates are out of the way now
            if open_ is None or not open_.parked or len(found) == op.most:
                break
            open_.parked = 0
            found += yield from self._claim(op, _rest(op.kinds, found), open_)
        yield from ranks.note(found, {**self.written, **self.noted}, self.noted)
        # with a slot to spare it is worth waking, however many others are taken
        if (idle := not op.alone or len(found) < op.most) != op.idle:
            yield Query(self.sql.WORKER_IDLE, (op.worker, idle))
        return found

    def _claim(self, op: Claim, asked: Sequence[Kind], open_: Gates | None) -> Steps[list[Row]]:
        found: list[Row] = []
        kinds = []
        owing = ranks.owing(op, self.written)
        take = self.sql.take if open_ is None else partial(self._pass, open_)
        for kind in asked:
            most = kind.most
            if kind.passing is not None:
                others = yield from passing.claim(
                    self.sql, op, kind, self.now_ms, self.written, self.noted, take
                )
                found += others
                most = most - len(others) if kind.passing.fill else 0
            elif owing and not kind.suspect:
                others = yield from passing.before(self.sql, op, kind, self.now_ms, owing, take)
                found += others
                most -= len(others)
            if most:
                kinds.append(kind._replace(most=most))
        if open_ is None:
            if kinds:
                found += yield from self.sql.claim(op, self.now_ms, kinds)
            return found
        for kind in kinds:
            chosen = yield from gates.ready(self.sql, op, kind)
            found += yield from self._pass(open_, op, self.now_ms, chosen, kind.most)
        return found

    def _pass(
        self, open_: Gates, op: Claim, now_ms: int, chosen: Sequence[Row], most: int | None = None
    ) -> Steps[list[Row]]:
        wanted = len(chosen) if most is None else most
        return (yield from gates.take(self.sql, open_, op, now_ms, chosen, self.counting, wanted))


def flush_name(client: int, number: int) -> str:
    """By what an act says which flush it was part of."""
    return f"{client}-{number}"


def _by_job(numbered: tuple[int, Save | Settle]) -> tuple[str, str, str]:
    """The order in which every flush locks rows: two flushes cannot wait for each other."""
    return locking.by_document(numbered[1].job)


def _flow(job: NewJob, large: bool) -> Flow:
    return (job.queue, job.pipeline, sized(job.lane, large))


def _rest(kinds: Sequence[Kind], found: Sequence[Row]) -> list[Kind]:
    """What is still asked for."""
    rest = []
    for kind in kinds:
        taken = sum(_is_of(kind, row) for row in found)
        if taken < kind.most:
            rest.append(kind._replace(most=kind.most - taken))
    return rest


def _is_of(kind: Kind, row: Row) -> bool:
    if bool(row[rows.JOB_SUSPECT]) != kind.suspect:
        return False
    return kind.suspect or kind.large is None or kind.large == is_large(row[rows.JOB_LANE])


def _waits_in_turn(outcome: Outcome) -> bool:
    return isinstance(outcome, Later) and outcome.in_turn
