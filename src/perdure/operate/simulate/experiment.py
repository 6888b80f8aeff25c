"""Many runs, on all cores: every policy in every fault with every seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from perdure.core.frozen import frozen
from perdure.operate.simulate.measure import Calls, Jobs, Row, Task, play, row
from perdure.operate.simulate.model import Model


@frozen
class Found:
    """One fault and what each policy made of it."""

    model: Model
    rows: tuple[Row, ...]


def experiment(
    models: Sequence[Model], policies: Sequence[str], seeds: int, done: Callable[[int, int], None]
) -> list[Found]:
    """Run everything; `done` is told how many runs of how many have ended."""
    tasks = [
        Task(model, policy, seed, jobs)
        for jobs in (True, False)  # the long ones first
        for policy in policies
        for model in models
        for seed in range(seeds)
    ]
    runs = _play(tasks, done)

    def gathered(model: Model, policy: str) -> Row:
        alone, with_jobs = [], []
        for seed in range(seeds):
            one, other = runs[Task(model, policy, seed, False)], runs[Task(model, policy, seed, True)]
            assert isinstance(one, Calls)
            assert isinstance(other, Jobs)
            alone.append(one)
            with_jobs.append(other)
        return row(policy, alone, with_jobs)

    return [Found(model, tuple(gathered(model, policy) for policy in policies)) for model in models]


def _play(tasks: list[Task], done: Callable[[int, int], None]) -> dict[Task, Calls | Jobs]:
    runs: dict[Task, Calls | Jobs] = {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ProcessPoolExecutor(min(cores, len(tasks)), get_context("fork")) as pool:
        futures = {pool.submit(play, task): task for task in tasks}
        for count, future in enumerate(as_completed(futures), 1):
            runs[futures[future]] = future.result()
            done(count, len(tasks))
    return runs
