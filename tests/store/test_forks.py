"""Locks end with the process that took them, although a process that it forked lives on."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from perdure.store.base import Query, Steps
from perdure.store.open import open_store

#: Takes locks, forks inside of a transaction, and keeps both processes.
FORKING = """
import asyncio, os, sys, time
from perdure.store.base import Query
from perdure.store.open import open_store

def steps():
    yield Query("SELECT 1")
    pid = os.fork()
    if pid == 0:
        time.sleep(120)
        os._exit(0)
    print(pid, flush=True)
    time.sleep(120)

async def main():
    store = open_store(sys.argv[1])
    await store.open()
    assert await store.driver.lock("retention", 0)
    await store.driver.listen(lambda: None)
    await store.driver.write(steps)

asyncio.run(main())
"""


@contextmanager
def forked(url: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process in the middle of a transaction, and the pid of its fork."""
    with subprocess.Popen([sys.executable, "-c", FORKING, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        fork = int(process.stdout.readline())
        try:
            yield process, fork
        finally:
            process.kill()
            with suppress(ProcessLookupError):
                os.kill(fork, signal.SIGKILL)


def _one() -> Steps[int]:
    return int((yield Query("SELECT 1"))[0][0])


async def test_a_fork_keeps_no_lock_of_a_killed_process(store_url: str) -> None:
    store = open_store(store_url)
    await store.open()
    with forked(store_url) as (process, fork):
        assert not await store.driver.lock("retention", 0)
        process.kill()
        process.wait(60)
        os.kill(fork, 0)  # it lives
        assert await asyncio.wait_for(store.driver.write(_one), 60) == 1
        until_s = time.monotonic() + 60
        while not await store.driver.lock("retention", 0):
            assert time.monotonic() < until_s, "the lock of a dead process is still held"
            await asyncio.sleep(0.05)
        os.kill(fork, 0)
    await store.close()


async def test_a_process_works_on_after_it_forked(store_url: str) -> None:
    """The fork's end must not end the connections of its parent."""
    store = open_store(store_url)
    await store.open()
    assert await store.driver.lock("retention", 0)
    if (pid := os.fork()) == 0:
        os._exit(0)
    assert (await asyncio.to_thread(os.waitpid, pid, 0))[1] == 0
    assert await store.driver.write(_one) == 1
    assert await store.driver.read(_one) == 1
    other = open_store(store_url)
    await other.open()
    assert not await other.driver.lock("retention", 0)
    await other.close()
    await store.close()


async def test_a_fork_loses_no_descriptor_of_others(store_url: str) -> None:
    """Numbers of closed descriptors are given again: a fork must not drop what has such a number now."""
    store = open_store(store_url)
    await store.open()
    for _ in range(100):
        assert await store.driver.lock("retention", 0)
        await store.driver.unlock("retention", 0)
    pipes = [os.pipe() for _ in range(20)]
    if (pid := os.fork()) == 0:
        for _, write in pipes:
            os.write(write, b"!")
        os._exit(0)
    assert (await asyncio.to_thread(os.waitpid, pid, 0))[1] == 0
    for read, write in pipes:
        assert os.read(read, 1) == b"!"
        os.close(read)
        os.close(write)
    await store.close()
