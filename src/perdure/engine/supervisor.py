"""`perdure worker`: a small process without user code that outlives the one that runs the stages.

It holds the worker's lock, renews the leases, sweeps, and starts the child. When the child dies it knows the exact
signal and, from the slate, what was in hand: documents are given back at once. A child whose event loop stands still
(`loop_watch`), or whose stage holds the interpreter past its hard timeout, is killed. `blame` says who pays: of several
any one may have held the others up, so all are tried again alone, where the one to blame is found out.

    supervisor                               child (`python -m perdure.cli.child MODULE:APP`)
      spawn, slate in shared memory     →      import the app
      open the store, register          ←      hello: address, queues
      keeper                            →      worker id; claim, run, save
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from perdure.core.events import Events, WorkerLost, WorkerStalled
from perdure.core.outcome import Orphaned
from perdure.core.stuck import StuckPolicy
from perdure.engine.blame import Begun, Standstill, result_of
from perdure.engine.child_process import WAIT_S, Child
from perdure.engine.keeper import Keeper, monotonic_ms
from perdure.engine.loop_watch import LoopWatch, stack_of
from perdure.engine.recovery import recover
from perdure.engine.slate import Slate
from perdure.engine.sweeper import Retention, Sweeper
from perdure.engine.verdict import signal_name
from perdure.errors import StoreBusy, StoreError, StoreUnavailable
from perdure.store.open import open_store
from perdure.store.sql_store import SqlStore

LOOK_S = 0.2
RESTART_S = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
STEADY_S = 10.0
LEAVE_S = 6.0  # beyond its grace, for a child to interrupt what is left and to write that down
HELD_MS = 1_500  # of silence, without which a stage past its timeout is about to be ended by its own loop
DEAF_MS = 5_000  # of silence, by which a child that is to leave is known to have heard nothing
TELL_S = 2.0  # for the store to say which documents a child that stands still has in hand
USAGE = 2
STOPPING = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("perdure.worker")


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
        closing: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`inherited`: file descriptors that the child has, too; `opened` hears of the store and the child's hello,
        `closing` is called before the store is closed."""
        self.target = target
        self._inherited = tuple(inherited)
        self._opened, self._closing = opened, closing
        self.options = options
        self.events = events or Events()
        self.stops = 0
        self._stop = asyncio.Event()
        self._store: SqlStore | None = None
        self._keeper: Keeper | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._worker = 0
        self._grace_s = 0.0
        self._stall_ms = 0  # of silence of the child's event loop, after which it is ended; 0: never
        self._child: Child | None = None

    async def run(self) -> int:
        """Until SIGTERM (twice: at once); the exit status."""
        loop = asyncio.get_running_loop()
        for number in STOPPING:
            loop.add_signal_handler(number, self.stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)  # `perdure worker` blocks them while it starts
        quick, status = 0, 0
        stop_keeping = asyncio.Event()
        try:
            while not self._stop.is_set():
                child = self._spawn()
                try:
                    hello = await self._hello(child)
                    if hello is None:
                        status = await child.exited()
                        if self._stop.is_set():
                            break
                        if status == USAGE or self._worker == 0:
                            return status if status >= 0 else 1
                    elif await self._opened_for(hello, child, stop_keeping):
                        await self._watch(child)
                finally:
                    child.send_signal(signal.SIGKILL)
                    await child.exited()
                    child.close()
                if self._store is not None and self._store.lost is not None:
                    raise self._store.lost  # no other child would do better
                steady = loop.time() - child.started_s > STEADY_S
                quick = 0 if steady else min(quick + 1, len(RESTART_S) - 1)
                await self._pause(RESTART_S[quick] if quick > 1 else 0)
            return 0
        finally:
            await self._close(stop_keeping)

    def stop(self) -> None:
        """First call: finish stages and give back the rest. Second: leave at once."""
        self.stops += 1
        self._stop.set()

    async def _pause(self, for_s: float) -> None:
        """Until then, or until we are to stop."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), for_s)

    # --- the child -------------------------------------------------------------------------------

    def _spawn(self) -> Child:
        return Child.spawn(self.target, self.options, self._inherited)

    async def _hello(self, child: Child) -> dict[str, Any] | None:
        """What the child says of its app; None if it ended before."""
        loop, data = asyncio.get_running_loop(), b""
        while not data.endswith(b"\n"):
            try:
                part = await asyncio.wait_for(loop.sock_recv(child.control, 65536), LOOK_S)
            except TimeoutError:
                if self.stops:
                    child.send_signal(signal.SIGKILL)
                if not child.lives:  # a process that it forked may keep the connection open
                    return None
                continue
            except ConnectionError:
                return None
            if not part:
                return None
            data += part
        said: dict[str, Any] = json.loads(data)
        return said

    async def _opened_for(self, hello: dict[str, Any], child: Child, stopping: asyncio.Event) -> bool:
        """Wait until the store is open and we keep our worker's leases; False if the child ended, or we are to stop."""
        tries = 0
        while self._keeping is None and child.lives and not self._stop.is_set():
            try:
                self._keeping = await self._open(hello, child, stopping)
            except (StoreUnavailable, StoreBusy) as error:
                log.warning("waiting for the store: %s", error)
                tries += 1
                await self._pause(WAIT_S[min(tries, len(WAIT_S)) - 1])
        return self._keeping is not None

    async def _open(self, hello: dict[str, Any], child: Child, stopping: asyncio.Event) -> asyncio.Task[None]:
        """Register at the child's store and begin to keep."""
        store = open_store(hello["store"], None, hello["direct_url"])
        await store.open()
        try:
            worker = await store.register("worker", f"{socket.gethostname()}:{os.getpid()}", hello["queues"])
        except BaseException:
            with suppress(StoreError):
                await store.close()
            raise
        store.events = self.events
        self._opened(store, hello)
        self._store, self._worker = store, worker
        retention = Retention(
            hello["retention_age_ms"], hello["retention_count"], calls_age_ms=hello["retention_calls_ms"]
        )
        sweeper = Sweeper(store, self.events, retention, StuckPolicy(**hello["stuck"]))
        self._grace_s, self._stall_ms = hello["grace_s"], int(hello["loop_stall_s"] * 1000)
        self._keeper = Keeper(
            store, self.events, self._worker, child.slate, sweeper, on_absence=self._expect_suspects
        )
        return asyncio.create_task(self._keeper.run(stopping), name="perdure-keeper")

    async def _watch(self, child: Child) -> int:
        """Let the child work until it ends; then take back what it had in hand."""
        assert self._keeper is not None
        assert self._store is not None
        self._keeper.slate = child.slate
        watch = self._keeper.loop = LoopWatch(child.slate.ticks)
        loop = asyncio.get_running_loop()
        await self._give_back_late_claims()
        with suppress(ConnectionError):  # it has ended
            await loop.sock_sendall(child.control, json.dumps({"worker": self._worker}).encode() + b"\n")
        self._child = child  # from now on it may be spoken to
        ended = asyncio.create_task(child.exited())
        still: Standstill | None = None
        stood: tuple[Any, ...] = ()
        told, leave_s = 0, math.inf
        while not ended.done():
            await asyncio.wait({ended}, timeout=LOOK_S)
            silent_ms = watch.look(monotonic_ms())
            if self.stops > told:
                told = self.stops
                leave_s = loop.time() + (self._grace_s + LEAVE_S if told == 1 else 0)
                if told == 1:
                    child.send_signal(signal.SIGTERM)
            leaving = loop.time() >= leave_s
            # one that was dead before we looked, because we stood still ourselves, was not past its time
            if still is None and child.lives:
                still = self._standstill(child.slate, silent_ms, leaving)
                if still is not None:
                    stood = _standing(child.slate)
                    await self._tell(child, silent_ms)
                    still = still if _standing(child.slate) == stood else None  # it went on meanwhile
            if still is not None or leaving or self._store.lost is not None:
                child.send_signal(signal.SIGKILL)
        if still is not None and _standing(child.slate) != stood:
            still = None  # it went on before it was killed: nothing is proven
        await self._recover(child, ended.result(), still)
        return ended.result()

    def _standstill(self, slate: Slate, silent_ms: int, leaving: bool) -> Standstill | None:
        """Why the child cannot go on, if its event loop stands still."""
        now_ms, held_up = monotonic_ms(), silent_ms >= HELD_MS or not slate.ticks()
        if held_up and any(held.started and 0 < held.deadline_ms < now_ms for held in slate.held()):
            return Standstill("worker stood still past a stage's timeout", overdue=True)
        bound_ms = DEAF_MS if leaving else self._stall_ms
        if 0 < bound_ms <= silent_ms:
            return Standstill(f"worker stood still for {silent_ms // 1000} s")
        return None

    async def _tell(self, child: Child, silent_ms: int) -> None:
        """Say what a child that stands still has in hand, and where it stands."""
        assert self._store is not None
        here = Begun.on(child.slate).here
        stack = await stack_of(child.process, child.slate)
        begun: tuple[tuple[str, str], ...] = ()
        with suppress(StoreError, TimeoutError):  # those that are recovered are told anyway
            jobs = await asyncio.wait_for(self._store.in_hand(self._worker), TELL_S)
            begun = tuple((job.document_id, job.stage) for job in jobs if (job.id, job.token) in here)
        self.events.publish(WorkerStalled(self._worker, silent_ms, begun, stack))

    def _expect_suspects(self) -> None:
        """Another worker seems to be dead: let the child prepare for documents that run in processes of their own."""
        if self._child is not None:
            with suppress(OSError):
                self._child.control.send(b"!")

    async def _recover(self, child: Child, status: int, still: Standstill | None) -> None:
        """Whoever held a worker of its own past its time is charged; whoever had begun is suspect; others come back."""
        assert self._store is not None
        how = signal_name(-status) if status < 0 else f"exit status {status}"
        reason = f"worker process ended: {how}" if still is None else still.reason
        begun, stopping = Begun.on(child.slate), self._stop.is_set()
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + LEAVE_S
        while True:
            try:
                jobs = await self._store.in_hand(self._worker)
                results = [(job, result_of(job, begun, still, reason, stopping)) for job in jobs]
                taken = await recover(self._store, self.events, results, reason)
            except StoreError:
                if self._store.lost is not None:
                    raise self._store.lost from None
                if self.stops > 1 or (self._stop.is_set() and loop.time() > give_up_s):
                    return  # whoever finds our lock free takes over
                await asyncio.sleep(1)
                continue
            if taken:
                self._store.wake_soon()
            if not self._stop.is_set():
                self.events.publish(WorkerLost(self._worker, taken, reason))
            return

    async def _give_back_late_claims(self) -> None:
        """What the last child claimed with a commit that arrived after its death; the new one has no number yet."""
        assert self._store is not None
        reason = "claimed by a worker process that had ended"
        with suppress(StoreError):  # it is away; they run again when their leases are over
            if jobs := await self._store.in_hand(self._worker):
                results = [(job, Orphaned(job.stage, reason, blame=False)) for job in jobs]
                await recover(self._store, self.events, results, reason)
                self._store.wake_soon()

    async def _close(self, stopping: asyncio.Event) -> None:
        stopping.set()
        if self._keeping is not None:
            await asyncio.wait({self._keeping}, timeout=5)
            self._keeping.cancel()
        if self._closing is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing(), LEAVE_S)
        try:
            await asyncio.wait_for(self._retire(), LEAVE_S)
        except (StoreError, TimeoutError):
            return  # whoever finds our lock free takes over

    async def _retire(self) -> None:
        if self._store is not None:
            if not await self._store.in_hand(self._worker):
                await self._store.retire(self._worker)
            await self._store.close()


def _standing(slate: Slate) -> tuple[Any, ...]:
    """What cannot change while the child's event loop stands still: its ticks, and the stages that run in it."""
    return slate.ticks(), {(held.job_id, held.token, held.deadline_ms) for held in slate.held() if held.here}
