"""The time that a call waits for its turn: no attempt runs meanwhile, and none begins after the deadline."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.calls import Policy
from perdure.calls.scope import SCOPE
from perdure.errors import RateLimited, Rescheduled
from tests.calls.making import HttpError, Script, World, at_work


@pytest.fixture(params=["plain", "awaited"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(way: str, policy: Policy, service: Any) -> Any:
    async def awaited() -> Any:
        async def one() -> Any:
            return service()

        return await policy.acall(one)

    return policy.call(service) if way == "plain" else asyncio.run(awaited())


def limited(policy: Policy, now_s: float) -> Policy:
    """Let it wait about a second for its turn."""
    policy.dependency.limiter.throttled(now_s, 1.0)
    return policy


def test_an_attempt_has_all_its_time_after_the_wait(way: str) -> None:
    """A wait of a second, and half a second for the attempt: a healthy service answers."""
    world = World()
    policy = limited(world.policy(attempt_s=0.5, idempotent=False), world.now_s)
    left: list[float] = []

    def service() -> str:
        scope = SCOPE.get()
        assert scope is not None
        assert scope.deadline_s is not None
        left.append(scope.deadline_s - world.now_s)
        return "paid"

    with at_work(needs=()) as work:
        work.deadline_s = world.now_s + 100
        assert ask(way, policy, service) == "paid"
    assert world.waits
    assert left == [pytest.approx(0.5)]
    assert (policy.dependency.failures, work.requests) == (0, {"service": 1})


class Sleepy(World):
    """Wakes up later than it was told to."""

    late_s = 0.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.now_s += self.late_s


def test_a_turn_that_comes_after_the_deadline_is_not_taken(way: str) -> None:
    world = Sleepy()
    world.late_s = 60.0
    policy, service = limited(world.policy(total_s=10.0), world.now_s), Script("fine")

    with pytest.raises(TimeoutError, match="not sent"):
        ask(way, policy, service)
    assert (service.calls, policy.dependency.requests, policy.dependency.failures) == (0, 0, 0)


def test_nor_is_a_retry_sent_after_it(way: str) -> None:
    world = Sleepy()
    world.late_s = 60.0
    policy, service = world.policy(total_s=10.0), Script(HttpError(503), "fine")

    with pytest.raises(TimeoutError, match="not sent"):
        ask(way, policy, service)
    assert service.calls == 1


def test_inside_a_job_it_comes_back_in_seconds_and_blames_nobody(way: str) -> None:
    world = Sleepy()
    world.late_s = 60.0
    policy = limited(world.policy(total_s=10.0, idempotent=False), world.now_s)

    with at_work(), pytest.raises(RateLimited) as raised:
        ask(way, policy, Script("fine"))
    assert (raised.value.ours, policy.dependency.failures) == (True, 0)


def test_a_stage_whose_time_is_over_sends_nothing(way: str) -> None:
    world, service = World(), Script("fine")

    with at_work() as work:
        work.deadline_s = world.now_s - 1
        with pytest.raises(Rescheduled):
            ask(way, world.policy(), service)
    assert service.calls == 0


@pytest.mark.parametrize("more", [{"best_effort": True}, {"on_exhausted": lambda error: None}])
def test_a_call_that_can_be_done_without_goes_on(way: str, more: dict[str, Any]) -> None:
    world = World()

    with at_work() as work:
        work.deadline_s = world.now_s - 1
        assert ask(way, world.policy(**more), Script("fine")) is None


def test_the_call_around_decides_when_an_inner_one_has_no_time_left(way: str) -> None:
    """It may repeat: nothing was sent, although it must not be done twice."""
    world = Sleepy()
    outer = world.policy("outer", attempt_s=5.0, idempotent=False)
    inner, service = limited(world.policy("inner"), world.now_s), Script("fine")
    waited: list[float] = []

    def once_late(seconds: float) -> None:
        waited.append(seconds)
        world.now_s += seconds + (60 if len(waited) == 1 else 0)

    async def aonce_late(seconds: float) -> None:
        once_late(seconds)

    inner.timing.sleep, inner.timing.asleep = once_late, aonce_late

    async def nested() -> Any:
        return await outer.acall(inner.acall, service.awaited)

    assert (outer.call(inner.call, service) if way == "plain" else asyncio.run(nested())) == "fine"
    assert service.calls == 1


def test_a_wait_that_the_limiter_caused_never_lasts_beyond_the_deadline(way: str) -> None:
    """A job in a fleet looks for its turn again and again; its time is over before it has one."""
    world = World(chance=0.99)
    policy = world.policy(total_s=0.65)
    limiter = policy.dependency.limiter
    limiter.led = True
    limiter.lead(world.now_s, 0.5)
    limiter.ask(world.now_s, 10.0)
    limiter.ask(world.now_s, 10.0)
    began_s = world.now_s

    with at_work(), pytest.raises(RateLimited) as raised:
        ask(way, policy, Script("fine"))
    assert raised.value.ours
    assert world.now_s <= began_s + 0.6501
