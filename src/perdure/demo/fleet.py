"""The demo's workers: real `perdure worker` processes, ended when the demo ends, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from perdure.demo.turnstile import FILE_VARIABLE, WORKER_VARIABLE
from perdure.errors import PerdureError

CONCURRENCY = 3
#: The queue of this demo, for `library`.
RUN_VARIABLE = "PERDURE_DEMO_RUN"
#: Of its workers: its server is on this machine, no service is asked for vectors, and nobody waits for them to stop.
#: Without a sandbox, because its readers write down each page that they open (`turnstile`).
SETTINGS = {
    "PERDURE_SANDBOX": "off",
    "PERDURE_ALLOW_LOOPBACK": "true", "PERDURE_EMBEDDER": "auto", "PERDURE_LOG_LEVEL": "INFO", "PERDURE_GRACE_S": "1",
}  # fmt: skip
STOP_S = 8.0
TAIL = 5


class WorkerFailed(PerdureError):
    """A worker of the demo ended by itself; the message has the end of its log."""

    code = "demo_worker_failed"


@dataclass(frozen=True, slots=True)
class DemoWorker:
    """A started worker."""

    number: int
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """WorkerFailed if it is not running any more."""
        if self.process.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL:])
            raise WorkerFailed(
                f"worker {self.number} ended by itself, status {self.process.returncode}:\n{tail}"
            )


class Fleet:
    """Starts and kills workers of one demo."""

    def __init__(self, store: str, run: str, directory: Path) -> None:
        self.directory = directory
        self.turnstile = directory / "pages-read.txt"
        self.workers: list[DemoWorker] = []
        self._environment = {
            **os.environ, **SETTINGS, "PERDURE_STORE": store, RUN_VARIABLE: run, FILE_VARIABLE: str(self.turnstile),
            "TMPDIR": str(directory),  # whoever is killed leaves something lying about
        }  # fmt: skip
        if "PYTHONPATH" in os.environ:  # the workers run in another directory
            parts = os.environ["PYTHONPATH"].split(os.pathsep)
            self._environment["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in parts)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> DemoWorker:
        """One more worker."""
        number = len(self.workers) + 1
        log = self.directory / f"worker-{number}.log"
        command = [sys.executable, "-m", "perdure", "worker", "perdure.demo.library:app"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*command, "--concurrency", str(CONCURRENCY)],
                cwd=self.directory,
                env={**self._environment, WORKER_VARIABLE: str(number)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C is for the demo, which ends them
            )
        self.workers.append(DemoWorker(number, process, log))
        return self.workers[-1]

    def kill(self, worker: DemoWorker) -> None:
        """SIGKILL: no goodbye, no tidying up."""
        worker.process.send_signal(signal.SIGKILL)
        worker.process.wait()

    def check(self) -> None:
        """WorkerFailed if one ended that nobody killed."""
        for worker in self.workers:
            if worker.process.returncode != -signal.SIGKILL:
                worker.check()

    def stop(self) -> None:
        """Gently, then not."""
        running = [worker for worker in self.workers if worker.process.poll() is None]
        for worker in running:
            worker.process.terminate()
        for worker in running:
            try:
                worker.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
