"""What stuck sweeps do, to jobs that nobody has in hand, and what they count in the transaction that did it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from perdure.core.events import StuckSwept
from tests.sim.promises import Violation
from tests.sim.tables import JobRow

if TYPE_CHECKING:
    from tests.sim.book import Book

COUNTS = (
    "SELECT coalesce(sum(CASE name WHEN 'requeued' THEN value END), 0), "
    "coalesce(sum(CASE name WHEN 'max_retries_exceeded' THEN value END), 0) FROM retry_job"
)
#: Attempts after which a stuck document is given up, see `fleet.STUCK`.
GIVEN_UP_AFTER = 2


class Sticking:
    """Accounts of what was requeued and buried."""

    def __init__(self, book: Book) -> None:
        self.book, self.world = book, book.world
        self._known = (0, 0)
        self._requeued = self._taken_back = self._exhausted = 0  # in this transaction
        self._heard: Counter[str] = Counter()

    def heard(self, event: StuckSwept) -> None:
        """What a sweep told of itself; one that was killed told nothing."""
        self._heard.update(requeued=sum(event.requeued.values()), buried=sum(event.buried.values()))
        for what, found in (("stuck", event.stuck), ("starved", event.starved), ("skipped", event.skipped)):
            if found:
                self.world.happened(f"stuck sweep: {what}", sum(found.values()))

    def requeued(self, old: JobRow) -> None:
        """A job that a sweep made due."""
        self._requeued += 1
        self.world.happened("requeued by a stuck sweep", old.key)
        if old.token is not None:
            raise Violation("lease", f"{old.key} was requeued by a sweep, but {old.worker} has it in hand")

    def ended(self, old: JobRow, outcome: str, code: str | None, why: str) -> None:
        """A claim that ended, by whomever."""
        self._taken_back += outcome != "dead"
        if outcome == "dead" and "/" not in old.key and (why.startswith("attempt ") or code == "stuck"):
            self._exhausted += 1

    def buried(self, old: JobRow, code: str | None) -> None:
        """A job that ended although nobody had it."""
        self.world.happened("buried by a stuck sweep", old.key)
        charged = self.book.charged[old.key, old.generation]
        if code != "stuck" or charged < GIVEN_UP_AFTER:
            raise Violation("budget", f"{old.key} was buried of {code} after {charged} attempts")

    def check(self) -> None:
        """After a transaction: its counts are what it did."""
        counted: Any = self.book.database.execute(COUNTS).fetchall()[0]
        requeued, exhausted = counted[0] - self._known[0], counted[1] - self._known[1]
        done = (self._requeued, self._taken_back, self._exhausted)
        self._known, self._requeued, self._taken_back, self._exhausted = counted, 0, 0, 0
        if not done[0] <= requeued <= done[0] + done[1] or exhausted != done[2]:
            raise Violation(
                "counters", f"counted were {requeued} requeued, {exhausted} exhausted; it was {done}"
            )

    def check_end(self) -> None:
        """Nothing that a sweep told of went uncounted."""
        if self._known[0] < self._heard["requeued"] or self._known[1] < self._heard["buried"]:
            raise Violation("counters", f"sweeps told of {self._heard}, counted are {self._known}")
