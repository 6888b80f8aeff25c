"""How many of a key run at once and start per second, judged apart from the engine's own slots and credit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.core.limit_key import ORG, gates_of, is_gate
from tests.sim.promises import Violation

if TYPE_CHECKING:
    from tests.sim.book import Book
    from tests.sim.tables import JobRow, Move

#: Pipeline → the stages that count under a document's key, and the last of them.
COUNTED = {"books": ("one", "two"), "maps": ("survey", "engrave")}
CLOSED = ("waiting", "parked", "done", "dead", "cancelled")


class Limits:
    """Judges who is let in, and who runs at once."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self._let_in: dict[int, int | None] = {}  # limited jobs: how many were allowed when they were let in
        self._credit: dict[str, float] = {}
        self._credit_ms = 0
        self._known: dict[int, set[str]] = {}  # running jobs: gates that had a limit when they were claimed
        self._claimed: dict[int, set[str]] = {}  # and those that they passed then and did not leave
        self._past: dict[int, set[str]] = {}  # and those that they entered by a save
        self.limited: set[str] = set()  # organisations that ever had one

    def earn(self) -> None:
        """Let time pass for keys with a rate."""
        passed_s = max(0, self.book.now_ms - self._credit_ms) / 1000
        self._credit_ms = self.book.now_ms
        for key, rate in self.book.rates.items():
            if rate is not None:
                most = max(1.0, rate)
                self._credit[key] = min(most, self._credit.get(key, most) + passed_s * rate)

    def moved(self, moved: Sequence[Move]) -> None:
        """Note who was let in, under which limit; each costs its key's credit."""
        self.limited |= {key.removeprefix(ORG) for key in self._gates() if key.startswith(ORG)}
        for old, new in moved:
            if old is not None and new is not None and old.generation == new.generation:
                self._kept(old, new)
                self._entered(old, new)
            if new is None or new.limit_key is None:
                continue
            key = new.limit_key
            if self.book.limits.get(key) is not None or self.book.rates.get(key) is not None:
                self.book.touched.by("limit", new.document_id)
            if not _opened(old, new):
                continue
            self._let_in[new.id] = self.book.limits.get(key)
            if (rate := self.book.rates.get(key)) is not None:
                self.book.world.happened("let in at a rate", new.key)
                self._credit[key] = (
                    self._credit.get(key, max(1.0, rate)) - 1
                )  # perhaps it was limited just now
                if self._credit[key] < -1e-6:
                    raise Violation("limit", f"{new.key} was let in although {key} has no credit")

    def _kept(self, old: JobRow, new: JobRow) -> None:
        """The key is let go with the save of the last stage that counts, not before, and then at once."""
        if old.own_key is None:
            return
        counted = COUNTED[new.pipeline]
        saved = old.state == "running" and (new.state == "running" or old.worker == 0)
        if new.own_key is None:
            self.book.world.happened("past its limit", new.key)
            if new.stage in counted:
                raise Violation("limit", f"{new.key} does not count any more, and is at {new.stage}")
        elif saved and old.stage == counted[-1] and new.stage not in counted:
            raise Violation("limit", f"{new.key} is past {new.own_key} and still counts")

    def _gates(self) -> set[str]:
        keys = {*self.book.limits, *self.book.rates}
        bounds = (self.book.limits, self.book.rates)
        return {key for key in keys if is_gate(key) and any(one.get(key) is not None for one in bounds)}

    def _entered(self, old: JobRow, new: JobRow) -> None:
        """No stage runs to its end for which the job did not pass the limit of what it needs."""
        if old.state != "running" or old.token is None:
            return
        saved = new.state == "running" and new.token == old.token and new.stage != old.stage
        # what an earlier generation saved does not run again
        ran = (new.document_id, new.pipeline, old.stage, new.generation) in self.book.saved
        if ran and (saved or new.state == "done") and (past := self._past.get(old.id)):
            raise Violation(
                "limit", f"{new.key} ran {old.stage} without room under {', '.join(sorted(past))}"
            )
        if saved:
            entered = set(gates_of(new.org, new.lane)) - self._claimed.get(new.id, set())
            self._past[new.id] = entered & self._known.get(new.id, set()) & self._gates()
            self._claimed[new.id] = self._claimed.get(new.id, set()) & set(gates_of(new.org, new.lane))
        else:
            self._past.pop(old.id, None)

    def passed(self, new: JobRow, moved: Sequence[Move]) -> None:
        """Whoever is claimed finds room under the limits of its organisation and of what its stage needs."""
        self._known[new.id], self._past[new.id] = self._gates(), set()
        self._claimed[new.id] = set(gates_of(new.org, new.home or new.lane))
        rows = self.book.jobs | {job.id: job for _, job in moved if job is not None}
        running = [gates_of(job.org, job.home or job.lane) for job in rows.values() if job.state == "running"]
        for key in gates_of(new.org, new.home or new.lane):
            if (most := self.book.limits.get(key)) is not None:
                at_once = sum(key in keys for keys in running)
                self.book.world.happened("claim under a gate", f"{key}: {at_once} of {most}")
                if at_once > most:
                    raise Violation("limit", f"{at_once} of {key} run at once, allowed are {most}")
            if (rate := self.book.rates.get(key)) is not None:
                self._credit[key] = self._credit.get(key, max(1.0, rate)) - 1
                if self._credit[key] < -1e-6:
                    raise Violation("limit", f"{new.key} began although {key} has no credit")

    def claimed(self, key: str, moved: Sequence[Move]) -> None:
        """No more at once than the widest limit under which one of them was let in."""
        rows = self.book.jobs | {job.id: job for _, job in moved if job is not None}
        at_once = [job.id for job in rows.values() if job.state == "running" and job.limit_key == key]
        limits = [limit for id_ in at_once if (limit := self._let_in.get(id_)) is not None]
        if len(limits) == len(at_once):
            self.book.world.happened("claim under a limit", f"{key}: {len(at_once)} of {max(limits)}")
            if len(at_once) > max(limits):
                raise Violation("limit", f"{len(at_once)} of {key} run at once, allowed are {max(limits)}")


def _opened(old: JobRow | None, new: JobRow) -> bool:
    return new.state not in CLOSED and (old is None or old.state in CLOSED)
