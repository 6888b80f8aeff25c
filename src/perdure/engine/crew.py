"""The workers of one process: one for all queues that share its slots, and one for each queue that has its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from perdure.engine.pipeline import Pipeline
from perdure.engine.worker import Worker

#: Queues, and how many of their jobs run at a time.
Group = tuple[tuple[str, ...], int]


def groups(pipelines: Iterable[Pipeline], queues: Sequence[str], concurrency: int) -> list[Group]:
    """How the queues share slots: those whose pipelines ask for slots of their own, and all others together."""
    own: dict[str, int] = {}
    for pipeline in pipelines:
        if pipeline.concurrency is not None and pipeline.queue in queues:
            own[pipeline.queue] = max(own.get(pipeline.queue, 0), pipeline.concurrency)
    others = tuple(queue for queue in queues if queue not in own)
    shared = [(others, concurrency)] if others else []
    return shared + [((queue,), number) for queue, number in sorted(own.items())]


class Crew:
    """Runs workers under one id until they are told to stop, or one of them breaks."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self.workers = tuple(workers)

    @property
    def busy(self) -> int:
        """How many jobs are in hand."""
        return sum(worker.busy for worker in self.workers)

    def stop(self, grace_s: float) -> None:
        for worker in self.workers:
            worker.stop(grace_s)

    async def run(self) -> None:
        tasks = [asyncio.create_task(worker.run(), name="perdure-worker") for worker in self.workers]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for worker in self.workers:
                worker.runner.threads.close()
