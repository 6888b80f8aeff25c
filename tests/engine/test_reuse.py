"""A cell may serve several calls, one after the other; whatever casts doubt on it ends it."""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from perdure import Document, Perdure, Pipeline
from perdure.engine import host
from perdure.engine.behind import ATTRIBUTES, FAR_BEHIND, LONG_TURN_NS, SCHED_SETATTR
from perdure.engine.host import REST_S
from perdure.engine.isolate import CellCrashed, CellDoubtful, Limits, Nursery, RemoteError
from perdure.errors import PipelineInvalid
from tests.engine import cells

LIMITS = Limits(1 << 30, None, 20, 20)
HERE = "tests.engine.test_reuse"
LINUX = tuple(int(n) for n in re.findall(r"\d+", platform.release())[:2]) if sys.platform == "linux" else (0,)


def pid(_: bytes, __: Callable[[bytes], bytes]) -> bytes:
    return str(os.getpid()).encode()


def raises(_: bytes, __: Callable[[bytes], bytes]) -> bytes:
    raise ValueError("its own")


def dies(_: bytes, __: Callable[[bytes], bytes]) -> bytes:
    os.abort()


def leaves_a_thread(_: bytes, __: Callable[[bytes], bytes]) -> bytes:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    return str(os.getpid()).encode()


def leaves_a_process(_: bytes, __: Callable[[bytes], bytes]) -> bytes:
    if os.fork() == 0:
        time.sleep(60)
    return str(os.getpid()).encode()


def leaves_an_orphan(_: bytes, __: Callable[[bytes], bytes]) -> bytes:
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
        os._exit(0)
    os.wait()
    return str(os.getpid()).encode()


def standing(_: bytes, __: Callable[[bytes], bytes]) -> bytes:
    """Its pid, its niceness and the length of its turns."""
    told = ctypes.create_string_buffer(ATTRIBUTES.size)
    turn_ns = 0
    if platform.machine() in SCHED_SETATTR:
        getattr_ = SCHED_SETATTR[platform.machine()] + 1
        assert ctypes.CDLL(None).syscall(getattr_, 0, told, ATTRIBUTES.size, 0) == 0
        turn_ns = ATTRIBUTES.unpack(told.raw)[5]
    return f"{os.getpid()} {os.getpriority(os.PRIO_PROCESS, 0)} {turn_ns}".encode()


def takes_long(_: bytes, __: Callable[[bytes], bytes]) -> bytes:
    """Until it and a program that it started stand behind others."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with subprocess.Popen(["sleep", "60"]) as started:
        while min(os.getpriority(os.PRIO_PROCESS, one) for one in (0, started.pid)) < min(
            19, before + FAR_BEHIND
        ):
            time.sleep(0.01)
        started.kill()
    return str(os.getpid()).encode()


def holds_much(_: bytes, __: Callable[[bytes], bytes]) -> bytes:
    globals()["kept"] = bytearray(b"x" * (300 << 20))
    return str(os.getpid()).encode()


def in_nursery(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test gets a nursery of its own."""

    async def work(given: dict[str, Any]) -> None:
        async with cells.nursery(HERE) as made:
            await test(made, **given)

    def plain(**given: Any) -> None:
        cells.run(work(given))

    first, *others = inspect.signature(test).parameters.values()
    assert first.name == "nursery"
    plain.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
    return plain


async def run(
    nursery: Nursery, what: Callable[..., bytes], reuse: int = 10, limits: Limits = LIMITS, whose: str = ""
) -> bytes:
    async def answer(_: bytes) -> bytes:
        return b""

    return await nursery.run(f"{HERE}:{what.__name__}", b"", answer, limits, reuse=reuse, whose=whose)


@in_nursery
async def test_a_cell_serves_as_many_as_allowed(nursery: Nursery) -> None:
    pids = [await run(nursery, pid, reuse=3) for _ in range(6)]
    assert pids[0] == pids[1] == pids[2] != pids[3] == pids[4] == pids[5]
    assert await run(nursery, pid, reuse=1) not in pids


@in_nursery
async def test_at_the_same_time_each_has_its_own(nursery: Nursery) -> None:
    assert len(set(await asyncio.gather(*(run(nursery, pid) for _ in range(4))))) == 4


@in_nursery
async def test_after_an_error_it_serves_no_other(nursery: Nursery) -> None:
    first = await run(nursery, pid)
    with pytest.raises(RemoteError, match="its own"):
        await run(nursery, raises)
    assert await run(nursery, pid) != first


@in_nursery
async def test_one_that_takes_long_stands_behind_others_and_serves_no_more(nursery: Nursery) -> None:
    first = await run(nursery, takes_long)
    assert await run(nursery, pid) != first


@in_nursery
async def test_one_with_a_heavy_document_stands_behind_others_from_its_start_and_serves_more(
    nursery: Nursery,
) -> None:
    usual, heavy = [
        (await run(nursery, standing, limits=Limits(behind=behind))).split() for behind in (False, True)
    ]
    assert int(heavy[1]) == min(19, int(usual[1]) + FAR_BEHIND)
    if platform.machine() in SCHED_SETATTR and LINUX >= (6, 12):
        assert int(usual[2]) < int(heavy[2]) == LONG_TURN_NS
    again = (await run(nursery, standing, limits=Limits(behind=True))).split()
    assert again == heavy


@in_nursery
async def test_it_serves_one_organisation(nursery: Nursery) -> None:
    pids = [await run(nursery, pid, whose=whose) for whose in ("a", "b", "a", "b")]
    assert pids[0] == pids[2] != pids[1] == pids[3]


def test_reuse_is_for_processes() -> None:
    with pytest.raises(PipelineInvalid, match="isolate=True"):

        @Pipeline("none").stage(reuse=2)
        def here(doc: Document) -> int:
            return 0


@pytest.mark.parametrize("what", [leaves_a_thread, leaves_a_process, leaves_an_orphan, holds_much])
@in_nursery
async def test_one_that_is_not_as_it_was_serves_no_other(
    nursery: Nursery, what: Callable[..., bytes]
) -> None:
    used = await run(nursery, what)
    assert await run(nursery, pid) != used


@in_nursery
async def test_one_that_was_started_long_ago_has_time_to_begin(
    nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    await run(nursery, pid)
    monkeypatch.setattr(host, "WARM_S", 0.5)
    await asyncio.sleep(0.7)
    warm = await nursery._open()
    cell = warm.rested(LIMITS, 10, "")
    assert cell is not None
    await asyncio.sleep(3 * host.WATCH_S)
    assert not warm.gone()
    await warm.finish(cell)


@in_nursery
async def test_other_limits_ask_for_another_one(nursery: Nursery) -> None:
    first = await run(nursery, pid)
    assert await run(nursery, pid, limits=Limits(2 << 30, None, 20, 20)) != first


@in_nursery
async def test_whose_fault_a_crash_is_a_new_one_tells(nursery: Nursery) -> None:
    with pytest.raises(CellCrashed, match="SIGABRT"):
        await run(nursery, dies)
    await run(nursery, pid)
    with pytest.raises(CellDoubtful, match=r"SIGABRT.* served 1 others"):
        await run(nursery, dies)
    with pytest.raises(CellCrashed, match="SIGABRT"):
        await run(nursery, dies, reuse=1)


@in_nursery
async def test_one_that_nobody_needs_goes(nursery: Nursery) -> None:
    used = int(await run(nursery, pid))
    os.kill(used, 0)
    for _ in range(int(REST_S * 20) + 60):
        await asyncio.sleep(0.05)
        try:
            os.kill(used, 0)
        except ProcessLookupError:
            return
    pytest.fail("it is still there")


@in_nursery
async def test_one_that_died_at_rest_is_not_asked(nursery: Nursery) -> None:
    used = await run(nursery, pid)
    os.kill(int(used), 9)
    warm = await nursery._open()
    await cells.until(lambda: all(cell.ended.done() for cell in warm.calls.values()))
    assert await run(nursery, pid) != used


shelf = Pipeline("shelf")


@shelf.stage(isolate=True, reuse=10)
def read(doc: Document) -> int:
    if doc.text.startswith("crash"):
        os.abort()
    return os.getpid()


def test_a_document_that_crashes_among_others_is_charged_for_what_it_does_alone(store_url: str) -> None:
    with Perdure(store_url, pipelines=[shelf], concurrency=1) as app:
        ids = [app.add(text=f"fine {n}", pipeline=shelf).id for n in range(4)]
        bad = app.add(text="crash", pipeline=shelf, backoff_s=0).id
        ids += [app.add(text=f"good {n}", pipeline=shelf).id for n in range(4)]
        summary = app.run_until_idle(wait=5)
        assert (summary.done, summary.dead) == (8, 1)
        assert app.status(bad).error_code == "crashed:SIGABRT"
        assert [a.outcome for a in app.attempts(bad)] == ["later", "retry", "dead"]
        assert [a.charged for a in app.attempts(bad)] == [False, True, True]
        assert len({app.output(id_, "read") for id_ in ids}) < 8
