"""The tables as they were after the last transaction, and what no transaction may do to them.

Every commit is looked at, whoever made it: which rows it touched is told by the database itself. What becomes of jobs
is judged in `moves`, what the world looks like in the end in `ending`.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import apsw

from perdure.core.lane import is_large
from perdure.core.model import repairs
from tests.sim.fairness import Fairness
from tests.sim.leaving import Leaving
from tests.sim.ledger import Ledger
from tests.sim.limits import Limits
from tests.sim.maps import REPAIRED
from tests.sim.moves import Moves
from tests.sim.promises import Violation
from tests.sim.shelf import Shelf
from tests.sim.sticking import Sticking
from tests.sim.tables import (
    ACT,
    CLOSED,
    DOCUMENT,
    EFFECT,
    FENCED,
    FORGOTTEN,
    ITEM,
    JOB,
    LISTED,
    ONCE,
    SAVED,
    DocumentRow,
    JobRow,
    Key,
    Move,
)
from tests.sim.telling import Telling
from tests.sim.world import LARGE_BYTES, Process, World

if TYPE_CHECKING:
    from tests.sim.post import Post

DELETE = apsw.SQLITE_DELETE
FILE = re.compile(" exported to | imported from ")


class Book:
    """A mirror of the store that judges each change of it."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self.world, self.ledger, self.database = world, ledger, world.database
        ledger.book = self
        self.documents: dict[str, DocumentRow] = {}
        self.names: defaultdict[str, set[str]] = defaultdict(set)  # that a document ever had
        self.jobs: dict[int, JobRow] = {}
        self.jobs_of: defaultdict[str, list[int]] = defaultdict(list)
        self.saved: dict[Key, str] = {}  # (document, pipeline, stage, generation) → hash of the output
        self.makers: dict[Key, str] = {}  # as `saved` → key of the job that made it
        self.degraded: set[Key] = set()  # of `saved`, what fallbacks made
        self.touched = world.touched
        self.items: dict[Key, bytes] = {}
        self.effects: Counter[Key] = Counter()
        self.acts: Counter[tuple[str, str, str]] = Counter()
        self.acts_now: set[tuple[str, str]] = set()  # verb and target, of this transaction
        self.refreshed_now: set[str] = set()  # documents that got other content in it
        self.marked_now: list[tuple[str, str, int]] = []  # saves of fallbacks and repairs in it
        self.last_act: dict[str, str] = {}
        self.charged: Counter[tuple[str, int]] = Counter()  # claims that were, by key and generation
        self.ended: set[tuple[str, int, int]] = set()  # claims in history: key, generation, claim
        self.lanes_down: set[str] = set()
        self.held_by: dict[str, str] = {}  # dependency → who holds it
        self.held_since_s: dict[str, float] = {}  # dependency → since when
        self.queues_paused: set[str] = set()
        self.limits: dict[str, int | None] = {}  # key → how many at once
        self.rates: dict[str, float | None] = {}  # key → how many per second
        self.fenced = 0
        self.now_ms = self.latest_ms = 0
        self.moved_s = 0.0  # when a job changed last
        self._rowids: dict[str, dict[int, Key]] = {"saved": {}, "item": {}, "document": {}}
        self._changes: dict[str, dict[int, int]] = {}
        self.fairness = Fairness()
        self.post: Post  # of what other services are told
        self.limits_of_keys = Limits(self)
        self._moves = Moves(self)
        self.shelf = Shelf(self)
        self.leaving = Leaving(self)
        self.stuck = Sticking(self)
        self._telling = Telling(self)
        self.onces: dict[tuple[str, str], str] = {}  # organisation and key → what was asked for under it
        self._under_key: Counter[str] = Counter()  # documents, by the key that they say they came under
        self._turned: list[tuple[DocumentRow, DocumentRow]] = []  # documents, in this transaction
        self.superseded: set[Key] = set()  # as `saved`, what a requeue deleted because nobody can read it
        self._dropped: list[Key] = []  # in this transaction
        self.put_off: dict[str, int] = {}  # documents of this transaction that begin not before
        self.transactions = 0
        self.database.set_update_hook(self._changed)

    def _changed(self, kind: int, _: str, table: str, rowid: int) -> None:
        self._changes.setdefault(table, {})[rowid] = kind

    def begin(self) -> None:
        self._changes = {}

    def committed(self, by: Process) -> None:
        """Look at what a transaction did; the first promise that it broke is noted."""
        changes, self._changes = self._changes, {}
        self.now_ms = self.world.now_ms()
        self.latest_ms = max(self.latest_ms, self.now_ms)
        self.limits_of_keys.earn()
        self.acts_now = set()
        self.refreshed_now = set()
        self.marked_now = []
        self.put_off = {}
        self._turned = []
        self._dropped = []
        self.transactions += 1
        try:
            self.leaving.went(changes.get("document", {}), self._rowids["document"], by)
            if changes.keys() & {"lane", "queue", "slot", "dependency"}:
                self._read_switches()
            for rowid in changes.get("act", ()):
                self._acted(rowid)
            made = self._keep_saved(changes.get("saved", {}), by)
            self._keep_effects(changes.get("effect", {}), made)
            self.shelf.keep(made)
            for rowid in changes.get("once", ()):
                org, key, request = self._row(ONCE, rowid)
                self.onces[org, key] = request
            documents = self._keep_documents(changes.get("document", {}))
            told = [number for number, kind in changes.get("feed", {}).items() if kind != DELETE]
            self._telling.check(told, self._turned)
            jobs = self._keep_jobs(changes.get("job", {}), by)
            self._check_superseded()
            self._keep_items(changes.get("item", {}), by, jobs)
            if changes.keys() & {"job", "outbox"} and (
                forgotten := self.database.execute(FORGOTTEN).fetchall()
            ):
                raise Violation("told", f"handed over, but nobody is told: {forgotten}")
            self._check_whole(documents | {new.document_id for _, new in jobs if new is not None})
            if "tally" in changes or DELETE in changes.get("worker", {}).values():
                self.count_fenced()
        except Violation as violation:
            self.world.violated(violation.promise, violation.text)

    # --- switches and acts -----------------------------------------------------------------------

    def _read_switches(self) -> None:
        run = self.database.execute
        self.lanes_down = {row[0] for row in run("SELECT name FROM lane WHERE down_ms IS NOT NULL")}
        for job in self.jobs.values():
            self.held(job)
        held: list[Key] = run("SELECT name, held_by FROM dependency WHERE down_ms IS NOT NULL").fetchall()
        now_s = self.world.loop.now_s
        self.held_since_s = {row[0]: self.held_since_s.get(row[0], now_s) for row in held}
        self.held_by = {row[0]: row[1] for row in held}
        self.queues_paused = {row[0] for row in run("SELECT name FROM queue WHERE paused")}
        slots: list[Key] = run("SELECT key, concurrency, rate_per_s FROM slot").fetchall()
        self.limits = {key: concurrency for key, concurrency, _ in slots}
        self.rates = {key: rate for key, _, rate in slots}

    def held(self, job: JobRow) -> None:
        """Note a job that stands in a lane that is down."""
        if job.lane in self.lanes_down and job.state in ("queued", "parked"):
            self.touched.by("hold", job.document_id)

    def _acted(self, rowid: int) -> None:
        verb, target, who, reason = self._row(ACT, rowid)
        about = FILE.split(target)[0]  # whose name is another one each time
        self.world.happened(f"act {verb}", f"{about} by {who}")
        if reason.startswith("not before "):
            self.put_off[target] = int(reason.split()[-1])
        self.acts[verb, target, who] += 1
        self.acts_now.add((verb, target))
        self.last_act[target] = verb

    # --- outputs, items, effects -----------------------------------------------------------------

    def under(self, document_id: str, token: int) -> JobRow | None:
        """The job of the document that this token holds as the transaction finds it."""
        jobs = (self.jobs[id_] for id_ in self.jobs_of[document_id])
        return next((job for job in jobs if job.token == token), None)

    def holder(self, document_id: str, token: int, by: Process) -> Process | None:
        """Whose lease this token is."""
        job = self.under(document_id, token)
        if job is None:
            return None
        if job.worker == 0:  # whoever brings what the service said
            return by.family if token in self.ledger.answered else None
        return self.ledger.claims[job.id, token].by.family

    def _keep_saved(self, changes: dict[int, int], by: Process) -> set[Key]:
        made: set[Key] = set()
        for rowid, kind in changes.items():
            if kind == DELETE:
                key = self._rowids["saved"].pop(rowid)
                del self.saved[key]
                if ("requeue", key[0]) in self.acts_now and key[0] not in self.leaving.now:
                    self._dropped.append(key)
                elif key in self.degraded and key[0] not in self.leaving.now:
                    self._repaired(key)  # under another name
                elif key[0] not in self.leaving.now:
                    raise Violation("immutable", f"the saved output {key} was deleted")
                continue
            *which, output_hash, degraded, token = self._row(SAVED, rowid)
            key = tuple(which)
            job = self.under(key[0], token)
            if job is None or self.holder(key[0], token, by) is not by.family:
                raise Violation("fence", f"{by.name} saved {key} under a token that is not its own")
            if key in self.saved and not self.makes_good(job, key):
                raise Violation("immutable", f"the saved output {key} was written again")
            self._rowids["saved"][rowid], self.saved[key], self.makers[key] = key, output_hash, job.key
            self._keep_degraded(key, bool(degraded), job)
            made.add(key)
            self.world.happened("save", f"{key} by {by.name}")
        return made

    def makes_good(self, job: JobRow, key: Key) -> bool:
        """Whether the job repairs this save, and has not done so yet."""
        return repairs(job.key) and key[2] in REPAIRED and self.makers[key] != job.key

    def _keep_degraded(self, key: Key, degraded: bool, job: JobRow) -> None:
        if degraded:
            self.touched.by("fallback", key[0])
            self.world.happened("degraded", key)
            if repairs(job.key):
                raise Violation("whole", f"{job.key} is to repair {key}, and falls back itself")
            self.degraded.add(key)
            # the fallback stands in, so that nobody has to wait
            self.ledger.asked.pop((job.id, job.token or 0), None)
            self.marked_now.append(("degraded", key[0], key[3]))
        elif repairs(job.key) and key in self.degraded:
            self._repaired(key)

    def _check_superseded(self) -> None:
        """What a requeue deleted of what was saved: a newer save is there for every job that has not ended, and an
        older one to compare that with."""
        for key in self._dropped:
            jobs = [self.jobs[id_] for id_ in self.jobs_of[key[0]]]
            first = min(job.generation for job in jobs if job.ending is None)
            if not any(key[3] < newer < first for newer in range(first) if (*key[:3], newer) in self.saved):
                raise Violation("immutable", f"the saved output {key} was deleted")
            self.superseded.add(key)
            self.world.happened("superseded", key)

    def _repaired(self, key: Key) -> None:
        self.world.happened("repaired", key)
        self.degraded.discard(key)
        self.marked_now.append(("repaired", key[0], key[3]))

    def _keep_items(self, changes: dict[int, int], by: Process, jobs: list[Move]) -> None:
        if not changes:
            return
        pruned = {(old.document_id, old.pipeline) for old, new in jobs if old is not None and new is None}
        at_work = {(job.document_id, job.pipeline) for job in self.jobs.values() if job.ending is None}
        for rowid, kind in changes.items():
            if kind == DELETE:
                key = self._rowids["item"].pop(rowid)
                del self.items[key]
                if key[:2] not in pruned or key[:2] in at_work:
                    raise Violation("immutable", f"the saved item {key} was deleted")
                continue
            *which, inline, token = self._row(ITEM, rowid)
            key = tuple(which)
            if self.items.get(key, inline) != inline:
                raise Violation("immutable", f"the saved item {key} changed")
            if self.holder(key[0], token, by) is not by.family:
                raise Violation("fence", f"{by.name} saved {key} under a token that is not its own")
            self._rowids["item"][rowid], self.items[key] = key, inline
            self.touched.by("items", key[0])
            self.world.happened("save item", key)

    def _keep_effects(self, changes: dict[int, int], made: set[Key]) -> None:
        for rowid in changes:
            document_id, stage, generation = key = self._row(EFFECT, rowid)
            self.effects[key] += 1
            if self.effects[key] > 1:
                raise Violation("once", f"the effect {key} happened {self.effects[key]} times")
            stage = stage.removesuffix(" repaired")
            if not any((m[0], m[2], m[3]) == (document_id, stage, generation) for m in made):
                raise Violation("once", f"the effect {key} happened without its stage being saved")

    # --- documents and jobs ----------------------------------------------------------------------

    def _keep_documents(self, changes: dict[int, int]) -> set[str]:
        touched = set()
        for rowid in changes:
            new = DocumentRow(*self._row(DOCUMENT, rowid))
            old = self.documents.get(new.id)
            self.documents[new.id] = new
            self._rowids["document"][rowid] = (new.id,)
            touched.add(new.id)
            self._check_document(old, new)
        return touched

    def _check_document(self, old: DocumentRow | None, new: DocumentRow) -> None:
        self.world.tell(f"document {new.id} ({new.name}) is {new.state}, generation {new.generation}")
        self.names[new.id].add(new.name)
        if old is None:
            self.leaving.came(new)
            self._check_once(new)
            if new.parent_id is not None and new.state == "open":
                self.world.happened("child")
                if not any(key[0] == new.parent_id and key[2] in ("three", "survey") for key in self.saved):
                    raise Violation("orphan", f"{new.id} is there, but its parent has not saved it")
            return
        self._turned.append((old, new))
        if new.state not in ("open", old.state):
            self.leaving.ended(new.id)
        if "dead" in (old.state, new.state):
            listed = self.database.execute(LISTED, (new.id, new.org)).fetchall()
            if len(listed) != (new.state == "dead"):
                raise Violation(
                    "counters", f"{new.id} is {new.state}, in the list of the dead it is {listed}"
                )
        refreshed = ("requeue", new.id) in self.acts_now
        if old.identity != new.identity or (old[:7] != new[:7] and not refreshed):
            raise Violation("immutable", f"the document {new.id} was changed")
        if old.content_hash != new.content_hash:
            self.refreshed_now.add(new.id)
            self.touched.by("refresh", new.id)
            self.world.happened("refreshed", f"{new.id}, now {new.name}")
        if new.generation != old.generation and ("requeue", new.id) not in self.acts_now:
            raise Violation("history", f"{new.id} has a new generation that nobody asked for")
        ended = old.state != "open" and new._replace(degraded=old.degraded) != old
        if ended and (new.state, new.generation) != ("open", old.generation + 1):
            raise Violation("progress", f"{new.id} went from {old.state} to {new.state} in one generation")
        self._check_ending(old, new)

    def _check_ending(self, old: DocumentRow, new: DocumentRow) -> None:
        if new.state == "cancelled" != old.state and ("cancel", new.id) not in self.acts_now:
            raise Violation("history", f"{new.id} was cancelled by nobody")
        if new.state == "dead" and not (new.error_code and new.error_message):
            raise Violation("reason", f"{new.id} is dead without a reason")

    def _check_once(self, new: DocumentRow) -> None:
        key = json.loads(new.meta).get("once")
        if key is not None and new.state == "open":
            self._under_key[key] += 1
            if self._under_key[key] > 1:
                raise Violation("once", f"under {key} came {self._under_key[key]} documents")

    def _keep_jobs(self, changes: dict[int, int], by: Process) -> list[Move]:
        moved: list[Move] = []
        for rowid in sorted(changes):
            row = self.database.execute(JOB, (rowid,)).fetchone()
            old, new = self.jobs.get(rowid), None if row is None else JobRow(*row)
            if old != new:
                moved.append((old, new))
        self._moves.check(moved, by)
        if moved:
            self.stuck.check()
        self.moved_s = self.world.loop.now_s if moved else self.moved_s
        for old, new in moved:
            if new is not None:
                if old is None:
                    self.jobs_of[new.document_id].append(new.id)
                self.jobs[new.id] = new
            elif old is not None:
                self.jobs_of[old.document_id].remove(old.id)
                del self.jobs[old.id]
        closed = {(queue, pipeline) for queue, pipeline in self.database.execute(CLOSED)}
        self.fairness.moved(moved, by.serves, closed, self.limits_of_keys.limited)
        return moved

    def _check_whole(self, touched: set[str]) -> None:
        """A document is open as long as its main job is."""
        for document_id in touched:
            document = self.documents[document_id]
            for id_ in self.jobs_of[document_id]:
                job = self.jobs[id_]
                if job.key == f"doc-{document_id}" and document.state != (job.ending or "open"):
                    raise Violation("whole", f"{document_id} is {document.state}, but its job is {job.state}")
                main = job.key == f"doc-{document_id}" and job.ending is None
                if main and document.size >= LARGE_BYTES and not is_large(job.lane):
                    raise Violation(
                        "size", f"{document_id} has {document.size} bytes, its lane is {job.lane!r}"
                    )

    def count_fenced(self) -> None:
        """Refused writes are counted, and no count is lost."""
        fenced: int = self._row(FENCED)[0]
        if fenced < self.fenced:
            self.world.violated("counters", f"refused writes were {self.fenced}, now they are {fenced}")
        self.world.seen["write fenced"] += fenced - self.fenced
        self.fenced = fenced

    def _row(self, sql: str, *params: int) -> Key:
        return self.database.execute(sql, params).fetchall()[0]
