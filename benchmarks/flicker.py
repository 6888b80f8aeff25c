"""A service that fails now and then: `python benchmarks/flicker.py [--check] [--only WORDS] [--store sqlite,postgres]`.

Real workers (two, six documents at a time each) and a real service on loopback, beside a plain loop with the same
slots, full jitter and Retry-After that repeats each call until it succeeds. Prints a line for each, and a line for each
bound that it misses; with `--check` it names these once more at the end and exits with 1:

    share      independent failures (503) of 5, 20, 35, 50 and 80 %, and "too many requests" with and without a time
    overload   for 30 s the service refuses what is beyond its capacity, or collapses: its answers get slower
    outage     nothing is answered for 40 s: refused, hanging, reset, truncated, without a name, a byte a second
    tenants    latency of an organisation whose documents call nobody, beside one whose service flickers

Below a share, an overload that refuses and an outage stands what the laboratory (`perdure simulate`) says.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.flicker_bounds import Bounds
from benchmarks.flicker_figures import LOOKED_S, Outage, Overloaded, Quiet
from benchmarks.flicker_loop import fails_after, plain
from benchmarks.flicker_service import LATENCY_S
from benchmarks.flicker_trial import SLOTS, WORKERS, Trial, free_port, log_of, post, rates, served
from benchmarks.flickering import CALLS, ELSEWHERE_VARIABLE, URL_VARIABLE, idle
from perdure.operate.simulate.backlog import away, flickering, pressed
from tests.conftest import database_url, postgres_database, postgres_server

DOCUMENTS = 100
CAPACITY, CROWD = 20.0, 4  # requests a second in an overload; worked on at a time, by one that collapses
CALM_S, OVERLOAD_S, OUTAGE_S = 8, 30, 40
SAMPLES, BUSY_LEAST, BUSY_MORE = 200, 40, 100

SHARES: dict[str, dict[str, float]] = {
    "5 %": {"failing": 0.05}, "20 %": {"failing": 0.2}, "35 %": {"failing": 0.35}, "50 %": {"failing": 0.5},
    "80 %": {"failing": 0.8}, "25 % and 5 % 429": {"failing": 0.25, "throttling": 0.05},
    "5 % 429 after 1 s": {"throttling": 0.05, "after": 1},
}  # fmt: skip
OVERLOADS: dict[str, dict[str, float]] = {
    "refuse": {"capacity": CAPACITY}, "collapse": {"slots": CROWD},
}  # fmt: skip
NOWHERE = "http://no-such-host.invalid"
MODES = ("refused", "hang", "reset", "truncate", "nameless", "trickle")


class Benchmark:
    """The parts, on one store after the other."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bounds = Bounds()

    # --- independent failures ---------------------------------------------------------------------------

    def share(self, word: str, store_name: str, store: str, directory: Path) -> None:
        """All documents while a share of the requests fails, however few these are."""
        failing, throttling, after_s = (
            SHARES[word].get(key, 0.0) for key in ("failing", "throttling", "after")
        )
        self.faults(failing=failing, throttling=throttling, after=f"{after_s:g}" if after_s else "")
        post(self.url, "forget")
        plain_s = plain(self.url, DOCUMENTS, WORKERS * SLOTS)
        plain_requests = len(log_of(self.url))
        with Trial(store, self.url, directory) as trial:
            post(self.url, "forget")
            ids = trial.add(DOCUMENTS)
            took_s = trial.drain()
            requests, ended = len(log_of(self.url)), trial.ended(ids)
        print(
            f"share     {store_name:9} {word:17} plain {plain_s:6.1f} s {plain_requests:5} requests | "
            f"ours {took_s:6.1f} s {requests:5} requests, {took_s / plain_s:.2f} x | {ended}",
            flush=True,
        )
        what, look = f"share {word} {store_name}", self.bounds
        look.most(f"{what}, time of the plain loop's", took_s / plain_s, 1.3 if failing <= 0.5 else 2.0)
        look.most(f"{what}, dead", ended.dead, 0)
        if failing <= 0.5:
            look.most(f"{what}, attempts charged", ended.charged, 0)
        look.most(f"{what}, seconds put off", ended.put_off_s, max(10.0, 1.1 * after_s))
        measured = {"loop_s": plain_s, "took_s": took_s, "requests": requests, "put_off_s": ended.put_off_s}
        if throttling:
            measured["rest_s"] = took_s
        look.played(what, flickering(DOCUMENTS, CALLS, failing, WORKERS, throttling, after_s), measured)

    # --- more than it bears -----------------------------------------------------------------------------

    def overload(self, kind: str, store_name: str, store: str, directory: Path) -> None:
        """The service bears a third of the usual for a while."""
        told: list[float] = []

        def press() -> None:
            told[:] = self.press(kind, time.sleep)

        self.faults()
        post(self.url, "forget")
        plain(self.url, 1_000, WORKERS * SLOTS, until=press)
        loop = Overloaded(log_of(self.url), CAPACITY, *told)
        self.faults()
        with Trial(store, self.url, directory) as trial:
            post(self.url, "forget")
            trial.add(1_000)
            told = self.press(kind, trial.watch)
            ours = Overloaded(log_of(self.url), CAPACITY, *told)
        print(
            f"overload  {store_name:9} {kind:9} {CAPACITY:.0f}/s for {OVERLOAD_S} s | plain {loop} | ours {ours}",
            flush=True,
        )
        what = f"overload {kind} {store_name}"
        self.bounds.most(f"{what}, load of the capacity", ours.asked, 1.2)
        self.bounds.least(f"{what}, goodput of the capacity", ours.answered, 0.9)
        self.bounds.most(f"{what}, seconds until it is used as before", ours.back_s, 5.0)
        if kind == "refuse":
            measured = {"asked": ours.asked, "answered": ours.answered, "loop_asked": loop.asked}
            model = pressed(1_000, CALLS, CAPACITY, OVERLOAD_S, WORKERS)
            self.bounds.played(what, model, {**measured, "back_s": ours.back_s})

    def press(self, kind: str, wait: Callable[[float], None]) -> list[float]:
        """Usual times, the overload, usual times; when it began and ended."""
        wait(CALM_S)
        began_s = time.time()
        self.faults(**OVERLOADS[kind])
        wait(OVERLOAD_S)
        over_s = time.time()
        self.faults()
        wait(LOOKED_S)
        return [began_s, over_s]

    # --- nobody is answered -----------------------------------------------------------------------------

    def outage(self, mode: str, store_name: str, store: str, directory: Path) -> None:
        """Documents wait until the service is back, and go on."""
        self.faults()
        with Trial(store, self.url, directory) as trial:
            post(self.url, "forget")
            ids = trial.add(400)
            trial.watch(CALM_S)
            began_s = time.time()
            self.fail(mode, trial)
            os.environ |= {URL_VARIABLE: self.url, ELSEWHERE_VARIABLE: str(trial.elsewhere)}
            fails_s = fails_after()
            trial.watch(began_s + OUTAGE_S - time.time())
            held, left = trial.held(), trial.left()
            trial.elsewhere.unlink(missing_ok=True)
            self.faults()
            over_s = time.time()
            trial.drain(200)
            # the last documents leave slots empty
            found = Outage(log_of(self.url), began_s, over_s, time.time(), tail_s=LATENCY_S * CALLS)
            ended = trial.ended(ids)
        print(
            f"outage    {store_name:9} {mode:9} for {OUTAGE_S} s, calls fail after {fails_s:.2f} s, "
            f"{held} of {left} held, {found} | {ended}",
            flush=True,
        )
        what, look = f"outage {mode} {store_name}", self.bounds
        look.least(f"{what}, share held", held / max(1, left), 0.9)
        look.most(f"{what}, dead", ended.dead, 0)
        look.most(f"{what}, attempts charged", ended.charged, 0)
        look.least(f"{what}, share of the usual rate afterwards", found.drained, 0.9)
        measured = {"put_off_s": ended.put_off_s, "first_s": found.first_s, "rest_s": found.rest_s}
        look.played(what, away(400, CALLS, OUTAGE_S, WORKERS, fails_s), measured)

    def fail(self, mode: str, trial: Trial) -> None:
        """Begin an outage."""
        if mode == "nameless":
            trial.elsewhere.write_text(NOWHERE)
        elif mode == "refused":
            trial.elsewhere.write_text(f"http://127.0.0.1:{free_port()}")
        else:
            self.faults(mode=mode)

    # --- the neighbours ---------------------------------------------------------------------------------

    def tenants(self, store_name: str, store: str, directory: Path) -> None:
        """The same workers for an organisation that calls nobody: alone, and beside another one's calls."""
        with Trial(store, self.url, directory) as trial:
            self.faults()
            alone = self.quiet(trial, busy=False)
            healthy = self.quiet(trial)
            self.faults(failing=0.5)
            trial.watch(CALM_S)
            flickers = self.quiet(trial)
        print(
            f"tenants   {store_name:9} alone {alone}; beside a healthy service {healthy}; "
            f"beside 50 % failures {flickers}",
            flush=True,
        )
        what = f"tenants {store_name}, P95 beside a service that flickers"
        self.bounds.most(f"{what}, of that beside a healthy one", flickers.p95_s / healthy.p95_s, 1.3)
        self.bounds.most(f"{what}, of that alone", flickers.p95_s / alone.p95_s, 1.3)

    def quiet(self, trial: Trial, busy: bool = True) -> Quiet:
        """Documents of the quiet organisation, one after the other; `busy`: the other one always has some that wait."""
        waits = []
        post(self.url, "forget")
        first_s = time.time()
        for _ in range(SAMPLES):
            if busy and trial.left() < BUSY_LEAST:
                trial.add(BUSY_MORE)
            (id_,) = trial.add(1, "quiet", idle)
            began_s = time.time()
            while trial.app.status(id_, org="quiet").state != "done":
                time.sleep(0.005)
            waits.append(time.time() - began_s)
            time.sleep(0.05)
        return Quiet(waits, rates(log_of(self.url), first_s, time.time())[0])

    def faults(self, **faults: float | str) -> None:
        """What is wrong with the service from now on; nothing, without one."""
        post(self.url, "faults", **faults)


def main() -> int:
    """Run the parts that were asked for; 1: a bound was missed and is to be checked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="parts whose name has one of these words, with commas")
    parser.add_argument("--store", default="sqlite,postgres")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        benchmark = Benchmark(stack.enter_context(served()))
        server = stack.enter_context(postgres_server()) if "postgres" in chosen.store else None
        parts: list[tuple[str, Callable[[str, str, Path], None]]] = [
            *((f"share {word}", lambda *a, word=word: benchmark.share(word, *a)) for word in SHARES),
            *((f"overload {kind}", lambda *a, kind=kind: benchmark.overload(kind, *a)) for kind in OVERLOADS),
            *((f"outage {mode}", lambda *a, mode=mode: benchmark.outage(mode, *a)) for mode in MODES),
            ("tenants", benchmark.tenants),
        ]
        for name, measure in parts:
            if not any(word in name for word in chosen.only.split(",")):
                continue
            with tempfile.TemporaryDirectory() as folder:
                if "sqlite" in chosen.store:
                    measure("sqlite", f"sqlite:///{folder}/perdure.db", Path(folder))
                if server is not None:
                    with postgres_database(server) as database:
                        measure("postgres", database_url(server, database), Path(folder))
    return benchmark.bounds.sum_up(chosen.check)


if __name__ == "__main__":
    sys.exit(main())
