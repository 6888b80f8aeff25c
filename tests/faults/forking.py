"""Stages that fork and start programs, in every way that Python has for it."""

from __future__ import annotations

import multiprocessing
import os
import re
import subprocess
import threading
import time
from concurrent.futures import ProcessPoolExecutor

from perdure import Context, Document, Pipeline, Result
from tests.faults.record import Run

#: Backtracking for hours, and the interpreter is not released meanwhile.
HOPELESS = re.compile(r"(a+)+$")
FORK = multiprocessing.get_context("fork")
#: One pool is started at a time: a process that is forked while another thread starts its pool may hang in CPython.
STARTING = threading.Lock()


def slowly(number: int) -> int:
    """Run in a forked process."""
    time.sleep(0.05)
    return number * number


pooled = Pipeline("pooled", backoff_s=0.1, lease_s=10)


@pooled.stage
def square(doc: Document, ctx: Context) -> Result[int]:
    """Computes in forked processes, which live while it waits at its gate."""
    run = Run(doc, "square")
    with ProcessPoolExecutor(2, mp_context=FORK) as pool:
        with STARTING:
            total = sum(pool.map(slowly, range(4)))
        run.at("forked")
        total += sum(pool.map(slowly, range(4)))
    return run.finish(ctx, total)


holding = Pipeline("holding", backoff_s=0.1, attempts=2)


@holding.stage(timeout=1.0)
def hold(doc: Document, ctx: Context) -> Result[int]:
    """The same, and then holds the interpreter past its timeout, at its first run."""
    run = Run(doc, "hold")
    with ProcessPoolExecutor(2, mp_context=FORK) as pool:
        total = sum(pool.map(slowly, range(4)))
        run.note("forked")
        if not run.shut("held"):
            os.close(os.open(os.environ["FAULTS_DIRECTORY"] + f"/gate {doc.name} held", os.O_CREAT))
            HOPELESS.match("a" * 64 + "b")
    return run.finish(ctx, total)


terminated = Pipeline("terminated", backoff_s=0.1)


@terminated.stage
def terminate(doc: Document, ctx: Context) -> Result[int]:
    """Ends its pool with SIGTERM, as `with Pool()` does, while the forked processes are busy."""
    run = Run(doc, "terminate")
    with FORK.Pool(2) as pool:
        total = sum(pool.map(slowly, range(4)))
        pool.map_async(time.sleep, [600, 600])
        time.sleep(0.1)
    return run.finish(ctx, total)


launching = Pipeline("launching", backoff_s=0.1)


@launching.stage
def launch(doc: Document, ctx: Context) -> Result[int]:
    """Starts programs and does not care for them: one stays in our session, one has its own, one loses its parent."""
    run = Run(doc, "launch")
    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 &"], check=True, start_new_session=True)
    run.at("launched")
    return run.finish(ctx, 1)


ALL = [pooled, holding, terminated, launching]
