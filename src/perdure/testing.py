"""Perdure in tests: a real store in a temporary directory, a clock turned by hand, no sleeping.

    def test_a_busy_service_is_asked_again() -> None:
        with trial(books) as app, failing(embed, Transient("busy")) as runs:
            added = app.add(text="It was a dark night", pipeline=books)
            assert drain(app).done == 1
        assert runs.count == 2

Backoff, leases and times to come pass in no time, because `drain` moves the clock. Timeouts of stages are real.
"""

from __future__ import annotations

import functools
import tempfile
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from perdure.app import Perdure, Summary
from perdure.calls import timing, unbound
from perdure.calls.dependency import forget_all
from perdure.core.events import AnyEvent
from perdure.engine.pipeline import Pipeline
from perdure.engine.slate import Slate
from perdure.engine.stage import Stage
from perdure.engine.sweeper import Sweeper
from perdure.engine.worker import Worker
from perdure.settings import Settings, using

__all__ = [
    "FakeClock",
    "Recording",
    "Runs",
    "Trial",
    "drain",
    "failing",
    "no_wait",
    "recording",
    "tick",
    "trial",
]

Kind = TypeVar("Kind")


class FakeClock:
    """Stands still until it is advanced."""

    def __init__(self, now_ms: int = 1_800_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """The wall time that the store goes by."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """Moves with the wall time."""
        return self._now_ms / 1000

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"time does not go back ({seconds} s)")
        self._now_ms += round(seconds * 1000)


class Trial(Perdure):
    """An app for tests, made by `trial`. All of Perdure's verbs but `run` and `run_until_idle`, whose time is real."""

    def __init__(
        self,
        pipelines: Iterable[Pipeline],
        store: str,
        clock: FakeClock,
        concurrency: int | None = None,
        cells: bool = False,
        settings: Settings | None = None,
    ) -> None:
        super().__init__(store, pipelines=pipelines, concurrency=concurrency, settings=settings, clock=clock)
        self.clock = clock
        self.cells = cells
        retention = self.service.retention
        self.sweeper = Sweeper(
            self.service.store, self.service.events, retention, self.service.stuck_policy, server_young_s=0
        )

    def run(self) -> None:
        raise RuntimeError("a trial's clock stands still: use drain(app) or tick(app)")

    def run_until_idle(self, wait: float = 0.0) -> Summary:
        raise RuntimeError("a trial's clock stands still: use drain(app) or tick(app)")


@contextmanager
def trial(
    pipelines: Pipeline | Iterable[Pipeline],
    *,
    store: str | None = None,
    clock: FakeClock | None = None,
    concurrency: int | None = None,
    cells: bool = False,
    settings: Settings | None = None,
) -> Iterator[Trial]:
    """An open app over a fresh SQLite file, or the store at that address.

    Stages with `isolate=True` run in the test's own process, unless `cells` asks for processes of their own. What the
    calls of earlier tests learned of services (a breaker that opened, a budget that was spent) is forgotten.
    """
    forget_all()
    unbound.forget()
    given = [pipelines] if isinstance(pipelines, Pipeline) else list(pipelines)
    with ExitStack() as stack:
        if store is None:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="perdure-trial-"))
            store = f"sqlite:///{Path(directory) / 'trial.db'}"
        app = Trial(given, store, clock or FakeClock(), concurrency, cells, settings)
        with app:
            yield app


@contextmanager
def no_wait() -> Iterator[list[float]]:
    """Within the block no policy waits; the waits that they would have made are collected.

    Calls that fail without a pause teach policies a lot in no time: breakers open, budgets are spent. At the end all of
    that is forgotten, counters too, so that the next test begins without it.
    """
    try:
        with timing.no_wait() as waits:
            yield waits
    finally:
        forget_all()
        unbound.forget()


def drain(app: Trial, max_rounds: int = 1_000) -> Summary:
    """Run whatever is ready and move the clock to whatever falls due next, until nothing is left but what is held,
    paused or limited. AssertionError when that takes more than `max_rounds` claims."""
    return app._call(_drain(app, max_rounds))


def tick(app: Trial) -> int:
    """One round at the present time: take back expired leases, promote what is due, claim once, run that to its end.
    How many jobs ran."""
    return app._call(_tick(app))


class Runs:
    """How often a stage has run under `failing`."""

    def __init__(self) -> None:
        self.count = 0


@contextmanager
def failing(stage: Stage[..., Any], *errors: BaseException | type[BaseException] | None) -> Iterator[Runs]:
    """Within the block the stage's runs raise these errors, one each (None: that run is left alone), and then go well.

    Runs of all documents count together. A stage in a process of its own is not reached.
    """
    script, runs, original, lock = deque(errors), Runs(), stage.fn, threading.Lock()

    @functools.wraps(original)
    def scripted(*args: Any, **kwargs: Any) -> Any:
        with lock:
            runs.count += 1
            error = script.popleft() if script else None
        if error is not None:
            raise error
        return original(*args, **kwargs)

    stage.fn = scripted
    try:
        yield runs
    finally:
        stage.fn = original


class Recording(list[AnyEvent]):
    """Events in the order they were published."""

    def of(self, kind: type[Kind]) -> list[Kind]:
        """Only those of this kind."""
        return [event for event in self if isinstance(event, kind)]


def recording(app: Perdure) -> Recording:
    """Collects every event of the app from now on."""
    events = Recording()
    app.subscribe(events.append)
    return events


@asynccontextmanager
async def _worker(app: Trial) -> AsyncIterator[Worker]:
    """A worker without a keeper: the clock stands still while it runs, so no lease needs renewing."""
    service = app.service
    number = await service.store.register("worker", "trial", service.queues)
    nursery = service.new_nursery()
    worker = service.new_worker(number, Slate.private(), nursery)
    worker.runner.cells = app.cells
    try:
        with using(service.given):
            yield worker
    finally:
        worker.runner.threads.close()
        await nursery.close()
        await service.store.retire(number)


async def _round(app: Trial, worker: Worker) -> int:
    swept = await app.sweeper.sweep(app.clock.monotonic_s())
    assert not swept.failed, f"the sweep failed: {swept.failed}"
    return await worker.turn()


async def _tick(app: Trial) -> int:
    async with _worker(app) as worker:
        return await _round(app, worker)


async def _drain(app: Trial, max_rounds: int) -> Summary:
    service = app.service
    before = await service.store.tally()
    async with _worker(app) as worker:
        for _ in range(max_rounds):
            if await _round(app, worker):
                continue
            due_ms = (await service.store.tally(service.queues)).next_due_ms
            if due_ms is None:
                return await service.summary(before.documents)
            app.clock.advance(max(0, due_ms - app.clock.now_ms()) / 1000)
    raise AssertionError(f"still busy after {max_rounds} rounds: {await service.summary(before.documents)}")
