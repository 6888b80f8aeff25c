"""What a guarded call costs beside the bare one, tenacity and stamina in the same run.

    python benchmarks/calls.py [--json]

Nanoseconds per call over the bare function, the least of several rounds that take turns; waits are off for all.
`ok` is a call that succeeds at once, `retry` one that fails once. Calls of a stage count their requests for its
document; those of a stage with a timeout have a deadline, too.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any
from unittest import mock

import stamina
import tenacity

from perdure.calls import Dependency, FullJitter, Limiter, Policy
from perdure.core.scope import WORK, Work
from perdure.testing import no_wait

ROUNDS, CALLS, WARM = 15, 3_000, 4
logging.disable()  # for all of them alike
stamina.instrumentation.set_on_retry_hooks([])


class Flaky:
    """Fails at every other call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.calls % 2:
            raise ConnectionResetError
        return self.calls


class Calm(Limiter):
    """Does not mind that every other call fails."""

    __slots__ = ()

    def failed(self, now_s: float) -> None:
        return


def fine() -> int:
    return 1


async def afine() -> int:
    return 1


def round_ns(call: Callable[[], Any], calls: int = CALLS) -> float:
    for _ in range(WARM):
        call()
    began = time.perf_counter_ns()
    for _ in range(calls):
        call()
    return (time.perf_counter_ns() - began) / calls


async def around_ns(call: Callable[[], Awaitable[Any]], calls: int = CALLS) -> float:
    for _ in range(WARM):
        await call()
    began = time.perf_counter_ns()
    for _ in range(calls):
        await call()
    return (time.perf_counter_ns() - began) / calls


def plain_ns(call: Callable[[], Any], calls: int) -> float:
    return min(round_ns(call, calls) for _ in range(ROUNDS))


async def awaited_ns(call: Callable[[], Awaitable[Any]], calls: int) -> float:
    return min([await around_ns(call, calls) for _ in range(ROUNDS)])


def guards(fn: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    """The function under each library, three retries without a wait."""
    # never so many failures that it would give up: what is measured is one retry
    policy = Policy(
        "bench", retries=3, backoff=FullJitter(0.0, 0.0), dependency=Dependency("bench", limiter=Calm())
    )
    policy.dependency.budget.reserve = policy.dependency.budget.tokens = 1e9
    policy.dependency.breaker.consecutive = policy.dependency.breaker.least = 10**9
    return {
        "perdure": policy(fn),
        "tenacity": tenacity.retry(
            stop=tenacity.stop_after_attempt(4), retry=tenacity.retry_if_exception_type(OSError), reraise=True
        )(fn),
        "stamina": stamina.retry(on=OSError, attempts=4, wait_initial=0, wait_max=0, wait_jitter=0)(fn),
    }


def in_stage(timeout_s: float | None) -> Work:
    """The work of a running stage."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    return Work("doc-1", "1", "default", "books", "embed", 1, deadline_s=deadline_s)


#: The places of Perdure's rows.
PLACES = {
    "perdure": None,
    "perdure in a stage": in_stage(None),
    "perdure, stage timeout": in_stage(3_600.0),
}


async def well() -> dict[str, dict[str, float]]:
    """Of calls that succeed; all of them take turns, so that a busy moment of the machine harms all alike."""
    calls, acalls = guards(fine), guards(afine)
    for place in PLACES:
        calls[place], acalls[place] = calls["perdure"], acalls["perdure"]
    found: dict[str, dict[str, float]] = {}
    for _ in range(ROUNDS):
        best("bare", found, "ok", round_ns(fine))
        best("bare", found, "ok_async", await around_ns(afine))
        for name, call in calls.items():
            token = WORK.set(PLACES.get(name))
            best(name, found, "ok", round_ns(call))
            best(name, found, "ok_async", await around_ns(acalls[name]))
            WORK.reset(token)
    bare = found.pop("bare")
    return {name: {kind: ns - bare[kind] for kind, ns in row.items()} for name, row in found.items()}


def best(name: str, found: dict[str, dict[str, float]], kind: str, ns: float) -> None:
    row = found.setdefault(name, {})
    row[kind] = min(row.get(kind, ns), ns)


async def measure() -> dict[str, dict[str, float]]:
    found = await well()
    with no_wait(), mock.patch("time.sleep"), mock.patch("asyncio.sleep", new=_at_once):
        flaky = Flaky()
        for name, call in guards(flaky).items():
            found[name]["retry"] = plain_ns(call, 500)

        async def aflaky() -> int:
            return flaky()

        for name, acall in guards(aflaky).items():
            found[name]["retry_async"] = await awaited_ns(acall, 500)
    return found


async def _at_once(*_: Any) -> None:
    return


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    found = asyncio.run(measure())
    if given.json:
        print(json.dumps({name: {k: round(v) for k, v in row.items()} for name, row in found.items()}))
        return
    print(f"{'ns over the bare call':24}{'ok':>10}{'ok async':>10}{'retry':>10}{'retry async':>12}")
    for name, row in found.items():
        cells = [
            f"{row[kind]:.0f}" if kind in row else "" for kind in ("ok", "ok_async", "retry", "retry_async")
        ]
        print(f"{name:24}{cells[0]:>10}{cells[1]:>10}{cells[2]:>10}{cells[3]:>12}")


if __name__ == "__main__":
    main()
