"""Policies inside stages: what becomes of the document, and an hour without the service."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import dataclass, field
from random import Random

import pytest

from perdure import Context, Document, Pipeline
from perdure.calls import Dependency, FullJitter, Policy, Timing
from perdure.calls.dependency import DEPENDENCIES
from perdure.calls.fleet import Fleet
from perdure.calls.timing import TIMING
from perdure.engine.sweeper import Retention
from perdure.testing import FakeClock, Trial, _round, _worker, drain, tick, trial
from tests.calls import celled
from tests.calls.making import HttpError

DOCUMENTS, USUAL_PER_S, HOUR_S = 1_000, 20, 3_600


@dataclass
class Service:
    """Answers as `says` tells; its clock is the trial's, and waiting takes no time."""

    clock: FakeClock
    says: list[Exception | str] = field(default_factory=lambda: ["fine"])
    requests: Counter[int] = field(default_factory=Counter)  # by second

    async def ask(self) -> str:
        self.requests[self.clock.now_ms() // 1_000] += 1
        answer = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def policy(self) -> Policy:
        async def at_once(seconds: float) -> None:
            await asyncio.sleep(0)

        timing = Timing(clock=self.clock.monotonic_s, wall=self.clock.monotonic_s, asleep=at_once)
        return Policy("openai", backoff=FullJitter(2, 30), dependency=Dependency("openai"), timing=timing)

    def pipeline(self, policy: Policy) -> Pipeline:
        books = Pipeline("books")

        @books.stage(needs=["openai"])
        async def embed(doc: Document) -> str:
            return await policy.acall(self.ask)

        return books


@pytest.fixture
def service() -> Service:
    return Service(FakeClock())


def test_retries_inside_a_call_cost_no_attempt(service: Service, store_url: str) -> None:
    service.says = [HttpError(503), HttpError(429), "fine"]
    books = service.pipeline(service.policy())
    with trial(books, store=store_url, clock=service.clock) as app:
        id_ = app.add(text="a", pipeline=books).id
        assert drain(app).done == 1
        (attempt,) = app.attempts(id_)
        assert (attempt.outcome, attempt.requests) == ("done", {"openai": 3})


def test_a_call_that_fails_alone_reschedules_the_document(service: Service, store_url: str) -> None:
    policy = service.policy()
    books = service.pipeline(policy)
    with trial(books, store=store_url, clock=service.clock) as app:
        service.says = [HttpError(503), "fine"]  # from the first failure on others are counted
        app.add(text="well", pipeline=books)
        assert drain(app).done == 1
        for _ in range(300):
            policy.dependency.answered(service.clock.monotonic_s())
        service.says = [*[HttpError(503)] * 4, "fine"]
        id_ = app.add(text="a", pipeline=books).id
        assert drain(app).done == 1
        first, second = app.attempts(id_)
        assert (first.outcome, first.error_code, first.charged) == ("rescheduled", "flickering", True)
        assert 150_000 <= (first.delay_ms or 0) <= 450_000
        assert (second.outcome, second.attempt) == ("done", 2)


def test_a_call_that_nobody_else_can_judge_puts_the_document_off_for_seconds(
    service: Service, store_url: str
) -> None:
    books = service.pipeline(service.policy())
    service.says = [*[HttpError(503)] * 4, "fine"]
    with trial(books, store=store_url, clock=service.clock) as app:
        id_ = app.add(text="a", pipeline=books).id
        assert drain(app).done == 1
        first, second = app.attempts(id_)
        assert (first.outcome, first.error_code, first.charged) == ("later", "flickering", False)
        assert 1_000 <= (first.delay_ms or 0) <= 10_000
        assert (second.outcome, second.attempt) == ("done", 1)


def test_a_long_document_gets_through_a_service_that_fails_half_of_the_time(
    service: Service, store_url: str
) -> None:
    """Forty calls: the failures between two that are saved are none of the next one's business."""
    rand, policy, books = Random(3), service.policy(), Pipeline("books")

    async def ask(number: int) -> int:
        if rand.random() < 0.5:
            raise HttpError(503)
        return number

    async def flicker(number: int) -> int:
        return await policy.acall(ask, number)

    @books.stage(needs=["openai"])
    async def read(doc: Document, ctx: Context) -> int:
        async for _ in ctx.aitems(range(40), run=flicker):
            service.clock.advance(0.1)
        return 40

    with trial(books, store=store_url, clock=service.clock, concurrency=3) as app:
        policy.dependency.expect(0.5)  # as the fleet found out
        ids = [app.add(text=str(n), pipeline=books).id for n in range(6)]
        assert drain(app).done == 6
        attempts = [attempt for id_ in ids for attempt in app.attempts(id_)]
        assert Counter(a.outcome for a in attempts if a.charged) == {"done": 6}
        put_off = [a for a in attempts if a.outcome == "later"]
        assert len(put_off) > 5
        assert max(a.delay_ms or 0 for a in put_off) <= 10_000


@pytest.mark.full
def test_a_poisonous_document_ends_beside_others_that_get_through(service: Service, store_url: str) -> None:
    rand, policy, books = Random(3), service.policy(), Pipeline("books")

    @books.stage(needs=["openai"])
    async def read(doc: Document) -> None:
        async def ask() -> None:
            if doc.text == "poison" or rand.random() < 0.5:
                raise HttpError(503)

        for _ in range(3):  # none of them is saved
            await policy.acall(ask)
            service.clock.advance(0.1)

    with trial(books, store=store_url, clock=service.clock, concurrency=3) as app:
        policy.dependency.expect(0.5)
        poison = app.add(text="poison", pipeline=books).id
        for n in range(
            300
        ):  # others come all the time: what fails alone can be told from a service that is away
            app.add_many([{"text": f"{n} {m}"} for m in range(2)], pipeline=books)
            tick(app)
            service.clock.advance(5)
            if app.status(poison).state == "dead":
                break
        outcomes = Counter(a.outcome for a in app.attempts(poison))
        assert (outcomes["rescheduled"], outcomes["dead"]) == (2, 1), outcomes
        assert 3 <= outcomes["later"] <= 60


def test_a_service_that_asks_for_an_hour_gets_it_for_nothing(service: Service, store_url: str) -> None:
    service.says = [HttpError(429, {"retry-after": "3600"}), "fine"]
    books = service.pipeline(service.policy())
    with trial(books, store=store_url, clock=service.clock) as app:
        id_ = app.add(text="a", pipeline=books).id
        assert drain(app).done == 1
        first, second = app.attempts(id_)
        assert (first.outcome, first.charged) == ("later", False)
        assert second.started_ms - first.ended_ms >= 3_600_000


def test_what_a_cell_saw_of_a_service_the_worker_knows(store_url: str) -> None:
    state = forget(celled.NAME)
    before = state.requests
    with trial(celled.scans, store=store_url, cells=True) as app:
        id_ = app.add(text="a", pipeline=celled.scans).id
        drain(app)
        assert app.attempts(id_)[0].requests == {celled.NAME: 3}
    assert state.requests - before >= 3
    assert state.failures >= 3


def test_an_outage_that_only_cells_see_costs_nothing_either(store_url: str) -> None:
    forget(celled.NAME)
    with trial(celled.scans, store=store_url, cells=True, concurrency=2) as app:
        ids = [app.add(text=str(n), pipeline=celled.scans).id for n in range(8)]
        for _ in range(20):
            drain(app)
            app.clock.advance(1)
        assert {app.status(id_).state for id_ in ids} == {"held"}
        assert [(d.name, d.held_by) for d in app.dependencies()] == [(celled.NAME, "breaker")]
        assert not any(a.charged for id_ in ids for a in app.attempts(id_))


def forget(name: str) -> Dependency:
    """A service of which this process knows nothing yet."""
    celled.policy.dependency = DEPENDENCIES[name] = Dependency(name)
    return DEPENDENCIES[name]


def test_a_service_that_asks_for_years_does_not_kill(service: Service, store_url: str) -> None:
    service.says = [HttpError(503, {"retry-after": "99999999"}), "fine"]
    books = service.pipeline(service.policy())
    with trial(books, store=store_url, clock=service.clock) as app:
        id_ = app.add(text="a", pipeline=books).id
        assert drain(app).done == 1
        first, second = app.attempts(id_)
        assert second.started_ms - first.ended_ms >= 86_400_000


def test_a_payment_that_may_have_been_made_is_not_made_again(service: Service, store_url: str) -> None:
    service.says = [HttpError(502), "paid"]
    policy = service.policy().but(idempotent=False)
    books = service.pipeline(policy)
    with trial(books, store=store_url, clock=service.clock) as app:
        id_ = app.add(text="a", pipeline=books).id
        assert drain(app).dead == 1
        (attempt,) = app.attempts(id_)
        assert (attempt.error_code, attempt.requests) == ("maybe_done", {"openai": 1})


@pytest.mark.parametrize("concurrency", [1, 3])
def test_the_first_documents_of_an_outage_are_not_charged(
    service: Service, store_url: str, concurrency: int
) -> None:
    books = service.pipeline(service.policy())
    with trial(books, store=store_url, clock=service.clock, concurrency=concurrency) as app:
        app.add(text="well", pipeline=books)
        assert drain(app).done == 1
        service.says = [HttpError(503)]
        service.clock.advance(1)
        ids = [app.add(text=str(n), pipeline=books).id for n in range(10)]
        for _ in range(30):
            drain(app)
            service.clock.advance(1)
        assert {app.status(id_).state for id_ in ids} == {"held"}
        assert not any(a.charged for id_ in ids for a in app.attempts(id_))


@pytest.mark.full
def test_a_brown_out_kills_nobody_and_is_over_when_it_is_over(service: Service, store_url: str) -> None:
    """A fifth of the requests fail for a while."""
    books = service.pipeline(service.policy())
    with trial(books, store=store_url, clock=service.clock, concurrency=50) as app:
        app._call(_brown_out(app, service, books))
        documents = app.documents(limit=DOCUMENTS + 1)
        assert Counter(d.state for d in documents) == {"done": DOCUMENTS}


async def _brown_out(app: Trial, service: Service, books: Pipeline) -> None:
    clock, left = app.clock, DOCUMENTS
    failing: list[Exception | str] = [HttpError(503), "fine", "fine", "fine", "fine"]
    async with _worker(app) as worker:
        for second in range(700):
            service.says = failing * 200 if 10 <= second < 40 else ["fine"]
            coming = [{"text": f"{left - n}"} for n in range(min(left, USUAL_PER_S))]
            left -= len(coming)
            await app.service.add_many(coming, pipeline=books)  # type: ignore[arg-type]
            await _round(app, worker)
            clock.advance(1)
            live = await app.service.store.live()
            if second == 50:  # ten seconds after it: what comes is done at once, what was put off will be
                assert set(live) <= {"waiting"}, live
            if not live and not left:
                return


def test_an_hour_without_the_service(service: Service, store_url: str) -> None:
    policy = service.policy()
    books = service.pipeline(policy)
    with trial(books, store=store_url, clock=service.clock, concurrency=100) as app:
        app.sweeper.retention = Retention(age_ms=2 * HOUR_S * 1_000, count=DOCUMENTS)
        app._call(_hour(app, service, policy, books))
        documents = app.documents(limit=DOCUMENTS + 1)
        assert Counter(d.state for d in documents) == {"done": DOCUMENTS}
        attempts = [attempt for d in documents for attempt in app.attempts(d.id)]
        assert Counter(a.outcome for a in attempts if a.charged) == {"done": DOCUMENTS}
        assert sum(a.requests.get("openai", 0) for a in attempts) == service.requests.total()
        asked = [number for _, number in sorted(service.requests.items())]
        early, late = asked[:-60], asked[-60:]
        assert max(early) <= USUAL_PER_S + 10  # in the first second of the outage: a worker's tokens
        most = float(USUAL_PER_S)
        for number in late:  # it grows little by little, and never at once
            assert number <= math.ceil(1.4 * most)
            most = max(most, number)


async def _hour(app: Trial, service: Service, policy: Policy, books: Pipeline) -> None:
    """20 s of work, an hour without the service while documents go on coming, then until all is done."""
    clock, store, left = app.clock, app.service.store, DOCUMENTS
    fleet = Fleet(store, 1, {"openai": policy.dependency}, policy.timing)

    async def second(seconds: int = 1) -> None:
        nonlocal left
        clock.advance(seconds)
        coming = [{"text": f"{left - n}"} for n in range(min(left, USUAL_PER_S))]
        left -= len(coming)
        await app.service.add_many(coming, pipeline=books)  # type: ignore[arg-type]
        await _round(app, worker)
        await fleet.exchange()

    async with _worker(app) as worker:
        for _ in range(20):
            await second()
        service.says, began_s = [ConnectionRefusedError()], clock.now_ms() // 1_000 + 1
        for _ in range(30):
            await second()
        for _ in range((HOUR_S - 30) // 5):
            await second(5)
        asked = sum(n for at, n in service.requests.items() if at >= began_s)
        assert 20 < asked <= 130  # about 60 probes, and what fails before the fleet knows
        service.says = ["fine"]
        ended_s = clock.now_ms() // 1_000
        while await store.live():
            await second()
            assert clock.now_ms() // 1_000 - ended_s < 200, "it takes too long"


def test_an_open_breaker_of_one_trial_is_not_known_to_the_next() -> None:
    books = Pipeline("books")
    policy = Policy("flickering")

    @books.stage(needs=["flickering"])
    def read(doc: Document) -> None:
        policy.call(int, "1")

    policy.dependency.breaker.trip(TIMING.clock())
    policy.dependency.budget.tokens = 0.0
    with trial(books) as app:
        app.add(text="a", pipeline=books)
        assert drain(app).done == 1
    assert policy.dependency.budget.tokens == policy.dependency.budget.reserve
