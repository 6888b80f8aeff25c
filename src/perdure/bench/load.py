"""What the benchmark works on: documents of one stage, of five, ones that fail twice, and one that tells when it began.

`app` is what the worker process of the latency measure runs.
"""

from __future__ import annotations

import os
import time

from perdure import Context, Perdure, Pipeline, Transient

STORE_VARIABLE = "PERDURE_BENCH_STORE"
OUTPUT = "x" * 1_000
FAILURES = 2  # of each document of the storm

one = Pipeline("one", queue="one")
five = Pipeline("five", queue="five")
storm = Pipeline("storm", queue="storm", attempts=FAILURES + 1, backoff_s=0)
prompt = Pipeline("prompt", queue="prompt")


@one.stage
async def only() -> int:
    return 1


@five.stage
async def first() -> str:
    return OUTPUT


@five.stage
async def second(first: str) -> str:
    return first


@five.stage
async def third(second: str) -> str:
    return second


@five.stage
async def fourth(third: str) -> str:
    return third


@five.stage
async def fifth(fourth: str) -> str:
    return fourth


@storm.stage
async def stormy(ctx: Context) -> int:
    if ctx.attempt <= FAILURES:
        raise Transient("the service is away")
    return ctx.attempt


@prompt.stage
async def began() -> int:
    return time.monotonic_ns()


ALL = [one, five, storm, prompt]
app = Perdure(os.environ.get(STORE_VARIABLE, "sqlite:///bench.db"), pipelines=ALL)
