"""The accounts of a simulated world that rest on nothing but what clients were answered and what stage code did."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.core.gathered import Gathered
from perdure.core.model import Job
from tests.sim.world import Process, World, here

if TYPE_CHECKING:
    from tests.sim.book import Book

#: What a stage was called in an earlier release.
FORMER = {"tint": "colour"}
#: Stages that need what may be down.
NEEDY = ("three", "stamp", "colour", "tint", "bind")
BACKOFF_S = 2.0  # the pipelines' first wait; each one is twice the one before


@dataclass(frozen=True)
class Claim:
    """A lease that was given: to whom, and what was saved by then that it takes up."""

    by: Process
    stages: frozenset[str]
    items: frozenset[tuple[str, str]]  # stage and key
    suspect: bool


class Ledger:
    """Told by clients and stage code."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.book: Book
        self.acknowledged: dict[str, str] = {}  # document → its character
        self.claims: dict[tuple[int, int], Claim] = {}  # by job and token
        self.workers: dict[int, Process] = {}
        self.runs: Counter[tuple[str, str, int]] = Counter()  # by key, stage, generation
        self.faults: Counter[tuple[str, int]] = Counter()  # what may be charged, by key and generation
        self.crashes_alone: Counter[tuple[str, int]] = Counter()
        self.failed_alone: Counter[tuple[str, int]] = Counter()  # as a suspect, by what is not a crash
        self.overdue: Counter[tuple[str, int]] = Counter()
        self.asked: dict[tuple[int, int], float] = {}  # the wait that a run asked for, by job and token
        self.answered: set[int] = set()  # tokens under which a service said that it has done it
        self.refused: set[int] = set()  # or that it could not
        self._acted: Counter[tuple[str, str, str]] = Counter()
        self._taken: Counter[tuple[str, int]] = Counter()
        self._numbers = 0
        self._once: dict[
            tuple[str, str], tuple[str, str]
        ] = {}  # organisation and key → what was asked, document

    # --- told by clients -------------------------------------------------------------------------

    def added(self, document_id: str, character: str) -> None:
        """A client was answered: the document is safe from now on."""
        self.acknowledged[document_id] = character
        if document_id not in self.book.documents and document_id not in self.book.leaving.ever:
            self.world.violated("acknowledged", f"{document_id} was acknowledged but is not there")

    def once_answered(self, org: str, key: str, body: str, document_id: str) -> None:
        """Whoever asks for the same is answered the same; who asks for something else is not."""
        again = (org, key) in self._once
        self.world.happened("add_once again" if again else "add_once", f"{org} {key}: {document_id}")
        if (known := self._once.setdefault((org, key), (body, document_id))) != (body, document_id):
            self.world.violated("once", f"{key} of {org} was {known}, and then {(body, document_id)}")
        self.added(document_id, "plain")

    def once_refused(self, org: str, key: str, body: str) -> None:
        self.world.happened("add_once refused", f"{org} {key}")
        if self.book.onces.get((org, key), body) == body:
            self.world.violated("once", f"{key} of {org} was refused, and nobody asked for something else")

    def act_answered(self, verb: str, document_id: str, who: str) -> None:
        """An operator was answered that it was done: each answer is about an act of its own."""
        self._acted[verb, document_id, who] += 1
        if self._acted[verb, document_id, who] > self.book.acts[verb, document_id, who]:
            self.world.violated(
                "history", f"{verb} of {document_id} by {who} was answered but not written down"
            )

    # --- told by a service -----------------------------------------------------------------------

    def taken(self, key: str, generation: int) -> None:
        """An answer was taken: the only one of its generation."""
        self._taken[key, generation] += 1
        if self._taken[key, generation] > 1:
            self.world.violated("once", f"two answers were taken for {key}, generation {generation}")

    # --- told by stage code ----------------------------------------------------------------------

    def began(self, job: Job, stage: str, alone: bool) -> int:
        """A stage runs; a number that no other run has."""
        world, process = self.world, here()
        assert process.alive, f"the simulator lets {process.name} run although it is dead"
        where = f"{job.key}.{stage} claim {job.claims} at {process.name}"
        world.happened("stage in a cell" if alone else "stage", where)
        claim = self.claims.get((job.id, job.token))
        if (
            stage in NEEDY
            and job.probe is None
            and process.began_s > self.book.held_since_s.get("dep", math.inf)
        ):
            world.violated(
                "service", f"{where}: what it needs was down before the worker began, and still is"
            )
        if alone:
            self.book.touched.by("isolation", job.document_id)
        if claim is None or claim.by.family is not process.family:
            world.violated("lease", f"{process.name} runs {job.key} without a lease")
        elif claim.stages & {stage, FORMER.get(stage)} and job.document_id in self.book.documents:
            world.violated(
                "immutable", f"{job.key}.{stage} runs again although it was saved before the claim"
            )
        elif claim.suspect and not alone:
            world.violated("alone", f"{job.key} is suspect and runs among others")
        self.runs[job.key, FORMER.get(stage, stage), job.generation] += 1
        self._numbers += 1
        return self._numbers

    def item_ran(self, job: Job, stage: str, item: str) -> None:
        self.world.happened("item", f"{job.key} {item}")
        claim = self.claims.get((job.id, job.token))
        saved = claim is not None and claim.items & {(stage, item), (FORMER.get(stage, ""), item)}
        if saved and job.document_id in self.book.documents:  # what is deleted has nothing that is saved
            self.world.violated("immutable", f"item {item} of {job.key} runs again although it was saved")

    def gathered(self, job: Job, found: Gathered) -> None:
        """A stage was told what became of all that its document spawned."""
        self.world.happened("gathered", f"{job.key}: {found}")
        children = [one for one in self.book.documents.values() if one.parent_id == job.document_id]
        jobs = [self.book.jobs[id_] for id_ in self.book.jobs_of[job.document_id]]
        spawned = [one for one in jobs if "/labels" in one.key and "repaired" not in one.key]
        if any(one.state == "open" for one in children) or any(one.ending is None for one in spawned):
            self.world.violated("whole", f"{job.key} gathers before all that it spawned has ended")

    def fails(self, job: Job, wait_s: float | None = None) -> None:
        """The run fails by its own fault: it may be charged, and waits at least so long."""
        self.faults[job.key, job.generation] += 1
        self.failed_alone[job.key, job.generation] += job.suspect
        if wait_s is None:
            wait_s = BACKOFF_S * 2 ** self.book.charged[job.key, job.generation]
        self.asked[job.id, job.token] = wait_s

    def postpones(self, job: Job, wait_s: float) -> None:
        """The run asks to wait, which costs nothing."""
        self.asked[job.id, job.token] = wait_s

    def crashed(self, job: Job, alone: bool) -> None:
        """The run takes its process down; alone, that is proof."""
        if alone:
            self.faults[job.key, job.generation] += 1
            self.crashes_alone[job.key, job.generation] += 1
            self.world.happened("cell crashed", job.key)

    def stood_still(self, key: str, generation: int) -> None:
        """The worker that runs it was killed because it stood still; whoever had begun may be charged."""
        self.faults[key, generation] += 1
        self.overdue[key, generation] += 1

    def told_of_death(self, job: Job, code: str) -> None:
        """A hook was told why its document died."""
        document = self.book.documents[job.document_id]
        if document.state == "dead" and document.generation == job.generation and document.error_code != code:
            self.world.violated("reason", f"{job.key} was told {code}, but it was {document.error_code}")
