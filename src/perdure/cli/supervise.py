"""What `perdure worker` becomes: a supervisor without the command line's libraries, a third of its memory.

`python -m perdure.cli.supervise MODULE:APP OPTIONS`
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from perdure.cli.saying import say
from perdure.core.events import Events
from perdure.engine.cell import PR_SET_PDEATHSIG, prctl
from perdure.engine.child_process import adopt_orphans, hide_memory
from perdure.engine.supervisor import Supervisor
from perdure.engine.title import set_title
from perdure.errors import PerdureError, UsageError
from perdure.settings import forgo_warnings, warn_misspelt
from perdure.store.sql_store import SqlStore
from perdure.store.turn import may_be_ended
from perdure.watch.board import Board
from perdure.watch.log import configure, log_events
from perdure.watch.shared_counters import share_worker
from perdure.watch.tracing import trace

if TYPE_CHECKING:
    from perdure.watch.traces import Traces


def main() -> None:
    target, options = sys.argv[1], json.loads(sys.argv[2])
    set_title(f"perdure worker {target}")
    may_be_ended()
    adopt_orphans()
    if options.get("with_parent"):
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    async def run() -> int:
        events, board = Events(), Board.shared()
        #: Counters have one way out, or sums over several would count twice.
        measuring: list[asyncio.Task[None]] = []
        tracing: list[Traces] = []

        def opened(store: SqlStore, hello: dict[str, Any]) -> None:
            hide_memory(hello["store"])
            if (traces := trace(hello["traces"], events, store.traceparent)) is not None:
                tracing.append(traces)
            if hello["metrics_port"]:
                from perdure.watch.serve import serve_worker  # a supervisor without it is smaller

                where = (hello["metrics_host"], hello["metrics_port"])
                measuring.append(asyncio.create_task(serve_worker(board, events, store, *where)))
            else:
                pushed = frozenset[str]()
                if hello["pushes"]:
                    from perdure.watch.push import COUNTED, push_worker

                    pushed = COUNTED
                    told = push_worker(board, events, store, hello["pushgateway_url"], hello["store"])
                    measuring.append(asyncio.create_task(told))
                measuring.append(asyncio.create_task(share_worker(board, events, store, pushed)))

        async def closing() -> None:
            for task in measuring:
                task.cancel()
            await asyncio.gather(*measuring, return_exceptions=True)

        log_events(events)
        counted = {**options, "board": board.fd}
        supervisor = Supervisor(
            target, counted, events, inherited=(board.fd,), opened=opened, closing=closing
        )
        try:
            return await supervisor.run()
        finally:
            for traces in tracing:
                traces.close()

    try:
        configure(os.environ.get("PERDURE_LOG_LEVEL", "INFO"), os.environ.get("PERDURE_LOG_FORMAT", "auto"))
        if options.get("with_parent"):
            forgo_warnings()
        else:
            warn_misspelt()
        sys.exit(asyncio.run(run()))
    except PerdureError as error:
        say(f"perdure: {error} [{error.code}]", file=sys.stderr)
        sys.exit(2 if isinstance(error, UsageError) else 1)


if __name__ == "__main__":
    main()
