"""A service is away for an hour while a thousand documents need it: nobody pays for it, and nobody hammers it."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from perdure import DependencyDown, Document, Pipeline
from perdure.core.scope import WORK
from perdure.engine.sweeper import Retention
from perdure.store.operations import Report
from perdure.testing import FakeClock, Trial, _round, _worker, trial

DOCUMENTS, USUAL_PER_S, HOUR_S = 1_000, 20, 3_600
FAILURES_MAX = 10  # in a row, before it is known that the service is away


class Service:
    """A service that can be away, and what every caller of it knows: whether its breaker is open."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.away = self.open = False
        self.failures = 0
        self.requests: Counter[int] = Counter()  # by second

    def ask(self) -> None:
        """Ask until it answers or the breaker opens; a lent document asks once, breaker or not."""
        work = WORK.get()
        assert work is not None
        while not self.open or work.probe == "openai":
            self.requests[self.clock.now_ms() // 1_000] += 1
            work.count("openai")
            self.failures = self.failures + 1 if self.away else 0
            self.open = self.failures > FAILURES_MAX
            if work.probe is not None:
                work.probed = not self.away
            if not self.away:
                return
            if work.probe is not None:
                break
        raise DependencyDown("openai", "its breaker is open", confirmed=True)

    def asked(self, since_s: int) -> int:
        """How many requests there were from that second on."""
        return sum(number for second, number in self.requests.items() if second >= since_s)


async def play(app: Trial, pipeline: Pipeline, service: Service) -> None:
    """Half a minute of work, an hour without the service, and then until all is done."""
    clock, store = app.clock, app.service.store
    left = DOCUMENTS

    async def second(seconds: int, arriving: int = 0) -> None:
        nonlocal left
        clock.advance(seconds)
        arriving, left = min(arriving, left), left - min(arriving, left)
        if arriving:
            entries = [{"text": f"{left} {n}"} for n in range(arriving)]
            await app.service.add_many(entries, pipeline=pipeline)  # type: ignore[arg-type]
        await _round(app, worker)
        made = service.requests[clock.now_ms() // 1_000]
        await store.exchange("openai", Report(1, made, made, 0, 0, 0.0, 0.0, None))

    async with _worker(app) as worker:
        for _ in range(20):
            await second(1, USUAL_PER_S)
        service.away, began_s = True, clock.now_ms() // 1_000 + 1
        for _ in range(30):
            await second(1, USUAL_PER_S)
        assert left == 0
        for _ in range((HOUR_S - 30) // 5):
            await second(5)
        assert 50 < service.asked(began_s) <= 100
        assert (await store.live())["held"] == 30 * USUAL_PER_S
        service.away = False
        while await store.live():
            await second(1)
            assert clock.now_ms() // 1_000 - began_s < HOUR_S + 200, "it takes too long"


@pytest.mark.full
def test_an_hour_without_a_service_costs_nothing_and_its_return_is_no_stampede(store_url: str) -> None:
    clock = FakeClock()
    service, pipeline = Service(clock), Pipeline("books")

    @pipeline.stage
    async def extract(doc: Document) -> str:
        return doc.text

    @pipeline.stage(needs=["openai"])
    async def embed(doc: Document, extract: str) -> str:
        service.ask()
        return extract

    with trial(pipeline, store=store_url, clock=clock, concurrency=100) as app:
        app.sweeper.retention = Retention(age_ms=2 * HOUR_S * 1_000, count=DOCUMENTS)
        app._call(play(app, pipeline, service))
        documents = app.documents(limit=DOCUMENTS + 1)
        assert Counter(d.state for d in documents) == {"done": DOCUMENTS}
        assert {d.attempts_made for d in documents} == {1}
        attempts = [attempt for d in documents for attempt in app.attempts(d.id)]
        assert Counter(a.outcome for a in attempts if a.charged) == {"done": DOCUMENTS}
        assert sum(a.requests.get("openai", 0) for a in attempts) == service.requests.total()
        most = float(USUAL_PER_S)
        for _, number in sorted(service.requests.items()):  # it grows little by little, and never at once
            assert number <= math.ceil(1.4 * most)
            most = max(most, number)
        assert [d.state for d in app.dependencies()] == ["up"]
        acts = app._call(app.service.store.acts())
        assert [(act.who, act.verb) for act in acts] == [("breaker", "release"), ("breaker", "hold")]
