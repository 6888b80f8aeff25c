"""What becomes of jobs in one transaction: claims, ends of claims, and everything between."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from perdure.core.lane import like, needs_of
from perdure.core.model import repairs
from tests.sim.ledger import Claim
from tests.sim.promises import Violation
from tests.sim.releases import FIRST, STAGES
from tests.sim.tables import HISTORY, JobRow, Key, Move
from tests.sim.world import LEASE_S, Process

if TYPE_CHECKING:
    from tests.sim.book import Book

#: Written down once more, apart from the engine's own table, and narrower: what does not happen is not allowed.
MOVES = {
    "queued": {"running", "parked", "cancelled"},
    "running": {"queued", "parked", "waiting", "done", "dead", "cancelled"},
    "waiting": {"queued", "parked", "cancelled"},
    "parked": {"queued", "running", "cancelled"},
    "done": set(),
    "dead": set(),
    "cancelled": set(),
}
#: The outcome in history → the states that it leads to.
LEADS_TO = {
    "done": {"done"}, "dead": {"dead"}, "cancelled": {"cancelled"}, "retry": {"waiting", "queued", "parked"},
    "answered": {"queued", "parked"}, "later": {"waiting", "queued", "parked"}, "hold": {"waiting", "queued", "parked"},
    "gather": {"waiting"},
}  # fmt: skip
#: What a sweep found in time it does not find later than this.
LATE_MS = 5_000
POSTPONES = {each.name: each.postpones_max for each in FIRST}


class Moves:
    """Judges how jobs change."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.world = book.world
        self.ledger = book.ledger
        self._limits = book.limits_of_keys
        self._tokens: set[tuple[int, int | None]] = set()
        self._not_before_ms: dict[int, int] = {}
        self._free: Counter[tuple[str, int]] = Counter()  # claims that no bound counts, by key and generation
        self._renewed_s: dict[int, float] = {}  # leases, by job

    def check(self, moved: Sequence[Move], by: Process) -> None:
        """Every change of a job in one transaction of `by`."""
        for old, new in moved:
            if new is None:
                assert old is not None
                self._gone(old)
            elif old is None or old.generation != new.generation:
                self._entered(old, new)
            else:
                self._moved(old, new, by)
            if new is not None:
                self._touched(new)
                if new.lease_until_ms is not None and (
                    old is None or new.lease_until_ms != old.lease_until_ms
                ):
                    self._renewed_s[new.id] = self.world.loop.now_s
        self._limits.moved(moved)
        claimed = [(old, new) for old, new in moved if new is not None and _claimed(old, new)]
        for old, new in claimed:
            self._taken(old, new, by, moved)

    def _touched(self, new: JobRow) -> None:
        self.book.held(new)
        if new.priority:
            self.book.touched.by("priority", new.document_id)

    def _gone(self, old: JobRow) -> None:
        self.world.happened("job pruned", old.key)
        if old.document_id in self.book.leaving.now:
            return
        self.book.touched.by("retention", old.document_id)
        if old.state not in ("done", "cancelled"):
            raise Violation("orphan", f"{old.key} was removed while it was {old.state}")

    def _entered(self, old: JobRow | None, new: JobRow) -> None:
        self.world.tell(f"job {new.key} enters {new.queue} as {new.state}, generation {new.generation}")
        document = self.book.documents[new.document_id]
        asked = ("requeue", new.document_id) in self.book.acts_now
        cut_off = new.document_id in self.book.refreshed_now
        if old is not None and not (asked and (cut_off or old.ending is not None)):
            raise Violation("progress", f"{new.key} went from {old.state} into a new generation by itself")
        if old is not None and old.state == "running":
            self._told(old)
        self._not_before_ms[new.id] = self.book.put_off.get(new.document_id, 0)
        if old is None and new.generation == 1 and new.key == f"doc-{new.document_id}":
            delay_s = json.loads(document.meta).get("delay_s", 0)
            self._not_before_ms[new.id] = self.book.now_ms + int(delay_s * 1000)
        if self._not_before_ms[new.id] > self.book.now_ms:
            self.book.touched.by("run-at", new.document_id)
        if "/" in new.key:
            self._spawned(new)
        elif new.generation > 1:
            self.world.happened("generation", new.key)
            if new.fresh_from is not None:
                self.book.touched.by("rerun", new.document_id)

    def _spawned(self, new: JobRow) -> None:
        kind = "repair" if repairs(new.key) else "hook" if "/on_" in new.key else "follow-up"
        self.world.happened(kind, new.key)
        if kind == "follow-up":
            self.book.touched.by("follow-up", new.document_id)
        elif "/on_dead" in new.key:
            self.book.touched.by("hook", new.document_id)

    def _moved(self, old: JobRow, new: JobRow, by: Process) -> None:
        if old.state in ("queued", "waiting", "parked") and new.state == "dead":
            seized = old._replace(claims=new.claims, token=None)
            self.book.stuck.buried(old, self._told(seized)[3])
            return
        if new.requeues > old.requeues:
            self.book.stuck.requeued(old)
        self._check_way(old, new, by)
        if new.suspect > old.suspect:
            self.world.happened("suspect", new.key)
        if new.run_at_ms == 0 < old.run_at_ms:
            self._not_before_ms[new.id] = 0
            if ("raise", new.document_id) not in self.book.acts_now:
                raise Violation("history", f"{new.key} was raised by nobody")
        self._check_loan(old, new)
        if old.state == "running":
            if new.worker == 0 != old.worker and new.claims == old.claims:
                self._handed_over(old, new, by)
            elif new.token != old.token or new.state != "running":
                self._ended(old, new, by)
            elif self.ledger.workers.get(old.worker or 0, by).family is not by.family:
                raise Violation("fence", f"{by.name} changed {new.key}, which is not in its hand")

    def _check_way(self, old: JobRow, new: JobRow, by: Process) -> None:
        """States, stages and claims only move on."""
        if new.state != old.state:
            self.world.happened(f"{old.state} to {new.state}", f"{new.key} claim {new.claims} by {by.name}")
            if new.state not in MOVES[old.state]:
                raise Violation("progress", f"{new.key} went from {old.state} to {new.state}")
        stages = STAGES[new.pipeline]
        back = stages.get(new.stage, -1) < stages.get(old.stage, -1)
        # one that was imported stands where it died, and begins anew because what it had saved is gone
        imported = new.document_id in self.book.leaving.ever
        renewed = new.stage == "proof" or self.book.touched.has("releases", new.document_id)
        # one that is requeued where it died gets what a fallback stood in for before
        earlier = [(new.document_id, new.pipeline, new.stage, n) for n in range(1, new.generation)]
        stood_in = not self.book.degraded.isdisjoint(earlier)
        if back and not imported and not renewed and not stood_in:
            raise Violation("progress", f"{new.key} went back from {old.stage} to {new.stage}")
        if new.claims < old.claims:
            raise Violation("lease", f"{new.key}: claims fell from {old.claims} to {new.claims}")

    def _handed_over(self, old: JobRow, new: JobRow, by: Process) -> None:
        self.world.happened("handed over", new.key)
        self.book.touched.by("remote", new.document_id)
        if self.ledger.workers[old.worker or 0].family is not by.family:
            raise Violation("fence", f"{by.name} handed {new.key} over, which is not in its hand")
        if new.lease_until_ms is not None or new.token == old.token:
            raise Violation("lease", f"{new.key} was handed over with the lease or the token of its worker")

    def _check_loan(self, old: JobRow, new: JobRow) -> None:
        """Only what the breaker holds is lent, from its lane and back to it."""
        if old.probe is not None and new.probe is None and old.state in ("queued", "parked"):
            self.world.happened("recalled", new.key)
        if new.probe is None or old.probe is not None:
            return
        self.world.happened("lent", f"{new.key} for {new.probe}")
        if self.book.held_by.get(new.probe or "") != "breaker":
            raise Violation("service", f"{new.key} was lent for {new.probe}, which the breaker does not hold")
        if (new.home, new.lane) != (old.lane, like("", old.lane)) or new.probe not in needs_of(
            new.home or ""
        ):
            raise Violation("service", f"{new.key} was lent from {old.lane} for {new.probe}")

    # --- the end of a claim ----------------------------------------------------------------------

    def _told(self, old: JobRow) -> Key:
        """What history says of a claim that ended: outcome, charged, token, code, why."""
        found: list[Key] = self.book.database.execute(
            HISTORY, (old.org, old.document_id, old.key, old.generation, old.claims)
        ).fetchall()
        if not found or (old.token is not None and found[0][2] != old.token):
            raise Violation("history", f"claim {old.claims} of {old.key} ended without a word")
        outcome, charged, _, code, why = found[0]
        self.book.stuck.ended(old, outcome, code, why)
        if outcome == "gather" and "/" not in old.key:
            self.book.touched.by("gathering", old.document_id)
        self.world.happened(f"outcome {outcome}", f"{old.key} claim {old.claims}: {why}")
        self.book.ended.add((old.key, old.generation, old.claims))
        self.book.charged[old.key, old.generation] += charged
        # an outage of any length costs nothing, also if the fleet does not agree that there is one
        doubtful = (outcome, code) == ("later", "dependency_down")
        self._free[old.key, old.generation] += doubtful or outcome in ("hold", "gather")
        return found[0]

    def _ended(self, old: JobRow, new: JobRow, by: Process) -> None:
        outcome, _, _, code, why = self._told(old)
        which = (old.key, old.generation)
        self._check_taker(old, by, outcome)
        if why.endswith("lease expired") and self._renewed_just_now(old, by):
            raise Violation("lease", f"{by.name} took {old.key}, which was renewed just now")
        if new.state == "running":  # ended and claimed again in one flush
            return
        if new.probe is not None:
            raise Violation("service", f"{new.key} is still lent after {outcome}")
        if new.state not in LEADS_TO[outcome]:
            raise Violation("history", f"{new.key} is {new.state} after {outcome}")
        if outcome == "dead" and not (code and why):
            raise Violation("reason", f"{old.key} is dead without a reason")
        self._check_budget(new, outcome)
        # what a run asked for in a worker that stood still, and was ended for it, nobody heard
        unheard = code in (None, "worker_lost") or (
            code == "stage_timeout" and self.ledger.overdue[which] > 0
        )
        if not unheard and outcome in ("retry", "later"):
            asked_s = self.ledger.asked.get((old.id, old.token or 0), 0.0)
            self._not_before_ms[new.id] = self.book.now_ms + int(asked_s * 1000)
        else:
            self._not_before_ms[new.id] = 0

    def _check_taker(self, old: JobRow, by: Process, outcome: str) -> None:
        """A claim is ended by its holder, by an operator, or when the lease is over or the holder is gone."""
        if outcome == "cancelled":
            requeued = ("requeue", old.document_id) in self.book.acts_now
            cut_off = old.document_id in self.book.refreshed_now or (requeued and repairs(old.key))
            if ("cancel", old.document_id) not in self.book.acts_now and not cut_off:
                raise Violation("history", f"{old.key} was cancelled by nobody")
            return
        if old.worker == 0:
            self._check_answered(old, outcome)
            return
        holder = self.ledger.workers[old.worker or 0]
        if holder.family is by.family:
            return
        over = (old.lease_until_ms or 0) < self.book.now_ms
        self.world.happened("taken back, lease over" if over else "taken back, worker gone", old.key)
        if not over and holder.alive and not holder.was_cut:
            raise Violation("lease", f"{by.name} took {old.key} from {holder.name}, which lives and holds it")

    def _renewed_just_now(self, old: JobRow, by: Process) -> bool:
        """Whether only a clock can say that the lease is over, and a keeper had every chance to know better."""
        now_s = self.world.loop.now_s
        late_ms = self.book.now_ms - (old.lease_until_ms or 0)
        holder = self.ledger.workers.get(old.worker or 0)
        lives = holder is not None and holder.alive and not holder.was_cut
        calm = not self.world.faults.away and not self.world.faults.slow and self.world.up_since_s < 0
        keeper = by.family.name.partition("-")[0] in ("worker", "supervisor")
        awake_s = now_s - max(by.began_s, by.frozen_until_s, by.family.frozen_until_s)
        knew = lives and calm and keeper and awake_s > 3
        return knew and late_ms > LATE_MS and now_s - self._renewed_s[old.id] < LEASE_S / 3

    def _check_answered(self, old: JobRow, outcome: str) -> None:
        """What another service had in hand is ended by what it said, or when its lease is over."""
        said = self.ledger.answered if outcome == "answered" else self.ledger.refused
        over = old.lease_until_ms is not None and old.lease_until_ms < self.book.now_ms
        if outcome != "answered":
            self.ledger.faults[old.key, old.generation] += 1
            self.world.happened("failed elsewhere" if old.token in said else "unanswered", old.key)
        if old.token not in said and (outcome == "answered" or not over):
            raise Violation("fence", f"{old.key} was ended by {outcome}, but nobody said so")

    def _check_budget(self, new: JobRow, outcome: str) -> None:
        which = (new.key, new.generation)
        charged, ended = self.book.charged[which], new.claims
        if charged != new.attempts:
            raise Violation("counters", f"{new.key} has {new.attempts} attempts, history has {charged}")
        if charged > new.attempts_max:
            raise Violation("budget", f"{new.key} was charged {charged} times of {new.attempts_max}")
        fair = self.ledger.faults[which] + (outcome in ("done", "cancelled"))
        if charged > fair:
            raise Violation("budget", f"{new.key} was charged {charged} times for {fair} faults of its own")
        stages = len(STAGES[new.pipeline])
        cap = new.attempts_max + POSTPONES.get(new.pipeline, 100) + self._free[which] + stages + 1
        if ended > cap:
            raise Violation("budget", f"{new.key} was claimed {ended} times, the most possible is {cap}")

    # --- claims ----------------------------------------------------------------------------------

    def _taken(self, old: JobRow | None, new: JobRow, by: Process, moved: Sequence[Move]) -> None:
        book = self.book
        self.world.happened("claim", f"{new.key} claim {new.claims} by {by.name}")
        if (new.id, new.token) in self._tokens:
            raise Violation("lease", f"{new.key}: token {new.token} was given before")
        self._tokens.add((new.id, new.token))
        if new.claims != (old.claims if old is not None and old.generation == new.generation else 0) + 1:
            raise Violation("lease", f"{new.key} was claimed, but its claims are {new.claims}")
        running = old is not None and old.state == "running"
        if running and (new.key, new.generation, new.claims - 1) not in book.ended:
            raise Violation("lease", f"{new.key} was claimed while it was running")
        if book.latest_ms < self._not_before_ms.get(new.id, 0):
            early_ms = self._not_before_ms[new.id] - book.latest_ms
            raise Violation("early", f"{new.key} was claimed {early_ms} ms early")
        if new.lane in book.lanes_down or new.queue in book.queues_paused:
            raise Violation("service", f"{new.key} was claimed although {new.queue} or {new.lane} is closed")
        if new.limit_key is not None:
            self._limits.claimed(new.limit_key, moved)
        self._limits.passed(new, moved)
        if by.outdated:
            raise Violation("service", f"{new.key} was claimed by {by.name}, which the store has outgrown")
        self._check_siblings(new, by)
        if new.pipeline == "maps":
            book.touched.by_release(by.release, new.document_id)
        if new.pipeline not in by.serves:
            raise Violation(
                "service", f"{new.key} was claimed by {by.name}, which does not have {new.pipeline}"
            )
        which = (new.document_id, new.pipeline, new.generation)
        saved = [key for key in book.saved if (*key[:2], key[3]) == which]
        stages = frozenset(key[2] for key in saved if not book.makes_good(new, key))
        items = frozenset((key[2], key[4]) for key in book.items if (*key[:2], key[3]) == which)
        self.ledger.claims[new.id, new.token or 0] = Claim(by, stages, items, bool(new.suspect))

    def _check_siblings(self, new: JobRow, by: Process) -> None:
        """A worker process begins when all is given back that the one before it had claimed."""
        world = self.world
        if by.family is by or world.faults.away or world.up_since_s > 0:
            return
        for job in self.book.jobs.values():
            if job.state != "running" or job.worker != new.worker or job.token == new.token:
                continue
            claim = self.ledger.claims[job.id, job.token or 0]
            if claim.by is not by and not claim.by.alive:
                raise Violation(
                    "lease", f"{job.key} is still with {claim.by.name}, and {by.name} claims already"
                )


def _claimed(old: JobRow | None, new: JobRow) -> bool:
    ours = new.state == "running" and new.worker != 0
    return ours and (old is None or (old.state, old.token) != ("running", new.token))
