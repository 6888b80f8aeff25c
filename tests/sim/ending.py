"""What must be true once the faults have stopped and everything had its time."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from perdure.core.model import repairs
from perdure.operate.audit import Audit
from perdure.store.counting import miscounted, told
from perdure.store.sqlite import drive
from perdure.store.sqlite_dialect import SqliteDialect
from tests.sim.book import Book
from tests.sim.documents import ATTEMPTS, ENDS, POSTPONES_MAX
from tests.sim.promises import Violation
from tests.sim.releases import wanting
from tests.sim.sticking import GIVEN_UP_AFTER
from tests.sim.tables import DocumentRow

BURIED_WITHIN_S = 15.0
WITHOUT_EFFECT = ("one", "carry", "engrave")


def check_end(book: Book) -> None:
    """The first promise that was broken is raised."""
    for document_id in book.ledger.acknowledged:
        if document_id not in book.documents and document_id not in book.leaving.gone:
            raise Violation("acknowledged", f"{document_id} is missing")
    if unfinished := [(job.key, job.state) for job in book.jobs.values() if job.ending is None]:
        raise Violation("converges", f"never ended: {unfinished}")
    rows = Counter(_rows(book, "SELECT job_key, generation, outcome, error_code FROM attempt"))
    for document in book.documents.values():
        _check_document(book, document, rows)
    _check_effects(book)
    _check_orphans(book)
    _check_history(book, rows)
    _check_counters(book)
    book.stuck.check_end()
    book.shelf.check_all()


def _rows(book: Book, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    return book.database.execute(sql, params).fetchall()


def _check_document(book: Book, document: DocumentRow, rows: Counter[tuple[Any, ...]]) -> None:
    id_, state, code = document.id, document.state, document.error_code
    character = document.name.partition("@")[0]
    book.world.seen[f"{character} {state}"] += 1
    which = (f"doc-{id_}", document.generation)
    if book.last_act.get(id_) == "cancel" or state == "cancelled":
        if (book.last_act.get(id_), state) != ("cancel", "cancelled"):
            raise Violation("converges", f"{id_} is {state}, the last act was {book.last_act.get(id_)}")
        return
    if _died_of_the_world(book, document, rows):
        return
    if (state, code) != ("done" if ENDS[character] is None else "dead", ENDS[character]):
        raise Violation(
            "converges", f"{id_} ({document.name}) is {state} of {code}, not of {ENDS[character]}"
        )
    # one that passes its timeout twice while it runs alone is set aside at once
    proven = character in ("hanging", "blocking") and book.ledger.failed_alone[which] >= 2
    if (
        character in ("failing", "hanging", "blocking")
        and book.ledger.faults[which] < ATTEMPTS
        and not proven
    ):
        raise Violation("reason", f"{id_} ({document.name}) died after {book.ledger.faults[which]} faults")
    crashes = rows[*which, "retry", "crashed:SIGKILL"] + rows[*which, "dead", "crashed:SIGKILL"]
    if crashes > 2 or (character == "poison" and book.ledger.crashes_alone[which] < 2):
        raise Violation("alone", f"{id_} ({document.name}) crashed alone {crashes} times")
    if state == "done":
        _check_done(book, document)


def _died_of_the_world(book: Book, document: DocumentRow, rows: Counter[tuple[Any, ...]]) -> bool:
    """Whether it died of what befell it rather than of its character, and might."""
    id_, state, code = document.id, document.state, document.error_code
    which = (f"doc-{id_}", document.generation)
    if code == "postpones_exhausted" and document.pipeline == "scans":
        postponed = sum(
            n for row, n in rows.items() if row[:3] == (*which, "later") and row[3] != "dependency_down"
        )
        if postponed < POSTPONES_MAX:
            raise Violation("reason", f"{id_} died of {postponed} postponements")
        return True
    if code == "stuck":
        if book.ledger.faults[which] < GIVEN_UP_AFTER:
            raise Violation("reason", f"{id_} was given up as stuck after {book.ledger.faults[which]} faults")
        return True
    if document.pipeline in ("errands", "maps") and code in ("unanswered", "busy"):
        # who purges it means what is not published yet, too
        told = id_ in book.leaving.ever or _told(book, *which)
        if book.ledger.faults[which] < GIVEN_UP_AFTER or not told:
            raise Violation(
                "told", f"{id_} died of {code} after {book.ledger.faults[which]} faults, or unheard"
            )
        return True
    # it was in a worker that stood still, which cannot be told from one that it holds up
    return state == "dead" and book.ledger.overdue[which] > 0 and book.ledger.faults[which] >= ATTEMPTS


def _told(book: Book, key: str, generation: int) -> bool:
    """Whether the event of a death was published, or is about to be."""
    waiting = _rows(book, "SELECT payload FROM outbox WHERE name IN ('CarryFailed', 'EngraveFailed')")
    said = {(event["job"], event["generation"]) for (payload,) in waiting for event in [json.loads(payload)]}
    return (key, generation) in said | book.post.deaths


def _check_done(book: Book, document: DocumentRow) -> None:
    saved = {key[2]: key[3] for key in sorted(book.saved) if key[:2] == (document.id, document.pipeline)}
    if missing := wanting(document.pipeline, set(saved)):
        raise Violation("whole", f"{document.id} is done without {missing}")
    if document.degraded:
        raise Violation("converges", f"{document.id} is still degraded")
    if document.pipeline != "books":
        return
    names = sorted(
        row[0] for row in _rows(book, "SELECT key FROM emitted WHERE document_id = ?", document.id)
    )
    if len(names) != 3:
        raise Violation("whole", f"{document.id} emitted {names}")
    kept = any(job.pipeline == "books" for job in map(book.jobs.__getitem__, book.jobs_of[document.id]))
    items = sorted({key[4] for key in book.items if key[0] == document.id})
    # a later generation may find its stages saved and its items pruned with the job of an earlier one
    if kept and document.generation == 1 and items != ["0", "1", "2", "left", "right"]:
        raise Violation("acknowledged", f"of the items of {document.id} there are {items}")
    ever = {**book.leaving.gone, **book.documents}
    children = [other for other in ever.values() if other.parent_id == document.id]
    if not (document.name == "parent") <= len(children) <= ("parent" in book.names[document.id]):
        raise Violation("once", f"{document.id} ({document.name}) has {len(children)} children")


def _check_effects(book: Book) -> None:
    """Each save has its effect, and each end its hook and follow-up."""
    ever = [*book.saved, *(key for key in book.superseded if key[0] in book.documents)]
    for document_id, pipeline, stage, generation in ever:
        if stage in WITHOUT_EFFECT or (document_id, pipeline, stage, generation) in book.degraded:
            continue
        repaired = repairs(book.makers[document_id, pipeline, stage, generation])
        name = f"{stage} repaired" if repaired else stage
        if book.effects[document_id, name, generation] != 1:
            raise Violation("once", f"{name} of {document_id} is saved, but its effect did not happen")
    cancelled = {target for verb, target, _ in book.acts if verb == "cancel"}
    wanted = [(d, "follow", generation) for d, _, stage, generation in ever if stage == "three"]
    for document in book.documents.values():
        if document.pipeline == "books" and document.state in ("done", "dead"):
            wanted.append((document.id, f"tell_{document.state}", document.generation))
        elif document.pipeline == "maps" and document.state == "dead":
            wanted.append((document.id, "lost", document.generation))
    for which in wanted:
        if which[0] not in cancelled and book.effects[which] != 1:
            raise Violation("once", f"{which} happened {book.effects[which]} times")


def _check_orphans(book: Book) -> None:
    if broken := _rows(book, "PRAGMA foreign_key_check"):
        raise Violation("orphan", f"rows without what they refer to: {broken}")
    for table in ("attempt", "item", "saved", "emitted"):
        for (document_id,) in _rows(book, f"SELECT DISTINCT document_id FROM {table}"):
            if document_id not in book.documents:
                raise Violation("orphan", f"{table} of {document_id}, which is not there")
    at_work = {(job.document_id, job.pipeline) for job in book.jobs.values()}
    if left := sorted(key for key in book.items if key[:2] not in at_work):
        raise Violation("orphan", f"items without a job: {left}")
    world = book.world
    calm_since_s = max(world.mended_s, world.up_since_s)
    for worker, name in _rows(book, "SELECT id, name FROM worker WHERE kind = 'worker'"):
        process = book.ledger.workers.get(worker)
        if process is None or process.alive:
            continue
        if (ago_s := world.loop.now_s - max(process.died_s, calm_since_s)) > BURIED_WITHIN_S:
            raise Violation("orphan", f"{name} died {ago_s:g} s ago and is still registered")


def _check_counters(book: Book) -> None:
    sql = SqliteDialect()
    if wrong := drive(book.database, miscounted(sql)):
        raise Violation("counters", f"(counted, there): {wrong}")
    accepted = told(_rows(book, sql.COUNTS)).accepted
    if accepted != len(book.documents) + book.leaving.purges:
        there = f"{len(book.documents)} are there, {book.leaving.purges} were purged"
        raise Violation("counters", f"{accepted} were accepted, {there}")
    dead = {(document.org, id_) for id_, document in book.documents.items() if document.state == "dead"}
    if set(_rows(book, "SELECT org, document_id FROM dead WHERE job = ''")) != dead:
        raise Violation("counters", f"in the list of the dead are others than {sorted(dead)}")
    alive = _rows(
        book,
        "SELECT x.document_id FROM dead x WHERE x.job <> '' AND NOT EXISTS (SELECT 1 FROM job j WHERE j.org = x.org "
        "AND j.document_id = x.document_id AND j.state = 'dead' AND j.key = 'doc-' || x.document_id || '/' || x.job || "
        "CASE WHEN x.generation > 1 THEN '-g' || x.generation ELSE '' END)",
    )
    if alive:
        raise Violation("counters", f"follow-up jobs of {alive} are in the list of the dead and are not dead")


def check_audit(audit: Audit, book: Book) -> None:
    """The engine's own audit comes to the same."""
    states = Counter(document.state for document in book.documents.values())
    if not audit.clean or audit.states != {state: n for state, n in states.items() if n}:
        raise Violation("counters", f"the audit found {audit}, there are {states}")


def _check_history(book: Book, rows: Counter[tuple[Any, ...]]) -> None:
    if rows.total() != len(book.ended):
        raise Violation("history", f"{len(book.ended)} claims ended, history has {rows.total()}")
    if (acts := _rows(book, "SELECT count(*) FROM act")[0][0]) != book.acts.total():
        raise Violation("history", f"{book.acts.total()} acts were done, {acts} are written down")
