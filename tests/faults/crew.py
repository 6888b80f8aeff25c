"""Workers that are killed at random and started again, as a service manager would."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Mapping, Sequence

from tests.faults.fleet import Fleet
from tests.faults.flow import Loss
from tests.faults.process import WorkerProcess, send

#: One that is still being started sees that its supervisor is gone when it has imported everything.
GONE_S = 20


class Crew:
    """`size` workers of one app, with these environments by turns; `losses` tells whom we killed and when."""

    def __init__(
        self, fleet: Fleet, rng: random.Random, app: str, size: int, concurrency: int,
        environments: Sequence[Mapping[str, str]] = ({},),
    ) -> None:  # fmt: skip
        self.fleet, self.rng, self.app, self.concurrency = fleet, rng, app, concurrency
        self.environments = environments
        self.losses: list[Loss] = []
        self.workers = [self._start(place) for place in range(size)]

    def _start(self, place: int) -> WorkerProcess:
        environment = {"PERDURE_LOG_LEVEL": "INFO", **self.environments[place % len(self.environments)]}
        return self.fleet.start(self.app, concurrency=self.concurrency, ready=False, **environment)

    def freeze_one(self) -> list[int]:
        """SIGSTOP for all of any worker, whatever it does at that moment; its pids."""
        pids = [process.pid for process in self.rng.choice(self.workers).processes]
        send(pids, signal.SIGSTOP)
        return pids

    def wake(self, pids: list[int]) -> None:
        """SIGCONT for what was not ended meanwhile."""
        send(pids, signal.SIGCONT)
        self.replace_lost()

    def replace_lost(self) -> None:
        """Start a worker for each that is gone."""
        self.workers = [
            worker if worker.process.poll() is None else self._start(place)
            for place, worker in enumerate(self.workers)
        ]

    def kill_one(self) -> None:
        """SIGKILL for any supervisor, which takes everything along, or for any child alone."""
        worker = self.rng.choice(self.workers)
        alone = self.rng.random() < 0.5
        from_s = time.monotonic()
        if not alone:
            worker.kill()
            self.fleet.wait_until_gone(worker, within_s=GONE_S)
        elif worker.child is not None:
            worker.kill_child(GONE_S)
        else:
            return  # its last child is gone, its next one not there yet
        self.losses.append(Loss(worker.number, from_s, time.monotonic()))
        self.replace_lost()
