"""The workers beside an HTTP server: each is a process that is started again, ever more slowly, if it ends unasked.

A worker that ends with status 2 refuses its settings or its app: it would refuse them again, so the server ends, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from perdure.engine.supervisor import USAGE

AGAIN_S = (1.0, 2.0, 5.0, 10.0, 30.0)
STEADY_S = 60.0  # of life, after which a worker's end is forgotten
STOP_S = 30.0
BEHIND = 5  # levels of niceness that a worker stands behind its server


class WorkersBeside:
    """Keeps `number` workers running. `leave` is called when one of them refuses to start."""

    def __init__(self, target: str, store: str | None, number: int, leave: Callable[[], None]) -> None:
        self.number = number
        self.refused = False
        self.down: dict[int, str] = {}  # those that do not run now, by their number: what became of them
        self._leave = leave
        options = json.dumps({"store": store, "with_parent": True})
        self._command = (sys.executable, "-m", "perdure.cli.supervise", target, options)
        self._environment = os.environ | ({"PERDURE_STORE": store} if store else {})

    async def keep(self, number: int) -> None:
        """Keep a worker running until this is cancelled; then it is stopped in good order."""
        ends, loop = 0, asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            status = await self._run(number)
            ends = 0 if loop.time() - began_s > STEADY_S else ends + 1
            ended = f"worker {number + 1} ended with status {status}"
            self.down[number] = ended
            if status == USAGE:
                self.refused = True
                _say(f"{ended} and would do so again; the server ends, too")
                return self._leave()
            wait_s = AGAIN_S[min(ends, len(AGAIN_S)) - 1] if ends else 0.0
            _say(f"{ended}; again in {wait_s:g} s")
            await asyncio.sleep(wait_s)

    async def _run(self, number: int) -> int:
        """One life of a worker; its exit status."""
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=asyncio.subprocess.DEVNULL, start_new_session=True, env=self._environment
        )
        self.down.pop(number, None)
        with suppress(OSError):  # what is asked for is answered before what can wait
            os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + BEHIND)
        try:
            return await process.wait()
        except asyncio.CancelledError:
            await _stop(process)
            raise


def _say(line: str) -> None:
    print(f"perdure: {line}", file=sys.stderr)


async def _stop(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
