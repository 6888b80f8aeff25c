"""What a guarded call costs beside the bare one, tenacity and stamina in the same run.

    python benchmarks/calls.py [--json]

Nanoseconds per call over the bare function, the least of several rounds; waits are off for all of them. `ok` is a call
that succeeds at once, `retry` one that fails once.
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
from perdure.testing import no_wait

ROUNDS, CALLS = 9, 3_000
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


def plain_ns(call: Callable[[], Any], calls: int = CALLS) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter_ns() - began) / calls)
    return best


async def awaited_ns(call: Callable[[], Awaitable[Any]], calls: int = CALLS) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter_ns()
        for _ in range(calls):
            await call()
        best = min(best, (time.perf_counter_ns() - began) / calls)
    return best


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


async def measure() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    bare, abare = plain_ns(fine), await awaited_ns(afine)
    for name, call in guards(fine).items():
        found.setdefault(name, {})["ok"] = plain_ns(call) - bare
    for name, acall in guards(afine).items():
        found[name]["ok_async"] = await awaited_ns(acall) - abare
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
        print(
            f"{name:24}{row['ok']:10.0f}{row['ok_async']:10.0f}{row['retry']:10.0f}{row['retry_async']:12.0f}"
        )


if __name__ == "__main__":
    main()
