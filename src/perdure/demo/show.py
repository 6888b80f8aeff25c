"""The demo from beginning to end; `perdure demo` calls `run`."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import uuid
from pathlib import Path

from perdure.app import Perdure
from perdure.cli.words import shown
from perdure.demo.fleet import Fleet
from perdure.demo.play import STAGES, Play
from perdure.demo.report import gather, next_steps, written
from perdure.demo.screen import Lines, screen
from perdure.demo.server import Server
from perdure.demo.shelf import books
from perdure.demo.table import table
from perdure.errors import PerdureError
from perdure.pipelines.document import documents
from perdure.settings import Settings

STOPPED = 130
SQLITE = "sqlite:///"


def run(keep: bool = False, store: str | None = None) -> int:
    """The exit status: 0 if everything that was promised was kept, 1 if not, 130 if it was stopped."""
    directory = Path(tempfile.mkdtemp(prefix="perdure-demo-")).resolve()
    try:
        return asyncio.run(
            _run(directory, _absolute(store) if store else f"{SQLITE}{directory}/demo.db", keep, bool(store))
        )
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped; the workers are ended", file=sys.stderr)
        return STOPPED
    except BrokenPipeError:  # nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return STOPPED
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)


async def _run(directory: Path, store: str, keep: bool, elsewhere: bool) -> int:
    _stop_on_signals()
    name = f"demo-{uuid.uuid4().hex[:8]}"
    documents.queue = name  # this demo's own: whoever else works on the store leaves it alone
    settings = Settings(allow_loopback=True, embedder="auto")
    async with Perdure(store, pipelines=[documents], settings=settings) as service:
        with Server(books()) as server, Fleet(store, name, directory) as fleet:
            with screen() as audience:
                play = Play(service, fleet, server, name, books(), audience)
                try:
                    await _perform(play, audience, store)
                    report = await gather(play)
                except PerdureError as error:
                    audience.put(table(play, audience.signs))
                    audience.tell(f"perdure demo: {error} [{error.code}]", loud=True)
                    return 1
            audience.put(*written(play, report))
    for line in ("", *next_steps(play, store, keep or elsewhere)):
        audience.console.print(line, soft_wrap=True)
    if keep:
        audience.console.print(f"The workers' logs are in {directory}", soft_wrap=True)
    return 0 if report.kept else 1


async def _perform(play: Play, audience: Lines, store: str) -> None:
    audience.tell(f"store: {shown(store)}")
    await play.add()
    audience.tell(f"{len(play.books)} documents taken in, each to go through {' → '.join(STAGES)}")
    await play.start_worker()
    await play.kill_worker()
    await play.start_worker()
    await play.finish()


def _stop_on_signals() -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)


def _absolute(store: str) -> str:
    """The same store from any directory: the workers run in another one."""
    path = store.removeprefix(SQLITE)
    if path == store or not path or path.startswith((":", "/")):
        return store
    return f"{SQLITE}{Path(path).absolute()}"
