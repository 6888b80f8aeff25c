"""How nineteen polite organisations fare beside a hostile one: `python benchmarks/tenants.py --times 3`.

Each kind of harm has a fresh store, and a real `perdure serve --no-worker` and `perdure worker` with default settings.
Polite organisations add a small document at a steady pace, look until it is done, and search. They do so for a while
alone and then beside the hostile one (`tenants_harm.py`), on the same server, so that other load of the machine falls
on both.
Prints P50 and P95 of both, and P95 as a multiple, which is to be at most 2; at the end the medians of all repetitions.

An error or a document that is not done in 30 s counts as 30 s. The polite load runs at the priority of the server, or
its own waits would count; its lag is printed. The hostile load runs behind everything else (`--nice`): on a machine of
its own it would take nothing from the server. `cpu` is the share of all cores that server, worker and children took.
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
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
import psutil
import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.api.served import new_key
from tests.conftest import database_url, postgres_database, postgres_server
from tests.ports import free_ports

ROOT = Path(__file__).parents[1]
LOAD = Path(__file__).with_name("tenants_load.py")
PHASES = ("flood", "large", "bombs", "slow", "streams", "readers", "all")
MEASURES = ("add", "done", "search", "status")
POLITE = 19
Said = dict[str, Any]
Asked = argparse.Namespace
Processes = list[psutil.Process]
Popen = subprocess.Popen[bytes]
LEAD_S = 3.0  # before the first document that is measured
LOG_FILES = 40  # of 16 MB
WARM_S = 8.0  # for the first documents, which load the models


@contextmanager
def serving(store: str, log: Path) -> Iterator[tuple[str, Processes]]:
    """`perdure serve --no-worker` and `perdure worker` with default settings, until the block ends."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    given = {**os.environ, "PERDURE_STORE": store, "PERDURE_LOG_LEVEL": "ERROR"}
    started = []
    try:
        with log.open("ab") as file:
            for command in (["serve", "--no-worker", "--port", str(port)], ["worker"]):
                whole = [sys.executable, "-m", "perdure", *command]
                started.append(subprocess.Popen(whole, cwd=log.parent, env=given, stdout=file, stderr=file))
        for _ in range(600):
            with suppress(httpx2.HTTPError, KeyError):
                if httpx2.get(f"{url}/readyz", timeout=10).json()["workers_alive"]:
                    break
            time.sleep(0.1)
        yield url, [psutil.Process(process.pid) for process in started]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(60)


def load(kind: str, **facts: Any) -> Popen:
    """Start it and wait until it is ready, however long its imports take."""
    command = [sys.executable, str(LOAD), kind, json.dumps(facts)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def spent_s(processes: Processes) -> float:
    """CPU time of the processes and their children, those that ended too."""
    total = 0.0
    for one in (each for process in processes for each in (process, *process.children(recursive=True))):
        with suppress(psutil.Error):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def window(url: str, server: Processes, keys: list[str], harm: Popen | None, asked: Asked) -> Said:
    """Run the polite ones for a while, from the first measured document on beside the harm; what they measured."""
    facts = {
        "url": url,
        "pace_s": asked.pace,
        "lead_s": LEAD_S,
        "seconds": asked.seconds,
        "keys": keys,
        "nice": 0,
    }
    own = load("polite", **facts)
    assert own.stdout is not None
    assert own.stdout.readline() == b"measuring\n"
    began_s, before_s = time.monotonic(), spent_s(server)
    if harm is not None:
        assert harm.stdin is not None
        harm.stdin.write(b"go\n")
        harm.stdin.flush()
    said: Said = json.loads(own.communicate(timeout=asked.seconds + 120)[0])
    said["cpu"] = (spent_s(server) - before_s) / (time.monotonic() - began_s) / (psutil.cpu_count() or 1)
    said["counts"] = json.loads(harm.communicate(timeout=120)[0])["counts"] if harm is not None else {}
    return said


def pair(store: str, directory: Path, harm: str, asked: Asked) -> tuple[Said, Said]:
    """A quiet window and a hostile one of the same server, one right after the other."""
    keys = [new_key(store, f"polite-{n}") for n in range(POLITE)]
    enemy = new_key(store, "hostile")
    with serving(store, directory / "serve.log") as (url, server):
        warm = load("polite", url=url, keys=keys, lead_s=0, seconds=WARM_S, pace_s=asked.pace, nice=0)
        beside = load("hostile", url=url, keys=[enemy], seconds=asked.seconds + 1, harm=harm, nice=asked.nice)
        warm.communicate(timeout=300)
        quiet = window(url, server, keys, None, asked)
        found = window(url, server, keys, beside, asked)
        found["server_mb"] = server[0].memory_info().rss >> 20
    return quiet, found


def p(samples: list[float], share: float) -> float:
    ordered = sorted(samples) or [float("nan")]
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


def ratio(quiet: Said, found: Said, what: str) -> float:
    return p(found["samples"][what], 0.95) / p(quiet["samples"][what], 0.95)


def show(store: str, harm: str, quiet: Said, found: Said) -> None:
    """Print one pair: P50/P95 in quiet, P50/P95 beside the harm, multiple of P95."""
    columns = []
    for what in MEASURES:
        one, other = quiet["samples"][what], found["samples"][what]
        columns.append(
            f"{what} {p(one, 0.5):.0f}/{p(one, 0.95):.0f} {p(other, 0.5):.0f}/{p(other, 0.95):.0f}"
            f" {ratio(quiet, found, what):.2f}x"
        )
    errors = ", ".join(f"{number} {what}" for what, number in found["errors"].items()) or "none"
    print(f"{store:8} {harm:8} {' | '.join(columns)} | errors {errors}", flush=True)
    counts = ", ".join(f"{number} {what}" for what, number in sorted(found["counts"].items()))
    lags = f"{p(quiet['samples']['lag'], 0.95):.0f}/{p(found['samples']['lag'], 0.95):.0f}"
    cpu = f"{quiet['cpu'] * 100:.0f}/{found['cpu'] * 100:.0f}"
    documents = f"{len(quiet['samples']['done'])}/{len(found['samples']['done'])}"
    print(
        f"{'':17} documents {documents}, lag P95 {lags} ms, cpu {cpu} %, server {found['server_mb']} MB; "
        f"hostile: {counts}", flush=True,
    )  # fmt: skip


def summary(pairs: dict[tuple[str, str], list[tuple[Said, Said]]]) -> None:
    """Print the table of medians over all pairs."""
    print(
        "\n| store | harm | documents | quiet P50 / P95 | beside it P50 / P95 | P95, multiple | add | search | status |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for (store, harm), found in pairs.items():
        times = []
        for which in zip(*found, strict=True):  # all quiet ones, then all others
            middle, late = (
                median([p(one["samples"]["done"], share) for one in which]) for share in (0.5, 0.95)
            )
            times.append(f"{middle:.0f} / {late:.0f} ms")
        ratios = [
            f"{median([ratio(*one, what) for one in found]):.2f}"
            for what in ("done", "add", "search", "status")
        ]
        number = sum(len(one["samples"]["done"]) for each in found for one in each)
        print(f"| {store} | {harm} | {number} | {' | '.join(times)} | {' | '.join(ratios)} |")


def use_log(server: str) -> None:
    """Make the server write its log once around, as one has that is not new: to make a file of it takes 40 ms, in
    which nobody can commit; a file that was written before is used again."""
    with psycopg.connect(server, autocommit=True) as connection:
        for _ in range(LOG_FILES):
            connection.execute("SELECT pg_logical_emit_message(false, 'perdure', 'x')")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")
    os.sync()


@contextmanager
def fresh(kind: str, server: str, directory: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{directory}/perdure.db"
    else:
        with postgres_database(server) as name:
            yield database_url(server, name)


def measure(kind: str, server: str, harm: str, asked: Asked) -> tuple[Said, Said]:
    with (
        tempfile.TemporaryDirectory(dir=asked.dir) as directory,
        fresh(kind, server, Path(directory)) as store,
    ):
        quiet, found = pair(store, Path(directory), harm, asked)
        show(kind, harm, quiet, found)
        if asked.log:
            print((Path(directory) / "serve.log").read_text()[-4000:])
    return quiet, found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument(
        "--pace", type=float, default=2.5, help="Seconds between two documents of an organisation."
    )
    parser.add_argument("--nice", type=int, default=10, help="How far the hostile load stands behind.")
    parser.add_argument("--store", choices=["sqlite", "postgres", "both"], default="both")
    parser.add_argument("--phases", default=",".join(PHASES), help="Kinds of harm.")
    parser.add_argument(
        "--times", type=int, default=1, help="How often everything is done; medians are printed."
    )
    parser.add_argument("--dir", help="Where stores are made; by default among the temporary files.")
    parser.add_argument("--log", action="store_true", help="Print the end of the server's log.")
    asked = parser.parse_args()
    print(f"P50/P95 in ms, quiet and beside the harm; {asked.seconds:g} s each, {POLITE} organisations")
    stores = ("sqlite", "postgres") if asked.store == "both" else (asked.store,)
    pairs: dict[tuple[str, str], list[tuple[Said, Said]]] = {}
    with postgres_server() if "postgres" in stores else nullcontext("") as server:
        if server:
            use_log(server)
        for _ in range(asked.times):
            for kind in stores:
                for harm in asked.phases.split(","):
                    pairs.setdefault((kind, harm), []).append(measure(kind, server, harm, asked))
    summary(pairs)


if __name__ == "__main__":
    main()
