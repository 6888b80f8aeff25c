"""The accounts of a simulated world, kept apart from the engine's own: what ran, what was saved, what was promised."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import apsw

from perdure.core.model import MOVES, State

if TYPE_CHECKING:
    from tests.sim.world import Process

JOBS = (
    "SELECT id, state, token, claims, attempts, attempts_max, generation, run_at_ms, worker, document_id, key, "
    "suspect FROM job"
)
SAVED = "SELECT document_id, pipeline, stage, generation, output_hash, token FROM saved"
ATTEMPTS = 3
CLAIMS_MAX = ATTEMPTS + 100 + 50


def look(database: apsw.Connection, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    """The rows of a query."""
    return database.execute(sql, params).fetchall()


class Violation(AssertionError):
    """A promise was broken."""


class Ledger:
    """Told by clients and stage code; looks at the tables after every transaction."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, str] = {}  # document → its character
        self.cancelled: set[str] = set()
        self._runs: Counter[tuple[str, str, int]] = Counter()
        self._items: Counter[tuple[str, int, int]] = Counter()
        self.failures: Counter[tuple[str, int]] = Counter()
        self.crashes_alone: Counter[str] = Counter()
        self.kills = 0
        self.hashes: dict[tuple[Any, ...], str] = {}
        self.tokens: set[tuple[int, int]] = set()
        self.workers: dict[int, Process] = {}
        self.numbers = 0
        self.violation: Violation | None = (
            None  # the first one; the engine may swallow what is raised inside it
        )

    # --- told by the stages ----------------------------------------------------------------------

    def began(self, document_id: str, stage: str, generation: int, process: Process) -> int:
        if not process.alive:
            self.violation = self.violation or Violation(
                f"{process.name} is dead and runs {stage} of {document_id}"
            )
        self._runs[document_id, stage, generation] += 1
        self.numbers += 1
        return self.numbers

    def runs(self, document_id: str, stage: str, generation: int) -> int:
        return self._runs[document_id, stage, generation]

    def item_ran(self, document_id: str, item: int, generation: int) -> None:
        self._items[document_id, item, generation] += 1

    def failed(self, document_id: str, generation: int) -> None:
        self.failures[document_id, generation] += 1

    def crashed(self, document_id: str, alone: bool) -> None:
        self.crashes_alone[document_id] += alone

    def worker_is(self, worker: int, process: Process) -> None:
        self.workers[worker] = process

    # --- seen in the tables ----------------------------------------------------------------------

    def snapshot(self, database: apsw.Connection) -> dict[int, tuple[Any, ...]]:
        return {row[0]: row for row in database.execute(JOBS)}

    def check_step(self, database: apsw.Connection, before: dict[int, tuple[Any, ...]], now_ms: int) -> None:
        """What may not happen in any transaction."""
        try:
            self._check_step(database, before, now_ms)
        except Violation as violation:
            self.violation = self.violation or violation

    def _check_step(self, database: apsw.Connection, before: dict[int, tuple[Any, ...]], now_ms: int) -> None:
        after = self.snapshot(database)
        if gone := before.keys() - after.keys():
            raise Violation(f"jobs {gone} vanished")
        for id_, new in after.items():
            if (old := before.get(id_)) is not None and old != new:
                self._check_move(old, new, now_ms)
        self._check_saved(database, before, after)
        for document_id, stage, generation, n in database.execute(
            "SELECT document_id, stage, generation, count(*) FROM effect GROUP BY 1, 2, 3 HAVING count(*) > 1"
        ):
            raise Violation(f"effect of {document_id}.{stage} in generation {generation} happened {n} times")

    def _check_move(self, old: tuple[Any, ...], new: tuple[Any, ...], now_ms: int) -> None:
        id_, state, token, claims, attempts, attempts_max, generation, run_at_ms, *_ = new
        was, was_generation = State(old[1]), old[6]
        if generation == was_generation:
            if State(state) is not was and State(state) not in MOVES[was]:
                raise Violation(f"job {id_} moved from {was} to {state}")
            if was in (State.DONE, State.DEAD, State.CANCELLED) and state != was:
                raise Violation(f"job {id_} left {was} within a generation")
            if claims < old[3]:
                raise Violation(f"job {id_}: claims fell from {old[3]} to {claims}")
        if attempts > attempts_max or claims > CLAIMS_MAX:
            raise Violation(f"job {id_}: {attempts} attempts, {claims} claims")
        if state == State.RUNNING and (token, was) != (old[2], State.RUNNING):
            if (id_, token) in self.tokens:
                raise Violation(f"job {id_}: token {token} was given before")
            self.tokens.add((id_, token))
            if was is State.RUNNING:
                raise Violation(f"job {id_} was claimed while it was running")
            if claims != old[3] + 1:
                raise Violation(f"job {id_}: claimed, but claims went from {old[3]} to {claims}")
            if run_at_ms > now_ms:
                raise Violation(f"job {id_} was claimed {run_at_ms - now_ms} ms early")

    def _check_saved(self, database: apsw.Connection, before: Any, after: Any) -> None:
        """Saved outputs stay; a new one carries the token that held the job when the transaction began."""
        holders = {(row[9], row[10]): row[2] for row in before.values()}
        found = {}
        for document_id, pipeline, stage, generation, output_hash, token in database.execute(SAVED):
            which = (document_id, pipeline, stage, generation)
            found[which] = output_hash
            if which not in self.hashes:
                key = f"doc-{document_id}"
                held = {
                    holder
                    for (owner, name), holder in holders.items()
                    if owner == document_id and name.startswith(key)
                }
                if token not in held:
                    raise Violation(f"{which} was saved under token {token}, which held nothing")
        for which, output_hash in self.hashes.items():
            if which not in found:
                raise Violation(f"the saved output {which} was deleted")
            if found[which] != output_hash:
                raise Violation(f"the saved output {which} changed")
        self.hashes = found

    # --- at the end ------------------------------------------------------------------------------

    def check_end(self, database: apsw.Connection) -> None:
        """After the faults have stopped and everything had its time."""
        rows = look(database, "SELECT id, state, generation, error_code, name FROM document")
        known = {row[0] for row in rows}
        if missing := self.acknowledged.keys() - known:
            raise Violation(f"acknowledged documents are missing: {missing}")
        for document_id, state, generation, error_code, name in rows:
            self._check_document(database, document_id, state, generation, error_code, name)
        self._check_history(database)
        if orphans := database.execute("PRAGMA foreign_key_check").fetchall():
            raise Violation(f"orphan rows: {orphans}")
        for table in ("saved", "item", "emitted", "attempt"):
            lost = f"SELECT org, document_id FROM {table} EXCEPT SELECT org, id FROM document"
            if orphans := database.execute(lost).fetchall():
                raise Violation(f"orphan rows in {table}: {orphans}")
        open_jobs = database.execute("SELECT key, state FROM job WHERE finished_ms IS NULL").fetchall()
        if open_jobs:
            raise Violation(f"jobs that never ended: {open_jobs}")

    def _check_document(
        self,
        database: apsw.Connection,
        document_id: str,
        state: str,
        generation: int,
        code: str | None,
        name: str,
    ) -> None:
        character = name.partition("@")[0]
        if document_id in self.cancelled:
            if state not in ("cancelled", "done", "dead"):
                raise Violation(f"{document_id} was cancelled but is {state}")
            return
        expected = "dead" if character in ("failing", "broken", "poison") else "done"
        if state != expected:
            raise Violation(f"{document_id} ({name}) is {state} ({code}), not {expected}")
        if state == "dead" and not code:
            raise Violation(f"{document_id} is dead without a reason")
        if character == "poison" and code != "crashed:SIGKILL":
            raise Violation(f"{document_id} ({name}) died of {code}")
        if character == "failing" and code != "unexpected":
            raise Violation(f"{document_id} ({name}) died of {code}, not of its own error")
        if character == "failing" and self.failures[document_id, generation] < ATTEMPTS:
            raise Violation(f"{document_id} died after {self.failures[document_id, generation]} failures")
        attempts = look(database, "SELECT attempts FROM job WHERE key = ?", f"doc-{document_id}")[0][0]
        if character in ("plain", "parent", "late", "needy") and attempts != 1:
            raise Violation(
                f"{document_id} ({name}) was charged {attempts} attempts although it never failed"
            )
        if state == "done":
            self._check_effects(database, document_id, generation)

    def _check_history(self, database: apsw.Connection) -> None:
        """Charged claims, as history has them, stay within the budget; two crashes alone are the most."""
        for key, n in database.execute(
            "SELECT job_key, count(*) FROM attempt WHERE error_code = 'crashed:SIGKILL' GROUP BY 1 HAVING count(*) > 2"
        ):
            raise Violation(f"{key} crashed alone {n} times")
        for key, generation, charged in database.execute(
            "SELECT job_key, generation, sum(charged) FROM attempt GROUP BY 1, 2"
        ):
            if charged > ATTEMPTS:
                raise Violation(f"{key}: {charged} charged claims in generation {generation}")

    def _check_effects(self, database: apsw.Connection, document_id: str, generation: int) -> None:
        found = Counter(
            row[0]
            for row in database.execute(
                "SELECT stage FROM effect WHERE document_id = ? AND generation = ?", (document_id, generation)
            )
        )
        if found["three"] != 1 or (generation == 1 and (found["two"] != 1 or found["follow"] != 1)):
            raise Violation(f"effects of {document_id} in generation {generation}: {dict(found)}")
        pair = look(
            database,
            "SELECT count(*) FROM item WHERE document_id = ? AND key IN ('left', 'right')",
            document_id,
        )[0][0]
        if pair != 2:
            raise Violation(f"{document_id} saved two items at once, and {pair} of them are there")
        parts = look(database, "SELECT count(*) FROM emitted WHERE document_id = ?", document_id)[0][0]
        if parts != 3:
            raise Violation(f"{document_id} emitted {parts} rows, not 3")
