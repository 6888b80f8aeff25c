"""A service that fails now and then: `python benchmarks/flicker.py [--only WORDS] [--store sqlite,postgres]`.

Real workers (two, six documents at a time each) and a real service on loopback, beside a plain loop with the same
slots, full jitter and Retry-After that repeats each call until it succeeds. Prints a line for each:

    share      independent failures (503) of 5, 20, 35, 50 and 80 %, and 25 % with 5 % "too many requests"
    overload   the service refuses what is beyond its capacity for a while
    outage     nothing is answered for 40 s: refused, hanging, reset, truncated, without a name
    tenants    latency of an organisation whose documents call nobody, beside one whose service flickers
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx2

from benchmarks.flickering import BACKOFF, CALLS, STORE_VARIABLE, URL_VARIABLE, Caller, calling, idle
from perdure import Perdure
from perdure.operate.simulate.backlog import drain, flickering, median, pressed
from perdure.operate.simulate.model import Model
from tests.conftest import database_url, postgres_database, postgres_server

ROOT = Path(__file__).parents[1]
WORKERS, SLOTS = 2, 6
DOCUMENTS = 100
TRACE = bool(os.environ.get("FLICKER_TRACE"))
OUTAGE_S = 40.0
Log = list[tuple[float, int]]


@contextmanager
def served() -> Iterator[str]:
    """The service as a process of its own; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "benchmarks/flickering.py"), str(port)], env=environment()
    )
    url = f"http://127.0.0.1:{port}"
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


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", **more}


def post(url: str, path: str, **body: object) -> bytes:
    request = urllib.request.Request(f"{url}/{path}", json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=10) as answer:
        read: bytes = answer.read()
        return read


def log_of(url: str) -> Log:
    return [(at_s, status) for at_s, status in json.loads(post(url, "log"))]


class Trial:
    """Workers on a fresh store that call the service at `url`."""

    def __init__(self, store: str, url: str, directory: Path) -> None:
        self.url, self.directory = url, directory
        self.nameless = directory / "nameless"
        self.app = Perdure(store, pipelines=[calling, idle])
        self.env = environment(
            **{STORE_VARIABLE: store, URL_VARIABLE: url, "FLICKER_NAMELESS": str(self.nameless)}
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

    def add(self, count: int, org: str = "busy", pipeline: object = calling) -> list[str]:
        entries = [{"text": f"{org} {time.time()} {n}", "org": org} for n in range(count)]
        added = self.app.add_many(entries, pipeline=pipeline)  # type: ignore[arg-type]
        return [one.id for one in added]

    def drain(self, longest_s: float = 900, look: Callable[[], None] | None = None) -> float:
        """Seconds until nothing is left."""
        began_s = time.time()
        while self.left() and time.time() - began_s < longest_s:
            time.sleep(0.1)
            if look is not None:
                look()
            if os.environ.get("FLICKER_TRACE") and int(time.time() * 10) % 10 == 0:
                (one,) = [d for d in self.app.dependencies() if d.name == "flicker"]
                live = self.app._call(self.app.service.store.live())
                print(
                    f"{time.time() - began_s:6.1f}",
                    one.state,
                    one.success_share,
                    one.limit_per_s,
                    one.tokens,
                    live,
                )
        return time.time() - began_s

    def trace(self) -> None:
        """Print how it stands, to find the cause of a number."""
        for one in self.app.dependencies():
            live = self.app._call(self.app.service.store.live())
            print(
                f"{time.time() % 1000:6.1f}", one.state, one.success_share, one.limit_per_s, one.tokens, live
            )

    def left(self) -> int:
        return sum(self.app._call(self.app.service.store.live()).values())

    def ended(self, ids: list[str], org: str = "busy") -> str:
        states, outcomes, longest_ms, charged = Counter[str](), Counter[str](), 0, 0
        for id_ in ids:
            status = self.app.status(id_, org=org)
            states[status.state] += 1
            charged += max(0, status.attempts_made - 1)
            for attempt in self.app.attempts(id_, org=org):
                outcomes[attempt.outcome] += 1
                longest_ms = max(longest_ms, attempt.delay_ms or 0)
        told = ", ".join(f"{n} {word}" for word, n in sorted(outcomes.items()) if word != "done")
        put_off = f"longest put off {longest_ms / 1000:.1f} s ({told or 'at once'})"
        return f"dead {states['dead']}, charged {charged}, {put_off}"


# --- beside it: a plain loop -----------------------------------------------------------------------


def plain(url: str, documents: int) -> float:
    """Seconds for the same calls, with the same slots, from one process."""
    os.environ[URL_VARIABLE] = url

    async def run() -> None:
        caller, left = Caller(), list(range(documents))

        async def call() -> None:
            tried = 0
            while True:
                wait_s = 0.0
                try:
                    await caller.ask()
                    return
                except httpx2.HTTPStatusError as error:
                    wait_s = float(error.response.headers.get("retry-after") or 0)
                except httpx2.HTTPError:
                    pass
                await asyncio.sleep(max(wait_s, BACKOFF.delay_s(tried, random.random)))
                tried += 1

        async def slot() -> None:
            while left:
                left.pop()
                for _ in range(CALLS):
                    await call()

        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS * SLOTS):
                group.create_task(slot())

    began_s = time.time()
    asyncio.run(run())
    return time.time() - began_s


# --- what is measured --------------------------------------------------------------------------------

SHARES: dict[str, dict[str, object]] = {
    "5 %": {"failing": 0.05}, "20 %": {"failing": 0.2}, "35 %": {"failing": 0.35}, "50 %": {"failing": 0.5},
    "80 %": {"failing": 0.8}, "25 % and 5 % 429": {"failing": 0.25, "throttling": 0.05},
    "5 % 429 after 1 s": {"throttling": 0.05, "after": "1"},
}  # fmt: skip


def share(word: str, store_name: str, store: str, url: str, directory: Path) -> None:
    post(url, "faults", **SHARES[word])
    post(url, "forget")
    plain_s = plain(url, DOCUMENTS)
    plain_requests = len(log_of(url))
    with Trial(store, url, directory) as trial:
        post(url, "forget")
        ids = trial.add(DOCUMENTS)
        took_s = trial.drain()
        requests, ended = len(log_of(url)), trial.ended(ids)
    print(
        f"share     {store_name:9} {word:17} plain {plain_s:6.1f} s {plain_requests:5} requests | "
        f"ours {took_s:6.1f} s {requests:5} requests, {took_s / plain_s:.2f} x | {ended}",
        flush=True,
    )
    if not SHARES[word].keys() - {"failing"}:
        failing = float(str(SHARES[word]["failing"]))
        played(flickering(DOCUMENTS, CALLS, failing), loop_s=plain_s, took_s=took_s, requests=requests)


def played(model: Model, **measured: float) -> None:
    """Print what the laboratory says beside what was measured."""
    found = median([drain(model, seed) for seed in range(15)])
    beside = (
        f"{name} {lab:.2f} ({lab / value:.2f} of it)"
        for name, value in measured.items()
        if value and (lab := found[name]) is not None
    )
    print(f"          laboratory: {', '.join(beside)}", flush=True)


def rates(log: Log, from_s: float, to_s: float) -> tuple[float, float]:
    """Requests and answers a second."""
    inside = [status for at_s, status in log if from_s <= at_s < to_s]
    return len(inside) / (to_s - from_s), inside.count(200) / (to_s - from_s)


def watch(trial: Trial, seconds: int) -> None:
    """Let time pass."""
    for _ in range(seconds):
        time.sleep(1)
        if TRACE:
            trial.trace()


def overload(store_name: str, store: str, url: str, directory: Path, capacity: float = 20.0) -> None:
    post(url, "faults")
    with Trial(store, url, directory) as trial:
        post(url, "forget")
        trial.add(1_000)
        time.sleep(8)
        began_s = time.time()
        post(url, "faults", capacity=capacity)
        watch(trial, 30)
        over_s = time.time()
        post(url, "faults")
        watch(trial, 12)
        log = log_of(url)
    before = rates(log, began_s - 5, began_s)[1]
    asked, answered = rates(log, began_s, over_s)
    settled = rates(log, began_s + 5, over_s)
    back = next(
        (n / 2 for n in range(24) if rates(log, over_s + n / 2, over_s + n / 2 + 1)[1] >= 0.9 * before), None
    )
    print(
        f"overload  {store_name:9} usual {before:.0f}/s, capacity {capacity:.0f}/s for 30 s: "
        f"asked {asked / capacity:.2f}, answered {answered / capacity:.2f} of it "
        f"(after 5 s {settled[0] / capacity:.2f}, {settled[1] / capacity:.2f}); back at 0.9 of usual after {back} s",
        flush=True,
    )
    measured = {"asked": asked / capacity, "answered": answered / capacity, "back_s": back or 0.0}
    played(pressed(1_000, CALLS, capacity, 30.0), **measured)


def outage(mode: str, store_name: str, store: str, url: str, directory: Path) -> None:
    post(url, "faults")
    with Trial(store, url, directory) as trial:
        post(url, "forget")
        ids = trial.add(400)
        time.sleep(8)
        began_s = time.time()
        if mode == "nameless":
            trial.nameless.touch()
        else:
            post(url, "faults", mode=mode)
        time.sleep(OUTAGE_S)
        held = sum(d.held for d in trial.app.dependencies())
        post(url, "faults")
        trial.nameless.unlink(missing_ok=True)
        over_s = time.time()
        trial.drain(200)
        end_s = time.time()
        log, ended = log_of(url), trial.ended(ids)
    usual = rates(log, began_s - 5, began_s)[1]
    first = next((at_s for at_s, status in log if at_s > over_s and status == 200), end_s)
    drained = rates(log, first + 8, end_s)[1] if end_s > first + 9 else 0.0
    asked = sum(began_s <= at_s < over_s for at_s, _ in log)
    print(
        f"outage    {store_name:9} {mode:9} asked {asked:4} times in {OUTAGE_S:.0f} s, {held} held; first answer "
        f"{first - over_s:.1f} s after its end, from 8 s on {drained:.0f}/s where {usual:.0f}/s were usual, "
        f"all done after {end_s - over_s:.1f} s | {ended}",
        flush=True,
    )


def tenants(store_name: str, store: str, url: str, directory: Path) -> None:
    found = []
    for failing in (0.0, 0.5):
        post(url, "faults", failing=failing)
        with Trial(store, url, directory) as trial:
            trial.add(200)
            time.sleep(3)
            waits = []
            for _ in range(40):
                (id_,) = trial.add(1, "quiet", idle)
                began_s = time.time()
                while trial.app.status(id_, org="quiet").state != "done":
                    time.sleep(0.005)
                waits.append(time.time() - began_s)
                time.sleep(0.1)
            found.append(statistics.quantiles(waits, n=20))
            trial.drain()
    told = [f"median {q[9] * 1000:.0f} ms, p95 {q[18] * 1000:.0f} ms" for q in found]
    print(
        f"tenants   {store_name:9} beside a healthy service {told[0]}; beside 50 % failures {told[1]}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--store", default="sqlite,postgres")
    chosen = parser.parse_args()
    parts: list[tuple[str, Callable[..., None]]] = [
        *((f"share {word}", lambda *a, word=word: share(word, *a)) for word in SHARES),
        ("overload", overload),
        *((f"outage {mode}", lambda *a, mode=mode: outage(mode, *a)) for mode in MODES),
        ("tenants", tenants),
    ]
    with ExitStack() as stack:
        url = stack.enter_context(served())
        server = stack.enter_context(postgres_server()) if "postgres" in chosen.store else None
        for name, measure in parts:
            if not any(word in name for word in chosen.only.split(",")):
                continue
            with tempfile.TemporaryDirectory() as folder:
                if "sqlite" in chosen.store:
                    measure("sqlite", f"sqlite:///{folder}/perdure.db", url, Path(folder))
                if server is not None:
                    with postgres_database(server) as database:
                        measure("postgres", database_url(server, database), url, Path(folder))


MODES = ("outage", "hang", "reset", "truncate", "nameless")

if __name__ == "__main__":
    main()
