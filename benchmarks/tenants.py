"""How nineteen polite organisations fare beside a hostile one: `python benchmarks/tenants.py --seconds 30`.

Each phase has a fresh store and a real `perdure serve` with its worker and default settings. Polite organisations add a
small document every few seconds, wait until it is done, search and read its status. The hostile one does in each phase
another kind of harm, see `tenants_load.py`. Prints P50, P95 and the longest wait of the polite ones, their errors, and
P95 as a multiple of the quiet phase, which is to be at most 2.

The polite load runs at the priority of the server, or its own waits would count; its lag is printed. The hostile load
runs behind everything else (`--nice`). `cpu` is what server, worker and their children took of all cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.api.served import new_key
from tests.conftest import database_url, postgres_database, postgres_server
from tests.ports import free_ports

ROOT = Path(__file__).parents[1]
LOAD = Path(__file__).with_name("tenants_load.py")
PHASES = ("quiet", "flood", "large", "bombs", "slow", "streams", "all")
MEASURES = ("add", "done", "search", "status")
POLITE = 19
WARM_S = 8.0  # for the first documents, which load the models


@contextmanager
def serving(store: str, log: Path) -> Iterator[tuple[str, psutil.Process]]:
    """`perdure serve` with default settings, until the block ends."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "perdure", "serve", "--port", str(port)]
    given = {**os.environ, "PERDURE_STORE": store, "PERDURE_LOG_LEVEL": "ERROR"}
    with log.open("ab") as file:
        process = subprocess.Popen(command, cwd=log.parent, env=given, stdout=file, stderr=file)
    try:
        for _ in range(600):
            with suppress(httpx2.HTTPError):
                if httpx2.get(f"{url}/readyz", timeout=10).json()["workers_alive"]:
                    break
            time.sleep(0.1)
        yield url, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


def load(kind: str, **facts: Any) -> subprocess.Popen[bytes]:
    """Start it; it begins now, however long its imports took."""
    command = [sys.executable, str(LOAD), kind, json.dumps(facts)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def spent_s(process: psutil.Process) -> float:
    """CPU time of the process and its children, those that ended too."""
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def phase(store: str, directory: Path, name: str, asked: argparse.Namespace) -> dict[str, Any]:
    """Run a phase; what the polite ones measured."""
    keys = [new_key(store, f"polite-{n}") for n in range(POLITE)]
    enemy = new_key(store, "hostile")
    with serving(store, directory / "serve.log") as (url, server):
        warm = load("polite", url=url, keys=keys, seconds=WARM_S, pace_s=asked.pace, nice=0)
        warm.communicate(timeout=300)
        began_s, before_s = time.monotonic(), spent_s(server)
        facts = {"url": url, "seconds": asked.seconds, "pace_s": asked.pace}
        harm = load("hostile", **facts, keys=[enemy], harm=name, nice=asked.nice) if name != "quiet" else None
        if harm is not None:
            time.sleep(1)  # the harm is there first
        own = load("polite", **facts, keys=keys, nice=0)
        said = json.loads(own.communicate(timeout=asked.seconds + 300)[0])
        took_s = time.monotonic() - began_s
        said["cpu"] = (spent_s(server) - before_s) / took_s / (psutil.cpu_count() or 1)
        said["counts"] = json.loads(harm.communicate(timeout=300)[0])["counts"] if harm is not None else {}
        rss = [one.memory_info().rss for one in (server,)]
        said["server_mb"] = rss[0] / (1 << 20)
    return dict(said)


def p(samples: list[float], share: float) -> float:
    ordered = sorted(samples) or [float("nan")]
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


def show(store: str, name: str, said: dict[str, Any], quiet: dict[str, Any]) -> None:
    columns = []
    for what in MEASURES:
        found, base = said["samples"][what], p(quiet["samples"][what], 0.95)
        columns.append(
            f"{what} {p(found, 0.5):5.0f} {p(found, 0.95):6.0f} {p(found, 1):6.0f} {p(found, 0.95) / base:5.2f}x"
        )
    errors = ", ".join(f"{number} {what}" for what, number in said["errors"].items()) or "none"
    print(f"{store:8} {name:8} {' | '.join(columns)} | errors {errors}", flush=True)
    counts = ", ".join(f"{number} {what}" for what, number in sorted(said["counts"].items()))
    print(
        f"{'':17} lag P95 {p(said['samples']['lag'], 0.95):.0f} ms, cpu {said['cpu'] * 100:.0f} %, "
        f"server {said['server_mb']:.0f} MB; hostile: {counts or 'nothing'}",
        flush=True,
    )


@contextmanager
def fresh(kind: str, server: str, directory: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{directory}/perdure.db"
    else:
        with postgres_database(server) as name:
            yield database_url(server, name)


def measure(kind: str, server: str, asked: argparse.Namespace) -> None:
    quiet: dict[str, Any] = {}
    for name in asked.phases.split(","):
        with (
            tempfile.TemporaryDirectory(dir=asked.dir) as directory,
            fresh(kind, server, Path(directory)) as store,
        ):
            said = phase(store, Path(directory), name, asked)
            log = (Path(directory) / "serve.log").read_text()
            quiet = quiet or said
            show(kind, name, said, quiet)
            if asked.log:
                print(log[-4000:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument(
        "--pace", type=float, default=1.5, help="Seconds between two documents of an organisation."
    )
    parser.add_argument("--nice", type=int, default=10, help="How far the hostile load stands behind.")
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument(
        "--phases", default=",".join(PHASES), help="Begins with quiet, to which others are compared."
    )
    parser.add_argument("--dir", help="Where stores are made; by default among the temporary files.")
    parser.add_argument("--log", action="store_true", help="Print the end of the server's log.")
    asked = parser.parse_args()
    print(
        f"P50, P95 and longest wait in ms, P95 as a multiple of quiet; {asked.seconds:g} s each, {POLITE} organisations"
    )
    if asked.store in ("sqlite", "both"):
        measure("sqlite", "", asked)
    if asked.store in ("postgres", "both"):
        with postgres_server() as server:
            measure("postgres", server, asked)


if __name__ == "__main__":
    main()
