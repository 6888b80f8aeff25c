"""Real workers under test: start and end them, read their ledger, wait for what the store says.

Every process that comes from a fleet carries the fleet's directory in its environment, so none is ever lost sight of:
whatever is left is ended by its pid when the test is over, also when it failed.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import psutil

from perdure import Pipeline
from perdure.app import AsyncPerdure, Portal
from perdure.store.base import Query, Row, Steps
from perdure.store.records import Attempt, Status, Tally
from tests.faults import stages
from tests.faults.process import LOG_TAIL, PATIENCE_S, WorkerProcess, alive, stopped
from tests.faults.record import DIRECTORY_VARIABLE, WORKER_VARIABLE, Line, gate_path, read_ledger

ROOT = Path(__file__).parents[2]
LOOK_S = 0.02
SERVER_OLD_S = 10.5
LOGS_SHOWN = 8

T = TypeVar("T")


class Fleet:
    """Workers on one store, and the test's own view of it."""

    def __init__(
        self, url: str, directory: Path, server_old: bool = True, pipelines: Sequence[Pipeline] = tuple(stages.ALL)
    ) -> None:  # fmt: skip
        self.url, self.directory = url, directory
        self.server_old = server_old  # wait until the server is old enough for a missing lock to mean death
        self.workers: list[WorkerProcess] = []
        self.ids: dict[str, str] = {}  # name of a document → its id
        self.app = AsyncPerdure(url, pipelines=pipelines)
        self._portal: Portal | None = None

    def __enter__(self) -> Fleet:
        self._portal = Portal()
        try:
            self.ask(self.app.start())
            self.query("CREATE TABLE effect (document text, stage text, run text)")
            if self.server_old:
                self.wait(
                    lambda: self.ask(self.app.store.up_for_s()) >= SERVER_OLD_S, "the server to be old enough"
                )
        except BaseException:
            self._portal.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_processes()
        assert self._portal is not None
        with suppress(Exception):
            self.ask(self.app.close())
        self._portal.close()
        for worker in self.workers[-LOGS_SHOWN:]:  # pytest shows it where a test fails
            who = f"worker {worker.number} (pid {worker.pid})"
            print(f"--- {who} said at the end:\n{worker.said[-LOG_TAIL:]}")

    # --- processes -------------------------------------------------------------------------------

    def start(
        self, app: str, *, concurrency: int = 20, ready: bool = True, module: str = "perdure", **environment: str
    ) -> WorkerProcess:  # fmt: skip
        """A worker that runs `stages.{app}` (or any MODULE:APP); with `ready`, registered before this returns."""
        target = app if ":" in app else f"{stages.__name__}:{app}"
        arguments = ["-m", module, "worker", target, "--concurrency", str(concurrency)]
        worker = self.run(arguments, environment)
        if ready:
            ending = f":{worker.pid}"
            self.wait(
                lambda: any(
                    w.kind == "worker" and w.name.endswith(ending) for w in self.ask(self.app.store.workers())
                ),
                "the worker to register",
            )
        return worker

    def start_script(self, module: str) -> WorkerProcess:
        """A program of its own."""
        return self.run(["-m", module])

    def run(self, arguments: Sequence[str], environment: dict[str, str] | None = None) -> WorkerProcess:
        """Python with these arguments, as a process of this fleet."""
        number = len(self.workers)
        # the code beside these tests, whatever is installed
        path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        ours = {
            "PYTHONPATH": path, stages.STORE_VARIABLE: self.url, DIRECTORY_VARIABLE: str(self.directory),
            WORKER_VARIABLE: str(number), "PERDURE_LOG_LEVEL": "DEBUG", **(environment or {}),
        }  # fmt: skip
        log = self.directory / f"worker-{number}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=self.directory, env={**os.environ, **ours},
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        self.workers.append(WorkerProcess(self, number, process, log))
        return self.workers[-1]

    def processes(self) -> Iterator[tuple[psutil.Process, int]]:
        """Every living process that came from this fleet, with its worker's number."""
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                environment = process.environ()
                if environment.get(DIRECTORY_VARIABLE) == str(self.directory) and alive(process):
                    yield process, int(environment[WORKER_VARIABLE])

    def _end_processes(self) -> None:
        until_s = time.monotonic() + 60
        while left := list(self.processes()):
            for process, _ in left:
                with suppress(psutil.Error):
                    process.kill()
            assert time.monotonic() < until_s, f"processes that cannot be ended: {left}"
            time.sleep(LOOK_S)
        for worker in self.workers:
            worker.process.wait(90)

    def freeze(self, worker: WorkerProcess) -> list[int]:
        """SIGSTOP for every process of the worker, none of them inside a transaction; their pids."""
        pids = [process.pid for process in worker.processes]
        with self._own_turn():
            worker.signal(signal.SIGSTOP, pids)
            self.wait(lambda: all(stopped(pid) for pid in pids), "the worker to be frozen")
        return pids

    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        """On SQLite nobody else writes meanwhile. PostgreSQL ends transactions of frozen clients by itself."""
        directory: Path | None = getattr(self.app.store.driver, "directory", None)
        if directory is None:
            yield
            return
        with (directory / "turn").open("rb+") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            yield

    # --- documents -------------------------------------------------------------------------------

    def add(self, pipeline: str, texts: dict[str, str]) -> None:
        """Take documents in: name → text."""
        entries = [{"text": text, "name": name, "dedupe": False} for name, text in texts.items()]
        added = self.ask(self.app.add_many(entries, pipeline=pipeline))  # type: ignore[arg-type]
        self.ids |= {name: each.id for name, each in zip(texts, added, strict=True)}

    def status(self, name: str) -> Status:
        return self.ask(self.app.status(self.ids[name]))

    def statuses(self) -> dict[str, Status]:
        found = self.ask(self.app.documents(limit=10_000))
        return {status.name: status for status in found}

    def attempts(self, name: str) -> list[Attempt]:
        return self.ask(self.app.attempts(self.ids[name]))

    def rows(self, name: str) -> dict[str, str]:
        """What the document's stages emitted: stage (or item) → the run that did."""
        return {key["stage"]: data for key, data in self.ask(self.app.rows(self.ids[name], "effect"))}

    def effects(self) -> list[tuple[str, str, str]]:
        """The table that stages' own statements write: (document, stage, run)."""
        return [(r[0], r[1], r[2]) for r in self.query("SELECT document, stage, run FROM effect")]

    @property
    def ledger(self) -> list[Line]:
        return read_ledger(self.directory)

    def starts(self, name: str | None = None) -> list[Line]:
        return [x for x in self.ledger if x.event == "start" and name in (None, x.document)]

    def tally(self) -> Tally:
        return self.ask(self.app.store.tally())

    # --- gates -----------------------------------------------------------------------------------

    def shut(self, name: str, place: str) -> None:
        """From now on the document waits at this place."""
        gate_path(self.directory, name, place).touch()

    def open(self, name: str, place: str) -> None:
        gate_path(self.directory, name, place).unlink()

    def reached(self, name: str, place: str) -> bool:
        return any(x.document == name and x.event == place for x in self.ledger)

    # --- waiting ---------------------------------------------------------------------------------

    def wait(
        self, condition: Callable[[], Any], what: str, within_s: float = PATIENCE_S, look_s: float = LOOK_S
    ) -> float:
        """Until the condition holds; how long that took. Fails with what the store and the ledger say."""
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() - began_s > within_s:
                raise AssertionError(f"waited {within_s:g} s for {what}\n{self._state()}")
            time.sleep(look_s)
        return time.monotonic() - began_s

    def wait_until_ended(self, names: Iterable[str] | None = None, within_s: float = PATIENCE_S) -> None:
        """Until these documents (or all) are done or dead."""
        wanted = set(self.ids if names is None else names)

        def ended() -> bool:
            return all(s.state in ("done", "dead") for n, s in self.statuses().items() if n in wanted)

        self.wait(ended, "documents to end", within_s, look_s=0.1)

    def wait_until_gone(self, worker: WorkerProcess, within_s: float = 90) -> None:
        """Until no process of this worker is left."""
        self.wait(
            lambda: not worker.processes, f"the processes of worker {worker.number} to be gone", within_s
        )

    def _state(self) -> str:
        documents = [
            f"{s.name}: {s.state} at {s.stage}, attempts {s.attempts_made}, claims {s.claims}, {s.error_code}"
            for s in self.statuses().values()
            if s.state != "done"
        ]
        return "\n".join([str(self.tally()), *documents[:30], *map(str, self.ledger[-30:])])

    # --- plumbing --------------------------------------------------------------------------------

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Await it in the fleet's own event loop."""
        assert self._portal is not None, "the fleet is not open"
        return self._portal.call(work)

    def query(self, sql: str) -> list[Row]:
        def steps() -> Steps[list[Row]]:
            return (yield Query(sql))

        return self.ask(self.app.store.driver.write(steps))
