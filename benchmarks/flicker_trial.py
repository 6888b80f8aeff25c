"""For flicker.py: the service as a process, and workers on a fresh store that call it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.flickering import ELSEWHERE_VARIABLE, STORE_VARIABLE, URL_VARIABLE, calling, idle
from perdure import Perdure, Pipeline
from perdure.service import AddOptions

ROOT = Path(__file__).parents[1]
WORKERS, SLOTS = 2, 6
TRACE = bool(
    os.environ.get("FLICKER_TRACE")
)  # print each second how it stands, to find the cause of a number
Log = list[tuple[float, int]]


@contextmanager
def served() -> Iterator[str]:
    """The service as a process of its own; its address."""
    url = f"http://127.0.0.1:{free_port()}"
    port = url.rpartition(":")[2]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks/flicker_service.py"), port], env=environment()
    )
    try:
        while True:
            try:
                post(url, "forget")
                break
            except OSError:
                time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", **more}


def post(url: str, path: str, **body: object) -> bytes:
    request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        read: bytes = answer.read()
        return read


def log_of(url: str) -> Log:
    """When each request came, and what it was told."""
    return [(at_s, int(status)) for at_s, status in json.loads(post(url, "log"))]


def rates(log: Log, from_s: float, to_s: float) -> tuple[float, float]:
    """Requests and answers a second."""
    inside = [status for at_s, status in log if from_s <= at_s < to_s]
    return len(inside) / (to_s - from_s), inside.count(200) / (to_s - from_s)


@dataclass
class Ended:
    """What became of documents."""

    dead: int
    charged: int  # attempts
    put_off_s: float  # the longest time
    outcomes: Counter[str]  # of attempts

    def __str__(self) -> str:
        told = ", ".join(f"{n} {word}" for word, n in sorted(self.outcomes.items()) if word != "done")
        put_off = f"longest put off {self.put_off_s:.1f} s ({told or 'at once'})"
        return f"dead {self.dead}, charged {self.charged}, {put_off}"


class Trial:
    """Workers on a fresh store that call the service at `url`."""

    def __init__(self, store: str, url: str, directory: Path) -> None:
        self.url, self.directory = url, directory
        self.elsewhere = directory / "elsewhere"  # while it holds an address, that is called
        self.app = Perdure(store, pipelines=[calling, idle])
        self.env = environment(
            **{STORE_VARIABLE: store, URL_VARIABLE: url, ELSEWHERE_VARIABLE: str(self.elsewhere)}
        )
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Trial:
        self.app.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self) -> None:
        for number in range(WORKERS):
            log = (self.directory / f"worker-{number}.log").open("wb")
            command = [sys.executable, "-m", "perdure", "worker", "benchmarks.flickering:app"]
            command += ["--concurrency", str(SLOTS)]
            self.workers.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log))
        while sum(w.kind == "worker" for w in self.app._call(self.app.service.store.workers())) < WORKERS:
            time.sleep(0.05)
        time.sleep(1)

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait(30)
        self.app.__exit__(None, None, None)

    def add(self, count: int, org: str = "busy", pipeline: Pipeline = calling) -> list[str]:
        entries: list[AddOptions] = [{"text": f"{org} {time.time()} {n}", "org": org} for n in range(count)]
        return [one.id for one in self.app.add_many(entries, pipeline=pipeline)]

    def drain(self, longest_s: float = 900) -> float:
        """Seconds until nothing is left."""
        began_s = time.time()
        while self.left() and time.time() - began_s < longest_s:
            self.watch(0.1)
        return time.time() - began_s

    def watch(self, seconds: float) -> None:
        """Let time pass."""
        until_s, second = time.time() + seconds, int(time.time())
        while (left_s := until_s - time.time()) > 0:
            time.sleep(min(left_s, 0.1))
            if TRACE and int(time.time()) != second:
                second = int(time.time())
                self._trace()

    def _trace(self) -> None:
        live = self.app._call(self.app.service.store.live())
        for one in self.app.dependencies():
            print(
                f"{time.time() % 1000:6.1f}", one.state, one.success_share, one.limit_per_s, one.tokens, live
            )

    def left(self) -> int:
        """Documents that have not ended."""
        return sum(self.app._call(self.app.service.store.live()).values())

    def held(self) -> int:
        """Documents that wait because the service is down."""
        return sum(one.held for one in self.app.dependencies())

    def ended(self, ids: list[str], org: str = "busy") -> Ended:
        """What became of these documents; the ones that have not ended are neither dead nor charged."""
        states, ended = Counter[str](), Ended(0, 0, 0.0, Counter())
        for id_ in ids:
            status = self.app.status(id_, org=org)
            states[status.state] += 1
            ended.charged += max(0, status.attempts_made - 1)
            for attempt in self.app.attempts(id_, org=org):
                ended.outcomes[attempt.outcome] += 1
                ended.put_off_s = max(ended.put_off_s, (attempt.delay_ms or 0) / 1000)
        ended.dead = states["dead"]
        return ended
