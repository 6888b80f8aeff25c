"""Documents whose stages make several calls without saving, to a service that fails now and then: the real policy and
the real outcome, played on a clock of their own."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

import pytest

from perdure.calls import Policy
from perdure.core.model import Job
from perdure.core.outcome import Dead, Done, Finished, Hold, Later, Outcome, Raised, Result, Retry, outcome
from perdure.core.scope import WORK, Work
from perdure.errors import Flickering, RateLimited, RetryLater
from perdure.store.operations import Settle
from perdure.store.rows import settle_fence
from tests.calls.making import HttpError, Script, World, at_work
from tests.core.jobs import FIRST, UNSTARTED, after, claimed

CALLS = 8


@dataclass
class Played:
    """What became of all documents."""

    ends: Counter[str] = field(default_factory=Counter)
    charged: int = 0
    delays_s: list[float] = field(default_factory=list)
    requests: int = 0


def run_of(policy: Policy, service: Any, needs: tuple[str, ...], calls: int = CALLS) -> Result:
    """One run of a stage that saves nothing between its calls."""
    work = Work("doc-1", "doc-1", "default", "books", "embed", 1, needs)
    work.saved()
    token = WORK.set(work)
    try:
        for _ in range(calls):
            policy.call(service)
    except Exception as error:
        return Raised("embed", error)
    finally:
        WORK.reset(token)
    return Finished()


def play(failing: float, error: Exception, documents: int, needs: tuple[str, ...] = ("service",)) -> Played:
    """Each document in its turn, when it is due; its requests fail independently."""
    world, rand, played, number = World(), Random(7), Played(), count()
    policy = world.policy()
    policy.timing.rand = rand.random
    policy.dependency.limiter.led = policy.dependency.breaker.led = True  # by a fleet that found it out
    policy.dependency.expect(0.9 * (1 - failing))

    def service() -> str:
        played.requests += 1
        world.now_s += 0.05
        if rand.random() < failing:
            raise error
        return "fine"

    due: list[tuple[float, int, Job]] = [(world.now_s, next(number), UNSTARTED) for _ in range(documents)]
    while due:
        at_s, _, job = heapq.heappop(due)
        world.now_s = max(world.now_s, at_s)
        job = claimed(job)
        decided: Outcome = outcome(job, run_of(policy, service, needs), rand.random)
        if isinstance(decided, Done | Dead):
            played.ends[type(decided).__name__] += 1
            continue
        assert isinstance(decided, Later | Retry | Hold)
        played.charged += isinstance(decided, Retry)
        delay_s = 4.0 if isinstance(decided, Hold) else decided.delay_ms / 1000
        played.delays_s.append(delay_s)
        heapq.heappush(due, (world.now_s + delay_s, next(number), after(job, decided)))
    return played


@pytest.mark.parametrize("failing", [0.35, 0.5])
def test_a_short_retry_after_kills_nobody_and_puts_nobody_off_for_long(failing: float) -> None:
    played = play(failing, HttpError(429, {"retry-after": "3"}), 200)

    assert (played.ends, played.charged) == ({"Done": 200}, 0)
    assert max(played.delays_s) <= 1.1 * 3 + 1


def test_a_long_one_neither_grows_nor_counts_while_others_are_answered() -> None:
    played = play(0.2, HttpError(429, {"retry-after": "20"}), 60)

    assert (played.ends, played.charged) == ({"Done": 60}, 0)
    assert max(played.delays_s) <= 1.1 * 20 + 1


def test_a_service_that_answers_nobody_is_asked_less_and_less() -> None:
    world = World()
    policy = world.policy()
    with at_work(), pytest.raises(RateLimited) as raised:
        policy.call(Script(HttpError(429, {"retry-after": "30"})))

    assert raised.value.chance is None
    many = after(FIRST, outcome(FIRST, Raised("embed", raised.value)))
    assert many.postpones == 1


def test_a_document_that_is_always_refused_ends_although_others_are_answered() -> None:
    job, error = FIRST, RetryLater("not you", delay_s=3.0, chance=0.3)
    decided = outcome(job, Raised("embed", error))
    for _ in range(500):
        decided = outcome(job, Raised("embed", error))
        if isinstance(decided, Dead):
            break
        job = claimed(after(job, decided))

    assert isinstance(decided, Dead)
    assert decided.failure.code == "postpones_exhausted"


def test_a_call_that_has_others_to_lose_waits_in_its_slot() -> None:
    world = World()
    policy = world.policy()
    service = Script("one", HttpError(429, {"retry-after": "3"}), "two")
    with at_work() as work:
        work.saved()
        assert [policy.call(service), policy.call(service)] == ["one", "two"]
    assert 3 <= sum(world.waits) <= 3.3

    with at_work(), pytest.raises(RateLimited) as raised:  # it has nothing to lose
        policy.call(Script(HttpError(429, {"retry-after": "3"})))
    assert raised.value.chance is not None


@pytest.mark.parametrize("needs", [("service",), ()])
def test_no_attempt_is_charged_when_half_of_all_requests_fail(needs: tuple[str, ...]) -> None:
    played = play(0.5, HttpError(503), 200, needs)

    assert (played.ends, played.charged) == ({"Done": 200}, 0)
    assert max(played.delays_s) <= 10


def test_no_document_dies_when_most_requests_fail() -> None:
    played = play(0.8, HttpError(503), 10)

    assert played.ends == {"Done": 10}
    assert max(played.delays_s) <= 10


def test_an_item_that_is_saved_is_not_made_again() -> None:
    work = Work("doc-1", "doc-1", "default", "books", "embed", 1)
    for _ in range(3):
        work.count("service")
    work.repeats("service")
    assert (work.unsaved("service"), work.unsaved("other")) == (2, 0)
    work.saved()
    assert work.unsaved("service") == 0


def test_a_document_that_was_charged_has_paid_for_its_accidents() -> None:
    job = replace(FIRST, flickers=7)
    decided = outcome(job, Raised("embed", Flickering("503", chance=1e-3)), lambda: 0.5)
    assert isinstance(decided, Retry)
    column = 16
    written = [
        settle_fence(0, Settle(job, ending, "embed", ""), set())[column]
        for ending in (decided, Later(1_000, "waits"))
    ]
    assert written == [0, 7]
