"""Following documents after `perdure add --watch`, or working on them with `--work`, until all of them have ended.

However many there are, a look asks for those that run and for a bounded number of others, in turns.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice

from perdure.cli.board import Screen, Seen, screen
from perdure.cli.document import happened
from perdure.cli.saying import say
from perdure.cli.stop import STOPPED, Stop
from perdure.cli.words import span
from perdure.core.model import TERMINAL
from perdure.service import AsyncPerdure
from perdure.store.records import Status

LOOK_S = 0.25
LOOK_MAX = 1_000  # documents that are asked for at a look, besides those that run
WORKERS_S = 2.0
#: With `--work`, what is held, or due only after this time, is left to a worker that stays.
PATIENCE_MS = 60_000
NOBODY = "nobody is working: start `perdure worker`"
DEGRADED = "degraded: a fallback stood in, or a part was not read; `perdure why` says which"


class Watched:
    """What is known of the documents that we follow."""

    def __init__(self, app: AsyncPerdure, org: str, ids: Sequence[str]) -> None:
        self._app, self._org = app, org
        self._turns = dict.fromkeys(ids)  # those that have not ended, asked for longest ago first
        self.seen: dict[str, Seen] = {}
        self.states: dict[str, dict[str, None]] = {"queued": dict.fromkeys(ids)}

    @property
    def over(self) -> bool:
        """Whether all of them have ended."""
        return not self._turns

    async def look(self) -> list[Seen]:
        """Ask where they stand; those that changed."""
        asked = list(dict.fromkeys([*self.states.get("running", ()), *islice(self._turns, LOOK_MAX)]))
        found = await self._app.store.statuses(self._org, asked)
        items = await self._app.store.items_saved([s for s in found if s.state == "running" and s.stage])
        whys = await self._held(found)
        changed = []
        for status in found:
            before = self.seen.get(status.id)
            why = whys.get(status.held_by or "") or await self._why(status, before)
            now = _seen(status, items.get(status.id, 0), why)
            del self._turns[status.id]
            if status.state not in TERMINAL:
                self._turns[status.id] = None
            if now != before:
                self._move(now, before.state if before else "queued")
                changed.append(now)
        return changed

    def _move(self, one: Seen, state: str) -> None:
        self.seen[one.id] = one
        if one.state != state:
            del self.states[state][one.id]
            self.states.setdefault(one.state, {})[one.id] = None

    async def stuck(self) -> bool:
        """Whether those that are left are held, or wait for longer than we do."""
        if self.states.get("queued") or self.states.get("running"):
            return False
        left = [self.seen[id_] for id_ in self._turns]
        dues = [one.due_ms for one in left if one.due_ms is not None]
        for_others = any(one.state == "waiting" and one.due_ms is None for one in left)  # that they spawned
        if for_others and await self._app.under_way(PATIENCE_MS / 1000):
            return False
        return not dues or min(dues) > await self._app.store.now_ms() + PATIENCE_MS

    async def follow_ups(self) -> bool:
        """Whether jobs that these documents left behind are under way; one that is held may be so for days."""
        ids = list(self.seen)
        for n in range(0, len(ids), LOOK_MAX):
            if await self._app.store.jobs_open(self._org, ids[n : n + LOOK_MAX]):
                return await self._app.under_way(PATIENCE_MS / 1000)
        return False

    async def problem(self) -> str:
        """Why nothing can move, if nothing can."""
        store = self._app.store
        ours = set(self._app.queues)
        workers = [w.id for w in await store.workers() if w.kind == "worker" and ours & set(w.queues)]
        if not workers or await store.missing(workers) == set(workers):
            return NOBODY
        paused = ours & {queue.name for queue in await store.queues() if queue.paused}
        return f"paused: {', '.join(sorted(paused))}" if paused else ""

    async def _held(self, found: Sequence[Status]) -> dict[str, str]:
        """Why lanes are down, if any of them is held."""
        if not any(status.held_by for status in found):
            return {}
        return {lane.name: f"needs {lane.name}: {lane.reason}" for lane in await self._app.store.lanes()}

    async def _why(self, status: Status, before: Seen | None) -> str:
        """What went wrong, if it did; looked up once."""
        if status.error_code is not None and status.finished_ms is not None:
            return f"{status.error_code}: {status.error_message}"
        if status.state != "waiting":
            return DEGRADED if status.degraded and status.state == "done" else ""
        if before is not None and before.due_ms == status.run_at_ms:
            return before.why
        attempts = await self._app.store.attempts(self._org, status.id)
        if attempts:
            return happened(asdict(attempts[-1]))
        return f"not due for {span((status.run_at_ms or 0) - await self._app.store.now_ms())}"


async def follow(
    app: AsyncPerdure, org: str, ids: Sequence[str], stop: Stop, work: bool, as_json: bool
) -> int:
    """Show them until all have ended, and with `work` make them: 0 if all are done, 1 if not, 130 if it was stopped."""
    watched = Watched(app, org, ids)
    with screen(as_json) as shown:
        working = asyncio.create_task(app.run()) if work else None
        try:
            await _show(watched, shown, stop, working)
        finally:
            if working is not None:
                await _end(app, working, stop)
        shown.show(watched.seen, watched.states, await watched.look(), "")
    dead = await _children(app, org, list(islice(watched.states.get("done", ()), LOOK_MAX)), watched)
    if watched.over:
        return 0 if len(watched.states.get("done", ())) == len(watched.seen) and not dead else 1
    say("perdure: what has not ended goes on whenever a worker runs; see `perdure status`", file=sys.stderr)
    return STOPPED if stop.asked.is_set() else 1


async def _children(app: AsyncPerdure, org: str, ids: Sequence[str], watched: Watched) -> int:
    """Tell what became of the documents that came out of these, as messages of an archive; how many died."""
    dead = 0
    for id_ in ids:
        counts: Counter[str] = Counter()
        for found in await app.store.children(org, id_):
            counts[found.state] += found.count
        if counts:
            dead += counts["dead"]
            words = ", ".join(f"{number:,} {state}" for state, number in sorted(counts.items()))
            see = "; see `perdure dead groups`" if counts["dead"] else ""
            say(f"perdure: {watched.seen[id_].name}: of what is in it {words}{see}", file=sys.stderr)
    return dead


async def _show(watched: Watched, shown: Screen, stop: Stop, working: asyncio.Task[None] | None) -> None:
    loop = asyncio.get_running_loop()
    problem, asked_s = "", -WORKERS_S
    while True:
        changed = await watched.look()
        if working is None and loop.time() >= asked_s + WORKERS_S:
            problem, asked_s = await watched.problem(), loop.time()
        shown.show(watched.seen, watched.states, changed, problem)
        gone = working is not None and (working.done() or await watched.stuck())
        if watched.over or gone or not await _pause(stop):
            break
    end_s = loop.time() + PATIENCE_MS / 1000
    while working is not None and watched.over and not working.done() and loop.time() < end_s:
        left = await watched.follow_ups()
        shown.show(watched.seen, watched.states, [], "follow-up jobs are under way" if left else "")
        if not left or not await _pause(stop):
            break


async def _pause(stop: Stop) -> bool:
    """Wait a moment; whether to go on."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOK_S):
            await stop.asked.wait()
    return not stop.asked.is_set()


async def _end(app: AsyncPerdure, working: asyncio.Task[None], stop: Stop) -> None:
    """Let the worker finish what it can within its grace; whatever ended it is raised."""
    if stop.asked.is_set():
        say("perdure: stopping; press Ctrl-C again to stop at once", file=sys.stderr)
    await app.stop()
    await asyncio.wait(
        {working}
    )  # who is cancelled here stops it again when the app is closed, and then at once
    working.result()


def _seen(status: Status, saved: int, why: str) -> Seen:
    return Seen(
        status.id, status.name, status.state, status.stage or "", saved, status.attempts_made, status.attempts_max,
        why, status.run_at_ms,
    )  # fmt: skip
