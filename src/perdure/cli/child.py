"""The process that runs stages: `python -m perdure.cli.child MODULE:APP CONTROL SLATE WATCHED OPTIONS`.

The supervisor starts it (see `engine.child_process`).
It imports the app, says hello, gets its worker id, and works until SIGTERM. If the supervisor is gone it dies at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from itertools import chain, repeat

from perdure.app import AsyncPerdure
from perdure.cli.saying import say, say_lines
from perdure.cli.target import load_app
from perdure.engine.child_process import WAIT_S, end_with, hide_memory
from perdure.engine.collector import calm_collector
from perdure.engine.fork_signals import own_signals
from perdure.engine.loop_watch import tell_stack_on, ticking
from perdure.engine.memory import few_arenas
from perdure.engine.slate import Slate
from perdure.engine.title import set_title
from perdure.engine.tuning import switch_threads_soon
from perdure.errors import (
    PerdureError,
    SettingInvalid,
    StoreBusy,
    StoreUnavailable,
    UsageError,
    address_shown,
    extra_missing,
    redacted,
)
from perdure.settings import forgo_warnings
from perdure.store.descriptors import unshare
from perdure.store.turn import may_be_ended
from perdure.watch.board import Board
from perdure.watch.log import configure, log_events
from perdure.watch.tracing import trace

log = logging.getLogger("perdure.worker")


def main() -> None:
    target, options = sys.argv[1], json.loads(sys.argv[5])
    control_fd, slate_fd, watched = map(int, sys.argv[2:5])
    set_title(f"perdure worker {target}: stages")
    end_with(watched)
    may_be_ended()
    few_arenas()
    switch_threads_soon()
    forgo_warnings()
    try:
        app = load_app(target).service
        if options.get("store") is not None:
            app.use(options["store"])
        hide_memory(app.url)
        if options.get("concurrency") is not None:
            app.concurrency = options["concurrency"]
        if options.get("queues"):
            unknown = ", ".join(sorted(set(options["queues"]) - set(app.queues)))
            if unknown:
                raise SettingInvalid(
                    f"--queue: no pipeline of {target} uses {unknown} (they use {', '.join(app.queues)})"
                )
            app.only_queues = tuple(options["queues"])
        configure(app.settings.log_level, app.settings.log_format)
        log_events(app.events)
        app.measure(Board.attached(options["board"]))
        traces = trace(app.settings.traces, app.events)
        calm_collector()
        try:
            with own_signals(signal.SIGTERM, signal.SIGINT):
                asyncio.run(work(app, socket.socket(fileno=control_fd), Slate.attached(slate_fd)))
        finally:
            if traces is not None:
                traces.close()
    except Exception as error:
        known = error if isinstance(error, PerdureError) else extra_missing(error)
        if known is None:  # a bug; what it says may have secrets in it
            say_lines(redacted(traceback.format_exc()), file=sys.stderr)
            os._exit(1)
        say(f"perdure worker: {known} [{known.code}]", file=sys.stderr)
        os._exit(2 if isinstance(known, UsageError) else 1)
    # threads that stage code left behind must not keep us here
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


async def work(app: AsyncPerdure, control: socket.socket, slate: Slate) -> None:
    """Say hello, work, stop when told."""
    loop = asyncio.get_running_loop()
    control.setblocking(False)
    hello = {
        "store": app.url, "direct_url": app.settings.direct_url, "queues": list(app.queues),
        "retention_age_ms": app.retention.age_ms, "retention_count": app.retention.count,
        "retention_calls_ms": app.retention.calls_age_ms, "grace_s": app.settings.grace_s,
        "loop_stall_s": app.settings.loop_stall_s,
        "metrics_host": app.settings.metrics_host, "metrics_port": app.settings.metrics_port,
        "stuck": asdict(app.stuck_policy),
        "traces": app.settings.traces, "pushes": app.settings.pushes and not app.settings.metrics_port,
        "pushgateway_url": app.settings.pushgateway_url,
    }  # fmt: skip
    unshare(control)
    app.check_settings()
    await _start(app)
    await loop.sock_sendall(control, json.dumps(hello).encode() + b"\n")
    answer = b""
    while not answer.endswith(b"\n"):  # byte by byte: what follows the line is for `heard`
        answer += await loop.sock_recv(control, 1) or sys.exit(1)
    nursery = app.new_nursery()

    def heard() -> None:
        """A word from the supervisor: suspects may be coming. Silence for ever: it is gone, and so are we."""
        with suppress(OSError):
            if control.recv(64):
                app.warm(nursery)
                return
        os._exit(1)

    loop.add_reader(control, heard)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: loop.create_task(app.stop()))
    tell_stack_on(slate)
    async with ticking(slate.tick):
        try:
            await app.work(json.loads(answer)["worker"], slate, nursery)
        finally:
            await nursery.close()
            await app.close()


async def _start(app: AsyncPerdure) -> None:
    """Open the store, and wait for it and for its blobs as long as they are not available."""
    started = False
    for pause_s in chain(WAIT_S, repeat(WAIT_S[-1])):
        try:
            if not started:
                await app.start()
                app.store.must_write()
                started = True
                if app.store.created:
                    log.info("created a new store: %s", address_shown(app.url))
            await app.blobs.check()
        except (StoreUnavailable, StoreBusy) as error:
            log.warning("waiting for the store: %s", error)
            await asyncio.sleep(pause_s)
        else:
            return


if __name__ == "__main__":
    main()
