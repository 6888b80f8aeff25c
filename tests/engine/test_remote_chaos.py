"""Remote stages under seeded misfortune: relays and workers die at any point, replies of the store are lost, services
answer twice, late, wrongly or not at all, operators cancel and requeue. The test keeps its own account of all of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from perdure import Document, Pipeline, Result
from perdure.core.token import new_token
from perdure.errors import PerdureError, StoreUnavailable
from perdure.store.base import Query, Steps
from perdure.store.operations import Claim
from perdure.testing import Trial, tick, trial

ATTEMPTS = 3
STEPS = 120
EVENT, DONE, FAILED = "ArchiveIngested", "JSONParsed", "JSONParseFailed"

after = Pipeline("after", attempts=ATTEMPTS)
after.remote_stage("tell", event="Stored", done="Told", failed="NotTold", output=str)
archives = Pipeline("archives", attempts=ATTEMPTS, then=[after])


@archives.stage
def ingest(doc: Document) -> str:
    return doc.text


archives.remote_stage("parse", event=EVENT, done=DONE, failed=FAILED, reads=["ingest"], output=dict[str, int])


@archives.stage
def store(doc: Document, parse: dict[str, int]) -> Result[int]:
    return Result(parse["number"], spawn=[after.job(doc)])


#: No running job of another service may be without both a lease and an event.
FORGOTTEN = (
    "SELECT key FROM job j WHERE state = 'running' AND worker = 0 AND lease_until_ms IS NULL "
    "AND NOT EXISTS (SELECT 1 FROM outbox o WHERE o.token = j.token)"
)


class Lossy:
    """A database whose replies are lost now and then, after it has committed."""

    def __init__(self, driver: Any, rng: random.Random) -> None:
        self._driver, self._rng, self.lossy = driver, rng, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    async def write(self, steps: Any) -> Any:
        answer = await self._driver.write(steps)
        if self.lossy and self._rng.random() < 0.1:
            raise StoreUnavailable("the connection was lost after COMMIT")
        return answer


class Play:
    """One seed."""

    def __init__(self, app: Trial, seed: int) -> None:
        self.app, self.rng = app, random.Random(seed)
        self.store = app.service.store
        self.broker: list[dict[str, Any]] = []  # all that was ever published, and may be delivered again
        self.saved: dict[tuple[str, int], Any] = {}  # (job, generation) → the output that was taken
        self.names: dict[str, str] = {}  # document → the key it was added under
        self.lossy = Lossy(self.store.driver, self.rng)
        self.store.flusher._driver = self.lossy
        self.store.driver = self.lossy

    # --- what may happen ---------------------------------------------------------------------------

    def add(self) -> None:
        """A new document, or other content for a known one, which starts it again."""
        name = f"key {self.rng.randrange(8)}"
        text = f"text {self.rng.getrandbits(40)}"
        self.names[self.app.add(text=text, key=name, pipeline=archives).id] = name

    def work(self) -> None:
        with suppress(AssertionError):  # a part of the sweep could not hear whether it was done
            tick(self.app)

    def claim_and_die(self) -> None:
        """A worker that takes a job and is never heard of again."""
        worker = self.app._call(self.store.register("worker", "doomed", ["documents"]))
        self.app._call(self.store.claim(Claim(worker, ("documents",), new_token(), 1, 1)))
        self.app._call(self.store.driver.unlock("worker", worker))

    def publish(self, dies: bool = False) -> None:
        events = self.app._call(self.store.outbox(20))
        for event in events:
            said = {"id": event.id, "event": event.name, **json.loads(event.payload)}
            self.broker.append(said)
        if not dies:
            self.app._call(self.store.outbox_sent(events))

    def publish_and_die(self) -> None:
        self.publish(dies=True)

    def refuse(self) -> None:
        """Nobody has a queue for these."""
        events = self.app._call(self.store.outbox(3))
        self.app._call(self.store.outbox_failed([(event, 60_000, "no queue") for event in events]))

    def serve(self) -> None:
        """A service takes any event that was ever published, and says anything."""
        asked = [event for event in self.broker if "token" in event]
        if not asked:
            return
        event = self.rng.choice(asked[-10:])
        about: dict[str, Any] = {"job": event["job"]}
        match self.rng.choice(("done", "done", "done", "failed", "torn", "wrong", "beat")):
            case "done":
                self.finish(event)
            case "failed":
                self.app.remote_fail(event["document_id"], event["token"], code="busy", **about)
            case "torn":
                self.app.remote_fail(
                    event["document_id"], event["token"], code="torn", retryable=False, **about
                )
            case "wrong":
                answer = self.app.remote_finish(event["document_id"], event["token"], [1], **about)
                assert answer != "saved"
            case "beat":
                self.app.remote_beat(event["document_id"], event["token"], **about)

    def finish(self, event: dict[str, Any]) -> None:
        number = self.rng.getrandbits(30)
        output: Any = str(number) if event["stage"] == "tell" else {"number": number}
        answer = self.app.remote_finish(event["document_id"], event["token"], output, job=event["job"])
        if answer == "saved":
            which = (event["job"], event["generation"])
            assert which not in self.saved, "two answers were taken for one stage of one generation"
            self.saved[which] = output

    def wait(self) -> None:
        self.app.clock.advance(self.rng.choice((1, 31, 301, 901)))

    def cancel(self) -> None:
        if self.names:
            self.app.cancel(self.rng.choice(sorted(self.names)))

    def requeue(self) -> None:
        if self.names:
            self.app.requeue(self.rng.choice(sorted(self.names)))

    # --- what must hold ----------------------------------------------------------------------------

    def look(self) -> None:
        assert self.query(FORGOTTEN) == []

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        def steps() -> Steps[list[tuple[Any, ...]]]:
            return (yield Query(sql))

        return self.app._call(self.store.driver.read(steps))

    def converge(self) -> None:
        """Once nothing goes wrong any more, everything ends."""
        self.lossy.lossy = False
        for _ in range(60):
            if not self.query("SELECT 1 FROM job WHERE finished_ms IS NULL"):
                break
            known = len(self.broker)
            self.work()
            self.publish()
            for event in self.broker[known:]:
                if "token" in event:
                    self.finish(event)
            self.app.clock.advance(301)
        assert self.query("SELECT key, state, stage FROM job WHERE finished_ms IS NULL") == []
        while self.query("SELECT 1 FROM outbox"):
            self.publish()
            self.app.clock.advance(61)

    def check(self) -> None:
        whom: dict[str, tuple[Any, ...]] = {}
        for event in self.broker:
            claim = (event["job"], event["generation"], event["attempt"], event["event"])
            assert whom.setdefault(event["id"], claim) == claim, "one id for two attempts"
        told = {event["id"]: event for event in self.broker if event.get("final")}
        deaths: Counter[tuple[str, int]] = Counter((e["job"], e["generation"]) for e in told.values())
        for document_id in self.names:
            died: Counter[tuple[str, int]] = Counter()
            charged: Counter[tuple[str, int]] = Counter()
            for attempt in self.app.attempts(document_id):
                which = (attempt.job_key, attempt.generation)
                charged[which] += attempt.charged
                died[which] += attempt.outcome == "dead" and attempt.stage in ("parse", "tell")
            assert all(number <= ATTEMPTS for number in charged.values())
            for which, number in died.items():
                assert deaths[which] == number <= 1, f"{which}: {number} deaths, {deaths[which]} told"
            status = self.app.status(document_id)
            if status.state == "done":
                taken = [g for job, g in self.saved if job == f"doc-{document_id}" and g <= status.generation]
                assert self.app.output(document_id, "parse") == self.saved[f"doc-{document_id}", max(taken)]


MOVES = {
    Play.add: 4, Play.work: 8, Play.claim_and_die: 1, Play.publish: 5, Play.publish_and_die: 2, Play.refuse: 1,
    Play.serve: 12, Play.wait: 3, Play.cancel: 1, Play.requeue: 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("store_url", "seed"),
    [*(("sqlite", seed) for seed in range(12)), *(("postgres", seed) for seed in range(3))],
    indirect=["store_url"],
)
def test_no_event_is_lost_and_no_answer_counts_twice(store_url: str, seed: int) -> None:
    with trial(archives, store=store_url, concurrency=3) as app:
        play = Play(app, seed)
        for _ in range(STEPS):
            (move,) = play.rng.choices(tuple(MOVES), tuple(MOVES.values()))
            with suppress(PerdureError):  # in doubt: the outcome is found in the store
                move(play)
            play.look()
        play.converge()
        play.check()
        assert play.saved
