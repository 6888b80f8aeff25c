"""The call loop, plain and awaited: how often, when, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import math
import re
import subprocess
import sys
import traceback
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.calls.dependency import DEPENDENCIES
from perdure.calls.events import CallEvent, subscribe
from perdure.calls.jitter import FullJitter
from perdure.calls.policy import Policy
from perdure.calls.scope import remaining
from perdure.errors import (
    DependencyDown,
    Flickering,
    PerdureError,
    PolicyInvalid,
    RateLimited,
    Rescheduled,
    RetryLater,
    SettingInvalid,
)
from perdure.testing import no_wait
from tests.calls.making import HttpError, Script, World, at_work

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["plain", "awaited"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def ask(way: str, policy: Policy, service: Script) -> Any:
    if way == "plain":
        return policy.call(service)
    return asyncio.run(_ask(policy, service))


async def _ask(policy: Policy, service: Script) -> Any:
    return await policy.acall(service.awaited)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def heard() -> Iterator[list[CallEvent]]:
    events: list[CallEvent] = []
    forget = subscribe(events.append)
    yield events
    forget()


# --- how often -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers", "calls"),
    [
        (("fine",), 1),
        ((HttpError(429), HttpError(503), "fine"), 3),
        ((ConnectionResetError(), TimeoutError(), ConnectionRefusedError(), "fine"), 4),
    ],
)
def test_a_service_that_comes_round_is_asked_until_then(
    way: str, world: World, answers: tuple[Any, ...], calls: int
) -> None:
    service = Script(*answers)

    assert ask(way, world.policy(), service) == "fine"
    assert service.calls == calls


@pytest.mark.parametrize(
    ("error", "calls"),
    [
        (HttpError(503), 4),
        (HttpError(401), 1),
        (HttpError(422), 1),
        (HttpError(429, code="insufficient_quota"), 1),
        (ValueError("what?"), 1),
        (TypeError("rate limit, 503, timeout"), 1),
    ],
)
def test_a_service_that_does_not_is_asked_as_often_as_makes_sense(
    way: str, world: World, error: Exception, calls: int
) -> None:
    service = Script(error)

    with pytest.raises(type(error)) as raised:
        ask(way, world.policy(retries=3), service)

    assert service.calls == calls
    assert raised.value is error
    assert f"after {calls} requests" in "".join(raised.value.__notes__)


def test_no_retries_are_one_request(way: str, world: World) -> None:
    service = Script(HttpError(503))

    with pytest.raises(HttpError):
        ask(way, world.policy(retries=0), service)

    assert (service.calls, world.waits) == (1, [])


def test_waits_double_and_are_jittered(way: str, world: World) -> None:
    service = Script(HttpError(503))

    with pytest.raises(HttpError):
        ask(way, world.policy(), service)

    assert world.waits == [1.0, 2.0, 4.0]  # chance is one half


# --- what the service asks for -------------------------------------------------------------------


def test_never_earlier_than_asked_and_not_all_at_once(way: str, world: World) -> None:
    service = Script(HttpError(429, {"retry-after": "7"}), "fine")

    assert ask(way, world.policy(), service) == "fine"
    assert 7.0 < world.waits[0] <= 7.7


@pytest.mark.parametrize("more", [{"hint_cap_s": 60.0}, {"total_s": 100.0, "hint_cap_s": 1000.0}])
def test_a_wait_that_is_too_long_ends_it_at_once(way: str, world: World, more: dict[str, Any]) -> None:
    service = Script(HttpError(429, {"retry-after": "120"}))

    with pytest.raises(RateLimited) as raised:
        ask(way, world.policy(**more), service)

    assert (service.calls, world.waits) == (1, [])
    assert 120 <= raised.value.delay_s <= 132
    assert isinstance(raised.value.__cause__, HttpError)


def test_an_outage_with_a_long_hint_is_put_off_too(way: str, world: World) -> None:
    with pytest.raises(RetryLater) as raised:
        ask(way, world.policy(), Script(HttpError(503, {"retry-after": "600"})))

    assert raised.value.delay_s >= 600


# --- time ----------------------------------------------------------------------------------------


def test_a_deadline_ends_it_without_a_useless_wait(way: str, world: World) -> None:
    service = Script(HttpError(503))

    with pytest.raises(HttpError) as raised:
        ask(way, world.policy(total_s=3.5, retries=10), service)

    assert world.waits == [1.0, 2.0]  # the next one would end after it
    assert "deadline" in "".join(raised.value.__notes__)


def test_an_attempt_that_hangs_is_cut_off() -> None:
    policy = Policy("hanging", retries=1, attempt_s=0.05)
    calls = 0

    async def hang() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(60)

    async def hang_up() -> None:
        await policy.acall(hang)

    with no_wait(), pytest.raises(TimeoutError):
        asyncio.run(hang_up())
    assert calls == 2


def test_no_wait_leaves_nothing_behind() -> None:
    policy = Policy("restless", retries=3)

    def fail() -> None:
        raise ConnectionRefusedError

    for _ in range(2):
        with no_wait() as waits:
            for _ in range(20):
                with pytest.raises((ConnectionRefusedError, DependencyDown, RateLimited)):
                    policy.call(fail)
            seen = [bool(waits), policy.dependency.troubled]
        assert [*seen, policy.dependency.troubled] == [True, True, False]
        assert policy.dependency.budget.tokens == policy.dependency.budget.reserve
    assert policy.call(int, "1") == 1


def test_what_is_inside_inherits_the_deadline(world: World) -> None:
    outer, inner = world.policy("outer", total_s=10.0), world.policy("inner", total_s=60.0)
    seen: list[float | None] = []

    def deep() -> None:
        from perdure.calls.scope import SCOPE

        scope = SCOPE.get()
        assert scope is not None
        seen.append(scope.deadline_s)

    outer.call(lambda: inner.call(deep))
    assert seen == [world.now_s + 10.0]
    assert remaining() is None


# --- one inside the other ------------------------------------------------------------------------


def test_retries_do_not_multiply(way: str, world: World, heard: list[CallEvent]) -> None:
    outer, inner, service = world.policy("outer"), world.policy("inner"), Script(HttpError(503))

    async def nested() -> Any:
        return await outer.acall(inner.acall, service.awaited)

    with at_work() as work, pytest.raises(PerdureError):
        outer.call(inner.call, service) if way == "plain" else asyncio.run(nested())

    assert service.calls == 4
    assert work.requests == {"inner": 4}  # each real request once
    assert [e.happening for e in heard].count("nested") == 1


# --- what must not be repeated -------------------------------------------------------------------


def test_a_payment_is_not_made_twice(way: str, world: World) -> None:
    service = Script(HttpError(502))

    with pytest.raises(HttpError):
        ask(way, world.policy(idempotent=False), service)
    assert service.calls == 1


@pytest.mark.parametrize("error", [ConnectionRefusedError(), HttpError(429)])
def test_a_request_that_never_arrived_may_be_repeated(way: str, world: World, error: Exception) -> None:
    service = Script(error, "paid")

    assert ask(way, world.policy(idempotent=False), service) == "paid"


def test_a_key_makes_it_repeatable(way: str, world: World) -> None:
    service = Script(HttpError(502), "paid")

    assert ask(way, world.policy().but(idempotent=False, key="order-7"), service) == "paid"


# --- inside a job --------------------------------------------------------------------------------


def test_giving_up_reschedules_the_document(way: str, world: World, heard: list[CallEvent]) -> None:
    policy, service = world.policy(), Script(HttpError(503))

    with at_work(needs=()) as work, pytest.raises(Rescheduled) as raised:
        ask(way, policy, service)

    assert raised.value.retry_after_s == pytest.approx(300)  # chance is one half
    assert work.requests == {"service": 4}
    assert [e.happening for e in heard] == ["retry", "retry", "retry", "exhausted", "reschedule"]


def test_a_rescheduled_document_does_not_come_before_the_service_said(way: str, world: World) -> None:
    policy = world.policy(retries=0, reschedule_s=10)

    with at_work(needs=()), pytest.raises(Rescheduled) as raised:
        ask(way, policy, Script(HttpError(503, {"retry-after": "50"})))

    assert (raised.value.retry_after_s or 0) >= 50


def test_a_declared_service_that_answers_nobody_may_be_away(way: str, world: World) -> None:
    with at_work(), pytest.raises(Flickering) as raised:
        ask(way, world.policy(), Script(HttpError(503)))

    assert raised.value.chance == 1.0
    assert 1 <= raised.value.soon_s <= 3


def test_a_call_that_fails_alone_is_hardly_an_accident(way: str, world: World) -> None:
    policy = world.policy()
    ask(way, policy, Script(HttpError(503), "fine"))
    for _ in range(300):
        policy.call(Script("fine"))
    with at_work(), pytest.raises(Flickering) as raised:
        ask(way, policy, Script(HttpError(503)))

    assert raised.value.chance < 1e-6


def test_a_call_that_fails_like_others_may_be_an_accident(way: str, world: World) -> None:
    policy = world.policy()
    policy.dependency.expect(0.5)  # as the fleet found out
    for _ in range(40):
        policy.call(Script(HttpError(503), "fine"))
    with at_work(), pytest.raises(Flickering) as raised:
        ask(way, policy, Script(HttpError(503)))

    assert 0.05 < raised.value.chance < 0.2


def test_a_service_that_refuses_everybody_without_a_hint_is_asked_later(way: str, world: World) -> None:
    with at_work(), pytest.raises(RateLimited) as raised:
        ask(way, world.policy(), Script(HttpError(429)))

    assert (raised.value.ours, raised.value.delay_s >= 5) == (False, True)


def test_what_no_stage_declared_may_fail_by_accident_too(way: str, world: World) -> None:
    with at_work(needs=()), pytest.raises(Flickering) as raised:
        ask(way, world.policy(), Script(HttpError(503)))

    assert raised.value.chance == 1


def test_it_can_be_told_to_raise(way: str, world: World) -> None:
    with at_work(), pytest.raises(HttpError):
        ask(way, world.policy(on_exhausted="raise"), Script(HttpError(503)))


def test_or_to_answer_something_else(way: str, world: World) -> None:
    policy = world.policy(on_exhausted=lambda error: f"without: {error}")

    assert ask(way, policy, Script(HttpError(503))) == "without: the service said 503"


def test_best_effort_warns_and_goes_on(way: str, world: World, heard: list[CallEvent]) -> None:
    assert ask(way, world.policy(best_effort=True), Script(HttpError(401))) is None
    assert heard[-1].happening == "best_effort"


def test_the_log_line_says_everything(world: World, heard: list[CallEvent]) -> None:
    with at_work():
        world.policy("openai").call(Script(HttpError(429, {"retry-after-ms": "1500"}), "fine"))

    facts = heard[0].facts()
    assert facts["delay_ms"] is not None
    assert 1500 <= facts["delay_ms"] <= 1650
    del facts["delay_ms"]
    assert facts == {
        "dependency": "openai",
        "operation": "openai",
        "retry_attempt": 1,
        "max_retries": 4,
        "reason": "status_429",
        "error_type": "HttpError",
        "error_status": 429,
        "error_message": "the service said 429",
        "is_retryable": True,
        "correlation_id": None,
        "job_id": None,
        "document_id": None,
    }


# --- the dependency's state ----------------------------------------------------------------------


def test_an_outage_opens_the_breaker_and_holds_the_document(way: str, world: World) -> None:
    policy, service = world.policy(retries=0, on_exhausted="raise"), Script(HttpError(503))
    for _ in range(11):
        world.now_s += 3  # the limiter lets them through
        with pytest.raises(HttpError):
            ask(way, policy, service)

    with at_work(), pytest.raises(DependencyDown) as raised:
        ask(way, policy, service)

    assert raised.value.confirmed
    assert service.calls == 11


def test_what_is_our_own_fault_opens_nothing(way: str, world: World) -> None:
    policy, service = world.policy(), Script(HttpError(401))
    for _ in range(50):
        with pytest.raises(HttpError):
            ask(way, policy, service)

    assert not policy.dependency.troubled


def test_an_operator_who_holds_it_is_obeyed(way: str, world: World) -> None:
    policy, service = world.policy(), Script("fine")
    policy.dependency.held = "maintenance"

    with pytest.raises(DependencyDown, match="maintenance"):
        ask(way, policy, service)
    assert service.calls == 0


def test_a_probe_goes_through_once_and_tells(way: str, world: World) -> None:
    policy, service = world.policy(), Script(HttpError(503))
    policy.dependency.held = "its breaker is open"

    with at_work(probe="service") as work, pytest.raises(DependencyDown):
        ask(way, policy, service)
    assert (service.calls, work.probed) == (1, False)

    with at_work(probe="service") as work:
        assert ask(way, policy, Script("fine")) == "fine"
    assert work.probed is True


def test_a_budget_that_is_spent_ends_the_retries(way: str, world: World) -> None:
    policy, service = world.policy(on_exhausted="raise"), Script(HttpError(429))
    policy.dependency.budget.tokens = 1.0

    with pytest.raises(HttpError) as raised:
        ask(way, policy, service)

    assert service.calls < 4
    assert "budget" in "".join(raised.value.__notes__)


# --- what a call must not do ---------------------------------------------------------------------


def test_a_cancellation_is_never_swallowed() -> None:
    policy = Policy("cancelled", retries=5)
    calls = 0

    async def wait() -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(60)

    async def cancel() -> None:
        task = asyncio.create_task(policy.acall(wait))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert calls == 1


def test_functions_that_yield_are_refused(world: World) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def awaited() -> AsyncIterator[int]:
        yield 1

    policy = world.policy()
    for function in (numbers, awaited):
        with pytest.raises(TypeError, match="yields"):
            policy(function)
    with pytest.raises(TypeError, match="generator"):
        policy.call(numbers)


def test_a_coroutine_that_nobody_awaits_is_refused(world: World) -> None:
    async def later() -> int:
        return 1

    with pytest.raises(TypeError, match="acall"):
        world.policy().call(later)  # type: ignore[unused-coroutine]


def test_the_traceback_is_short(way: str, world: World) -> None:
    with pytest.raises(HttpError) as raised:
        ask(way, world.policy(), Script(HttpError(401)))

    frames = traceback.extract_tb(raised.value.__traceback__)
    ours = [frame for frame in frames if "perdure/calls" in frame.filename]
    assert len(ours) == 2  # what was called, and the loop


def test_no_failed_frame_is_kept_alive(world: World) -> None:
    class Big:
        pass

    seen: list[weakref.ref[Big]] = []

    def fail_once() -> str:
        big = Big()
        seen.append(weakref.ref(big))
        if len(seen) == 1:
            raise ConnectionResetError
        return "fine"

    gc.disable()
    try:
        assert world.policy().call(fail_once) == "fine"
        assert seen[0]() is None
    finally:
        gc.enable()


def test_a_decorated_function_is_itself(world: World) -> None:
    policy = world.policy()

    @policy
    def fetch(url: str, *, deep: bool = False) -> str:
        """Fetch it."""
        return f"{url} {deep}"

    @policy
    async def fetch_later(url: str) -> str:
        return url

    assert fetch("a", deep=True) == "a True"
    assert asyncio.run(fetch_later("b")) == "b"
    assert (fetch.__name__, fetch.__doc__) == ("fetch", "Fetch it.")


WRONG: list[dict[str, Any]] = [
    {"retries": -1}, {"retries": 1.5}, {"total_s": 0}, {"attempt_s": -1.0}, {"attempt_s": "10"},
    {"hint_cap_s": None}, {"reschedule_s": float("nan")}, {"on_exhausted": "rise"},
]  # fmt: skip


@pytest.mark.parametrize("kind", [SettingInvalid, ValueError])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Policy("wrong", **wrong)
    with pytest.raises(kind):
        Policy("wrong").but(**wrong)
    with pytest.raises(kind):
        FullJitter(-1.0)


def test_what_the_store_lets_run_later_knows_better_than_we(way: str, world: World) -> None:
    """Another worker's probe found the service back; we have not heard of it yet."""
    policy = world.policy(retries=0, on_exhausted="raise")
    policy.dependency.breaker.trip(world.now_s)
    policy.dependency.held, policy.dependency.held_s = "its breaker is open", world.now_s

    with at_work() as work:
        work.allowed_s = world.now_s + 1  # perhaps before our finding was in the store
        with pytest.raises(DependencyDown) as raised:
            ask(way, policy, Script("fine"))
        assert raised.value.heard

        work.allowed_s = world.now_s + 3
        assert ask(way, policy, Script("fine")) == "fine"
    assert not policy.dependency.troubled


def test_a_stage_that_does_not_declare_it_is_not_trusted(way: str, world: World) -> None:
    policy = world.policy()
    policy.dependency.breaker.trip(world.now_s)

    with at_work(needs=()) as work:
        work.allowed_s = world.now_s + 60
        with pytest.raises(DependencyDown):
            ask(way, policy, Script("fine"))


@pytest.mark.parametrize("more", [{"best_effort": True}, {"on_exhausted": lambda error: None}])
def test_whoever_can_do_without_is_not_held(way: str, world: World, more: dict[str, Any]) -> None:
    policy, service = world.policy(**more), Script("fine")
    policy.dependency.held = "maintenance"

    assert ask(way, policy, service) is None
    assert service.calls == 0


def test_a_payment_inside_another_call_is_not_made_twice(way: str, world: World) -> None:
    outer, inner, service = (
        world.policy("outer"),
        world.policy("inner", idempotent=False),
        Script(HttpError(502)),
    )

    async def nested() -> Any:
        return await outer.acall(inner.acall, service.awaited)

    with pytest.raises(HttpError):
        outer.call(inner.call, service) if way == "plain" else asyncio.run(nested())
    assert service.calls == 1


def test_a_long_hint_does_not_make_a_payment_repeatable(way: str, world: World) -> None:
    with pytest.raises(HttpError):
        ask(way, world.policy(idempotent=False), Script(HttpError(500, {"retry-after": "120"})))


def test_only_the_service_that_failed_is_blamed(way: str, world: World) -> None:
    outer, inner, service = world.policy("outer"), world.policy("inner"), Script(HttpError(503))

    async def nested() -> Any:
        return await outer.acall(inner.acall, service.awaited)

    with pytest.raises(HttpError):
        outer.call(inner.call, service) if way == "plain" else asyncio.run(nested())
    assert (outer.dependency.failures, inner.dependency.failures) == (0, 4)


def test_a_bug_of_ours_says_nothing_about_the_service(way: str, world: World) -> None:
    policy = world.policy()
    policy.dependency.held = "its breaker is open"

    with at_work(probe="service") as work, pytest.raises(KeyError):
        ask(way, policy, Script(KeyError("no such page")))
    assert work.probed is None


def test_retries_wait_for_their_turn_but_not_past_the_deadline(way: str, world: World) -> None:
    policy = world.policy(total_s=10, retries=3)
    service = Script(HttpError(429, {"retry-after": "1"}), "fine")
    policy.dependency.limiter.throttled(world.now_s)
    policy.dependency.limiter.throttled(world.now_s, 60)

    with pytest.raises(RateLimited):
        ask(way, policy, service)
    assert world.now_s < 1_010


def test_a_task_that_outlives_its_call_is_on_its_own(world: World) -> None:
    outer, inner, service = world.policy("outer"), world.policy("inner"), Script(HttpError(503), "fine")

    async def background() -> Any:
        await asyncio.sleep(0.01)
        return await inner.acall(service.awaited)

    started: list[asyncio.Task[Any]] = []

    async def start() -> None:
        started.append(asyncio.create_task(background()))

    async def run() -> Any:
        await outer.acall(start)
        return await started[0]

    assert asyncio.run(run()) == "fine"
    assert service.calls == 2


def test_outside_of_jobs_a_limit_is_waited_for(way: str, world: World) -> None:
    policy = world.policy()
    ask(way, policy, Script(HttpError(429), "fine"))

    for _ in range(4):
        assert ask(way, policy, Script("fine")) == "fine"


@pytest.mark.parametrize("name", ["openai~", "ocr+openai", "", "Open AI"])
def test_a_policy_whose_name_no_lane_can_have_is_refused(name: str) -> None:
    with pytest.raises(PolicyInvalid, match="its name must be a small letter"):
        Policy(name)
    assert name not in DEPENDENCIES


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("retries", True, "a whole number, 0 or more"),
        ("backoff", 2.0, "a FullJitter"),
        ("total_s", "9", "a number of seconds above 0, or None"),
        ("attempt_s", True, "a number of seconds above 0, or None"),
        ("hint_cap_s", None, "a number of seconds above 0"),
        ("reschedule_s", math.nan, "a number of seconds above 0"),
        ("classify", None, "a function"),
        ("on_exhausted", "retry", '"reschedule", "raise" or a function'),
        ("idempotent", "no", "True or False"),
        ("key", 3, "a text that is not empty, or None"),
        ("key", "", "a text that is not empty, or None"),
        ("best_effort", 1, "True or False"),
    ],
)
def test_a_value_that_a_policy_cannot_have_is_refused_by_name(
    argument: str, value: object, allowed: str
) -> None:
    wrong: Any = {argument: value}
    makers: list[Callable[..., Policy]] = [functools.partial(Policy, "any"), Policy("any").but]
    for make in makers:
        with pytest.raises(
            PolicyInvalid, match=f"policy any: {argument} must be {re.escape(allowed)}"
        ) as raised:
            make(**wrong)
        assert isinstance(raised.value, ValueError)
        assert repr(value) in str(raised.value)


@pytest.mark.parametrize("changes", [{"backoff": None}, {"operation": 3}, {"retrys": 1}])
def test_changes_that_a_policy_cannot_have_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(PolicyInvalid, match=next(iter(changes))):
        Policy("any").but(**changes)


def test_a_name_or_dependency_of_another_type_is_refused() -> None:
    wrong: Any = 3
    with pytest.raises(PolicyInvalid, match="policy 3: its name must be"):
        Policy(wrong)
    with pytest.raises(PolicyInvalid, match="dependency must be a Dependency"):
        Policy("any", dependency=wrong)
    with pytest.raises(PolicyInvalid, match="timing must be a Timing"):
        Policy("any", timing=wrong)


@pytest.mark.parametrize(
    ("base_s", "cap_s", "argument"),
    [("1", 2, "base_s"), (1, None, "cap_s"), (True, 2, "base_s"), (1, math.inf, "cap_s")],
)
def test_a_backoff_of_other_values_is_refused_by_name(base_s: Any, cap_s: Any, argument: str) -> None:
    with pytest.raises(PolicyInvalid, match=f"{argument} must be a number of seconds, 0 or more"):
        FullJitter(base_s, cap_s)


LINES = """
import json, sys
from perdure.watch.log import configure
from tests.calls.making import HttpError, Script, World, at_work

configure("INFO", "json")
for script in ([HttpError(503), "fine"], [HttpError(401)], [HttpError(503)]):
    try:
        with at_work(needs=()):
            World().policy("openai").call(Script(*script))
    except Exception:
        pass
"""


def test_each_of_them_is_one_line_of_json_with_its_document() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LINES], capture_output=True, text=True, timeout=90, check=True, cwd=ROOT
    )
    lines = [json.loads(line) for line in ended.stderr.splitlines()]
    kinds = {line["event"].removeprefix("call ").partition(":")[0] for line in lines}
    assert kinds == {"retry", "fast fail", "exhausted", "reschedule"}
    fields = {
        "level", "timestamp", "retry_attempt", "max_retries", "operation", "delay_ms", "error_type", "error_status",
        "error_message", "is_retryable", "correlation_id", "job_id", "document_id",
    }  # fmt: skip
    for line in lines:
        assert fields <= line.keys(), line
        assert (line["job_id"], line["document_id"], line["max_retries"]) == ("doc-1", "doc-1", 4)


@pytest.mark.parametrize("answer", ["fine", HttpError(404), KeyboardInterrupt()])
def test_a_request_is_in_flight_until_it_is_back(answer: object) -> None:
    policy, seen = World().policy(), []

    def service() -> object:
        seen.append(policy.dependency.in_flight)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def awaited() -> object:
        return service()

    for _ in range(2):
        with contextlib.suppress(HttpError, KeyboardInterrupt):
            policy.call(service)
        with contextlib.suppress(HttpError, KeyboardInterrupt):
            asyncio.run(policy.acall(awaited))
    assert seen == [1, 1, 1, 1]
    assert policy.dependency.in_flight == 0
