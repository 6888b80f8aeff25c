"""`perdure worker`: a small process without user code that outlives the one that runs the stages.

It holds the worker's lock, renews the leases, sweeps, and starts the child. When the child dies it knows the exact
signal and, from the slate, what was in hand: documents are given back at once. A child whose stage holds the
interpreter past its hard timeout is killed. If that stage was the only one, it is charged; of several any one may have
held the others up, so all are tried again alone, where the one to blame is found out.

    supervisor                               child (`python -m perdure.cli.child MODULE:APP`)
      spawn, slate in shared memory     →      import the app
      open the store, register          ←      hello: address, queues
      keeper                            →      worker id; claim, run, save
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from perdure.core.events import Events, WorkerLost
from perdure.core.model import Job
from perdure.core.outcome import Orphaned, Overdue, Result, Stopped
from perdure.core.stuck import StuckPolicy
from perdure.engine.keeper import Keeper, monotonic_ms
from perdure.engine.recovery import recover
from perdure.engine.slate import Slate
from perdure.engine.sweeper import Retention, Sweeper
from perdure.engine.verdict import signal_name
from perdure.errors import StoreError
from perdure.store.open import open_store
from perdure.store.sql_store import SqlStore

LOOK_S = 0.2
RESTART_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
STEADY_S = 10.0
LEAVE_S = 6.0  # beyond its grace, for a child to interrupt what is left and to write that down
USAGE = 2


@dataclass(slots=True)
class Child:
    """The process that runs stages, and the slate it writes on."""

    process: subprocess.Popen[bytes]
    control: socket.socket
    slate: Slate
    started_s: float

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    async def exited(self) -> int:
        """Its status, negative for a signal."""
        status = self.process.poll()
        while (
            status is None
        ):  # no event tells of a child that somebody else may reap, and 20 ms is soon enough
            await asyncio.sleep(0.02)
            status = self.process.poll()
        return status

    def send_signal(self, number: int) -> None:
        if self.lives:
            self.process.send_signal(number)

    def close(self) -> None:
        self.control.close()
        os.close(self.slate.fd)


class Supervisor:
    """Runs one worker for as long as it is wanted."""

    def __init__(
        self,
        target: str,
        options: dict[str, Any],
        events: Events | None = None,
        *,
        inherited: Sequence[int] = (),
        opened: Callable[[SqlStore, dict[str, Any]], None] = lambda store, hello: None,
    ) -> None:
        """`inherited`: file descriptors that the child has, too; `opened` hears of the store and the child's hello."""
        self.target = target
        self._inherited = tuple(inherited)
        self._opened = opened
        self.options = options
        self.events = events or Events()
        self.stops = 0
        self._stop = asyncio.Event()
        self._store: SqlStore | None = None
        self._keeper: Keeper | None = None
        self._worker = 0
        self._grace_s = 0.0
        self._child: Child | None = None

    async def run(self) -> int:
        """Until SIGTERM (twice: at once); the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        quick, status, keeping = 0, 0, None
        stop_keeping = asyncio.Event()
        try:
            while not self._stop.is_set():
                child = self._spawn()
                try:
                    hello = await self._hello(child)
                    if hello is None:
                        status = await child.exited()
                        if status == USAGE or self._worker == 0:
                            return abs(status)
                    else:
                        keeping = keeping or await self._open(hello, child, stop_keeping)
                        status = await self._watch(child)
                finally:
                    child.send_signal(signal.SIGKILL)
                    child.close()
                steady = loop.time() - child.started_s > STEADY_S
                quick = 0 if steady else min(quick + 1, len(RESTART_S) - 1)
                if not self._stop.is_set():
                    await asyncio.sleep(RESTART_S[quick] if quick > 1 else 0)
            return 0
        finally:
            await self._close(keeping, stop_keeping)

    def stop(self) -> None:
        """First call: finish stages and give back the rest. Second: leave at once."""
        self.stops += 1
        self._stop.set()

    # --- the child -------------------------------------------------------------------------------

    def _spawn(self) -> Child:
        slate = Slate.shared()
        ours, theirs = socket.socketpair()
        fds = (theirs.fileno(), slate.fd)
        with theirs:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "perdure.cli.child",
                    self.target,
                    *map(str, fds),
                    json.dumps(self.options),
                ],
                pass_fds=(*fds, *self._inherited),
                start_new_session=True,  # a Ctrl-C is for the supervisor, which tells the child
            )
        ours.setblocking(False)
        return Child(process, ours, slate, asyncio.get_running_loop().time())

    async def _hello(self, child: Child) -> dict[str, Any] | None:
        """What the child says of its app; None if it ended before."""
        loop, data = asyncio.get_running_loop(), b""
        while not data.endswith(b"\n"):
            try:
                part = await asyncio.wait_for(loop.sock_recv(child.control, 65536), LOOK_S)
            except TimeoutError:
                if self.stops:
                    child.send_signal(signal.SIGKILL)
                continue
            except ConnectionError:
                return None
            if not part:
                return None
            data += part
        said: dict[str, Any] = json.loads(data)
        return said

    async def _open(self, hello: dict[str, Any], child: Child, stopping: asyncio.Event) -> asyncio.Task[None]:
        """Register at the child's store and begin to keep."""
        store = open_store(hello["store"], None, hello["direct_url"])
        await store.open()
        store.events = self.events
        self._opened(store, hello)
        self._store = store
        self._worker = await store.register(
            "worker", f"{socket.gethostname()}:{os.getpid()}", hello["queues"]
        )
        retention = Retention(
            hello["retention_age_ms"], hello["retention_count"], calls_age_ms=hello["retention_calls_ms"]
        )
        sweeper = Sweeper(store, self.events, retention, StuckPolicy(**hello["stuck"]))
        self._grace_s = hello["grace_s"]
        self._keeper = Keeper(
            store, self.events, self._worker, child.slate, sweeper, on_absence=self._expect_suspects
        )
        return asyncio.create_task(self._keeper.run(stopping), name="perdure-keeper")

    async def _watch(self, child: Child) -> int:
        """Let the child work until it ends; then take back what it had in hand."""
        assert self._keeper is not None
        self._keeper.slate = child.slate
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(child.control, json.dumps({"worker": self._worker}).encode() + b"\n")
        self._child = child  # from now on it may be spoken to
        ended = asyncio.create_task(child.exited())
        overdue = False
        told, leave_s = 0, math.inf
        while not ended.done():
            await asyncio.wait({ended}, timeout=LOOK_S)
            if self.stops > told:
                told, leave_s = self.stops, loop.time() + self._grace_s + LEAVE_S
                child.send_signal(signal.SIGTERM if told == 1 else signal.SIGKILL)
            # one that was dead before we looked, because we stood still ourselves, was not past its time
            overdue = overdue or (child.lives and _overdue(child.slate))
            if overdue or loop.time() > leave_s:
                child.send_signal(signal.SIGKILL)
        await self._recover(child, ended.result(), overdue)
        return ended.result()

    def _expect_suspects(self) -> None:
        """Another worker seems to be dead: let the child prepare for documents that run in processes of their own."""
        if self._child is not None:
            with suppress(OSError):
                self._child.control.send(b"!")

    async def _recover(self, child: Child, status: int, overdue: bool) -> None:
        """Whoever held a worker of its own past its time is charged; whoever had begun is suspect; others come back."""
        assert self._store is not None
        how = signal_name(-status) if status < 0 else f"exit status {status}"
        reason = "worker stood still past a stage's timeout" if overdue else f"worker process ended: {how}"
        begun = {(held.job_id, held.token) for held in child.slate.held() if held.started}
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + LEAVE_S
        while True:
            try:
                jobs = await self._store.in_hand(self._worker)
                results = [(job, self._result(job, begun, overdue, reason)) for job in jobs]
                taken = await recover(self._store, self.events, results, reason)
            except StoreError:
                if self.stops > 1 or (self._stop.is_set() and loop.time() > give_up_s):
                    return  # whoever finds our lock free takes over
                await asyncio.sleep(1)
                continue
            if taken:
                self._store.wake_soon()
            if not self._stop.is_set():
                self.events.publish(WorkerLost(self._worker, taken, reason))
            return

    def _result(self, job: Job, begun: set[tuple[int, int]], overdue: bool, reason: str) -> Result:
        had_begun = (job.id, job.token) in begun  # one that never got onto the slate had not
        if had_begun and overdue and len(begun) == 1:
            return Overdue(job.stage, "stage_timeout", f"stage {job.stage} held its worker past its timeout")
        if self._stop.is_set():
            return Stopped(job.stage, progressed=True, stage_age_ms=0)
        return Orphaned(job.stage, reason, blame=had_begun)

    async def _close(self, keeping: asyncio.Task[None] | None, stopping: asyncio.Event) -> None:
        stopping.set()
        if keeping is not None:
            await asyncio.wait({keeping}, timeout=5)
            keeping.cancel()
        try:
            await asyncio.wait_for(self._retire(), LEAVE_S)
        except (StoreError, TimeoutError):
            return  # whoever finds our lock free takes over

    async def _retire(self) -> None:
        if self._store is not None:
            if not await self._store.in_hand(self._worker):
                await self._store.retire(self._worker)
            await self._store.close()


def _overdue(slate: Slate) -> bool:
    now_ms = monotonic_ms()
    return any(held.started and 0 < held.deadline_ms < now_ms for held in slate.held())
