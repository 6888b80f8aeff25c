"""A campaign: adds, operators' acts and random faults of every kind beside each other, and the account afterwards.

Four threads with dice of their own: callers, operators, harm to workers and links, harm to servers. Only the last one
touches servers, so that at any time at most one of them is being replaced.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from perdure.errors import PerdureError, StoreBusy, StoreUnavailable
from tests.faults.bouncer import Bouncer
from tests.faults.crew import Crew
from tests.faults.fleet import Fleet
from tests.faults.process import send
from tests.faults.proxy import Fault, Proxy
from tests.faults.replication import Replication
from tests.faults.stages import STORE_VARIABLE
from tests.faults.storm import EFFECTS, failing

WORKERS, CONCURRENCY, OPEN_MAX = 4, 5, 24
HARM_EVERY_S = (0.5, 3.0)
FROZEN_S = (0.5, 9.0)
ACT_EVERY_S = (0.1, 0.6)
RESTART_AFTER_S = (10.0, 25.0)
PATIENCE_S = 300.0
LOOK_S = 0.2
PACES = (0.02, 0.3)
SESSIONS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'client backend' "
    "AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1"
)

T = TypeVar("T")


class Campaign:
    """Everything that was done, for the account: `ids` acknowledged, what operators tried, and what was purged."""

    def __init__(
        self, servers: Replication, address: Proxy, bouncer: Bouncer, fleet: Fleet, rng: random.Random
    ) -> None:
        self.servers, self.address, self.bouncer, self.fleet = servers, address, bouncer, fleet
        self._dice = {name: random.Random(rng.random()) for name in ("add", "act", "harm", "serve", "crew")}
        self.counts: Counter[str] = Counter()
        self.pipelines: dict[str, str] = {}  # name of a document → its pipeline
        self.cancelled: set[str] = set()  # ids that an operator tried to cancel
        self.purged: dict[str, bool] = {}  # id → whether the purge was acknowledged; False: nobody knows
        self._over = threading.Event()

    @property
    def ids(self) -> dict[str, str]:
        return self.fleet.ids

    def run(self, seconds: float, failover_every_s: float) -> None:
        """For so long; then everything is healed and every document ends."""
        self.servers.attach(synchronous=True)
        direct = {STORE_VARIABLE: self.address.url}
        pooled = {STORE_VARIABLE: self.bouncer.url, "PERDURE_DIRECT_URL": self.address.url}
        self.crew = Crew(
            self.fleet, self._dice["crew"], "tests.faults.storm:app", WORKERS, CONCURRENCY, [direct, pooled]
        )
        until_s = time.monotonic() + seconds
        acts: list[Callable[[], None]] = [
            self._add, self._act, self._harm, lambda: self._serve(failover_every_s),
        ]  # fmt: skip
        with ThreadPoolExecutor(len(acts)) as pool:
            running = [pool.submit(act) for act in acts]
            try:
                while time.monotonic() < until_s and not any(one.done() for one in running):
                    time.sleep(LOOK_S)
            finally:
                self._over.set()
            for one in running:
                one.result()
        for point in self.address.points:
            self.address.arm(point, [])
        self.crew.replace_lost()
        self.fleet.wait(lambda: self._open() == 0, "every document to end", PATIENCE_S, look_s=0.5)

    def _pause(self, rng: random.Random, bounds: tuple[float, float]) -> bool:
        """Wait; whether the campaign goes on."""
        return not self._over.wait(rng.uniform(*bounds))

    # --- callers -----------------------------------------------------------------------------------

    def _add(self) -> None:
        """Keep about OPEN_MAX documents under way; an add without an answer is made again under the same key."""
        rng = self._dice["add"]
        while self._pause(rng, (0.05, 0.3)):
            room = OPEN_MAX - self._open()
            if room <= 0:
                continue
            pipeline = rng.choice(["voyage", "voyage", "hasty", "pooled", "terminated", failing.name])
            first = len(self.pipelines)
            names = [f"d{first + n}" for n in range(rng.randint(1, min(room, 4)))]
            entries = [{"text": f"{rng.uniform(*PACES):.3f}", "name": name, "key": name} for name in names]
            self.pipelines |= dict.fromkeys(names, pipeline)
            added = self._until_answered(lambda e=entries, p=pipeline: self.fleet.app.add_many(e, pipeline=p))  # type: ignore[misc]
            self.ids.update({name: one.id for name, one in zip(names, added, strict=True)})

    def _until_answered(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self.fleet.ask(make())
            except (StoreUnavailable, StoreBusy):
                self.counts["asked again"] += 1
                assert time.monotonic() < until_s, "the store does not answer"
                time.sleep(LOOK_S)

    def _open(self) -> int:
        return self._until_answered(self.fleet.app.store.tally).documents.get("open", 0)

    # --- operators ---------------------------------------------------------------------------------

    def _act(self) -> None:
        rng = self._dice["act"]
        while self._pause(rng, ACT_EVERY_S):
            if not self.ids:
                continue
            id_ = rng.choice(list(self.ids.values())[-4 * OPEN_MAX :])
            verb = rng.choice(["cancel", "requeue", "requeue", "purge"])
            if self.purged.get(id_) is not None:
                continue
            try:
                answer = self._do(verb, id_)
            except (StoreUnavailable, StoreBusy):
                answer = "unknown"
            except PerdureError as error:  # such as: no document has this id
                answer = f"refused: {error}"
            self.counts[f"{verb}: {answer.partition(':')[0]}"] += 1
            if verb == "purge" and answer in ("purged", "unknown"):
                self.purged[id_] = answer == "purged"

    def _do(self, verb: str, id_: str) -> str:
        app = self.fleet.app
        if verb == "cancel":
            self.cancelled.add(id_)
            return self.fleet.ask(app.cancel(id_))
        if verb == "purge":
            return self.fleet.ask(app.delete(id_))
        if self.fleet.ask(app.status(id_)).state not in ("dead", "cancelled"):
            return "refused: only what ended without being done"
        return self.fleet.ask(app.requeue(id_))

    # --- harm to workers and links -----------------------------------------------------------------

    def _harm(self) -> None:
        rng = self._dice["harm"]
        kinds = {
            self._kill: 4, self._freeze: 3, self._lose_replies: 4, self._cut: 2, self._end_session: 3,
            self._restart_pooler: 1,
        }  # fmt: skip
        while self._pause(rng, HARM_EVERY_S):
            rng.choices(list(kinds), list(kinds.values()))[0](rng)

    def _kill(self, _: random.Random) -> None:
        before = len(self.crew.losses)
        self.crew.kill_one()
        self.counts["kills"] += len(self.crew.losses) - before

    def _freeze(self, rng: random.Random) -> None:
        frozen = self.crew.freeze_one()
        self.counts["freezes"] += 1
        self._pause(rng, FROZEN_S)
        send(frozen, signal.SIGCONT)
        self.crew.replace_lost()

    def _lose_replies(self, rng: random.Random) -> None:
        point = rng.choice(["enqueue", "claim", "save", "finish", "resolve"])
        self.address.arm(
            point, [rng.choice([Fault.LOST, Fault.LOST, Fault.CUT]) for _ in range(rng.randint(1, 3))]
        )

    def _cut(self, _: random.Random) -> None:
        self.counts["cuts"] += 1
        self.address.break_links()

    def _end_session(self, _: random.Random) -> None:
        try:
            self.servers.primary.ask(SESSIONS)
        except Exception:  # of whatever kind: the server is just being replaced
            return
        self.counts["sessions ended"] += 1

    def _restart_pooler(self, _: random.Random) -> None:
        self.counts["pooler restarts"] += 1
        self.bouncer.restart()

    # --- harm to servers ---------------------------------------------------------------------------

    def _serve(self, failover_every_s: float) -> None:
        """Restarts, and at times a failover to the standby, after which the new primary gets a standby."""
        rng = self._dice["serve"]
        due_s = time.monotonic() + rng.uniform(0.3, 0.7) * failover_every_s
        while self._pause(rng, RESTART_AFTER_S):
            mode = rng.choice(["fast", "immediate", "kill"])
            if time.monotonic() < due_s:
                self.servers.restart(mode)
                self.counts["server restarts"] += 1
                continue
            self.servers.fail_over(mode)
            self.address.point_to(self.servers.primary.url)
            self.counts["failovers"] += 1
            due_s = time.monotonic() + rng.uniform(0.7, 1.3) * failover_every_s
            self.servers.attach(synchronous=True)

    # --- the account -------------------------------------------------------------------------------

    def summary(self) -> str:
        faults = self.address.broken
        lost = sum(one.fault is Fault.LOST for one in faults)
        counts = {
            "documents": len(self.pipelines),
            **self.counts,
            "replies lost": lost,
            "commits cut": len(faults) - lost,
        }
        return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))

    def check(self) -> None:
        """Nothing is lost, nothing is applied twice, nobody is charged for our harm, and the books agree."""
        statuses = {s.id: s for s in self.fleet.ask(self.fleet.app.documents(limit=100_000))}
        lost = {name for name, id_ in self.ids.items() if id_ not in statuses and id_ not in self.purged}
        assert lost == set(), "acknowledged, not purged, and not there"
        back = {id_ for id_, sure in self.purged.items() if sure and id_ in statuses}
        assert back == set(), "purged and there"
        children = {f"child of {name}" for name in self.pipelines}
        strangers = {s.name for s in statuses.values()} - set(self.pipelines) - children
        assert strangers == set(), "there, and never added"
        for status in statuses.values():
            expected = "dead" if status.pipeline == failing.name else "done"
            allowed = {expected, "cancelled"} if status.id in self.cancelled else {expected}
            assert status.state in allowed, status
        assert Counter(s.name for s in statuses.values()).most_common(1)[0][1] == 1, (
            "a document is there twice"
        )
        self._check_effects(statuses)
        self._check_charges({id_: status.pipeline for id_, status in statuses.items()})
        audit = self.fleet.ask(self.fleet.app.audit())
        assert (audit.clean, audit.balance.difference) == (True, 0), audit
        assert self.servers.deadlocks == 0

    def _check_effects(self, statuses: dict[str, Any]) -> None:
        counted = Counter((document, stage) for document, stage, _ in self.fleet.effects())
        twice = {key: n for key, n in counted.items() if n > 1}
        assert twice == {}, "applied twice"
        done = [s for s in statuses.values() if s.state == "done"]
        missing = {(s.name, stage) for s in done for stage in EFFECTS[s.pipeline]} - set(counted)
        assert missing == set(), "done without an effect"

    def _check_charges(self, pipelines: dict[str, str]) -> None:
        rows = self.fleet.query("SELECT document_id, outcome, error_code FROM attempt WHERE charged")
        ours = ("done", "cancelled")
        innocent = [row for row in rows if pipelines.get(row[0]) != failing.name and row[1] not in ours]
        assert innocent == [], "charged for what they did not do"
        guilty = {(row[1], row[2]) for row in rows if pipelines.get(row[0]) == failing.name}
        assert guilty <= {("retry", "unexpected"), ("dead", "unexpected"), ("cancelled", None)}, guilty


def minutes() -> float:
    """How long the chosen campaign lasts."""
    return float(os.environ.get("CHAOS_MINUTES") or 30)
