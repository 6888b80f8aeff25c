"""Cells and the process they come from: many at once, replaced when lost, and nothing outlives them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from perdure.engine.host import GRACE_S, Host
from perdure.engine.isolate import (
    CellCrashed,
    CellOverdue,
    Limits,
    Nursery,
    NurseryLost,
    PreloadFailed,
)
from perdure.engine.nursery import children
from perdure.errors import Permanent
from tests.engine.cells import MIB, WORK, alive, all_gone, host_pid, nursery, run, unasked, until

# --- what is left behind ---------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["return", "crash", "hang"])
def test_processes_left_behind_are_killed(ending: str) -> None:
    pids: list[int] = []

    async def note(message: bytes) -> bytes:
        pids.extend(json.loads(message))
        assert all(alive(pid) for pid in pids)
        return b""

    async def work() -> None:
        async with nursery() as cells:
            limits = Limits(wall_s=3 if ending == "hang" else None)
            try:
                await cells.run(f"{WORK}:leaving", ending.encode(), note, limits)
            except (CellCrashed, CellOverdue):
                assert ending != "return"
            assert len(pids) == 2
            assert all_gone(pids)

    run(work())


def test_daemons_are_killed_when_no_cell_can_own_them() -> None:
    pids: list[int] = []

    async def note(message: bytes) -> bytes:
        pids.append(int(message))
        return b""

    async def work() -> None:
        asked, go = asyncio.Event(), asyncio.Event()

        async def hold(_: bytes) -> bytes:
            asked.set()
            await go.wait()
            return b"released"

        async with nursery() as cells:
            other = asyncio.create_task(cells.run(f"{WORK}:asking", b"1", hold, Limits()))
            await asked.wait()
            with pytest.raises(CellCrashed):
                await cells.run(f"{WORK}:daemonizing", b"", note, Limits())
            assert alive(pids[0])  # it might be the other's
            go.set()
            assert await other == b"released"
            assert all_gone(pids)

    run(work())


def test_cancelling_kills_and_waits() -> None:
    async def work() -> None:
        pids: list[int] = []
        async with nursery() as cells:
            call = cells.run(f"{WORK}:sleeping", b"1000", unasked, Limits(), started=pids.append)
            task = asyncio.create_task(call)
            await until(lambda: pids)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not alive(pids[0])
            early = asyncio.create_task(cells.run(f"{WORK}:sleeping", b"1000", unasked, Limits()))
            await asyncio.sleep(0)
            early.cancel()
            with pytest.raises(asyncio.CancelledError):
                await early
            assert await cells.run(f"{WORK}:echo", b"x", unasked, Limits()) == b"x"

    run(work())


def test_an_answer_under_way_when_the_cell_dies_may_complete() -> None:
    pids: list[int] = []
    saved: list[bytes] = []

    async def save(message: bytes) -> bytes:
        await until(lambda: not alive(pids[0]))
        await asyncio.sleep(0.1)
        saved.append(message)
        return b""

    async def work() -> None:
        async with nursery() as cells:
            with pytest.raises(CellOverdue):
                await cells.run(f"{WORK}:asking", b"1", save, Limits(wall_s=2), started=pids.append)
            assert saved == [b"0"]

    run(work())


def test_no_descriptor_stays_open() -> None:
    async def work() -> None:
        async with nursery() as cells:
            await cells.run(f"{WORK}:echo", b"", unasked, Limits())
            before = len(os.listdir("/proc/self/fd"))
            theirs = len(os.listdir(f"/proc/{host_pid(cells)}/fd"))
            for n in range(50):
                ending = "exiting" if n % 5 == 0 else "echo"
                try:
                    await cells.run(f"{WORK}:{ending}", b"1", unasked, Limits())
                except CellCrashed:
                    assert ending == "exiting"
            assert len(os.listdir("/proc/self/fd")) == before
            assert len(os.listdir(f"/proc/{host_pid(cells)}/fd")) == theirs

    run(work())


# --- the nursery -----------------------------------------------------------------------------


def test_many_run_at_once() -> None:
    async def work() -> None:
        together = asyncio.Barrier(20)

        async def meet(_: bytes) -> bytes:
            await together.wait()
            return b"met"

        async with nursery() as cells:
            calls = [cells.run(f"{WORK}:asking", b"1", meet, Limits()) for _ in range(20)]
            assert await asyncio.gather(*calls) == [b"met"] * 20

    run(work())


def test_a_lost_nursery_is_nobodys_fault_and_replaced() -> None:
    async def work() -> None:
        pids: list[int] = []
        left: list[int] = []

        async def note(message: bytes) -> bytes:
            left.extend(json.loads(message))
            return b""

        async with nursery() as cells:
            await cells.warm()
            calls = [
                asyncio.create_task(
                    cells.run(f"{WORK}:leaving", b"hang", note, Limits(), started=pids.append)
                )
                for _ in range(3)
            ]
            await until(lambda: len(left) == 6)
            await asyncio.sleep(0.3)
            os.kill(host_pid(cells), signal.SIGKILL)
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, NurseryLost)
                assert "SIGKILL" in str(outcome)
            assert all_gone(pids + left)
            assert await cells.run(f"{WORK}:echo", b"again", unasked, Limits()) == b"again"
            os.kill(host_pid(cells), signal.SIGKILL)
            assert all_gone([host_pid(cells)])
            assert await cells.run(f"{WORK}:echo", b"again", unasked, Limits()) == b"again"

    run(work())


def test_a_nursery_whose_end_is_noticed_late_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells die with it, so their connections end before anybody knows why."""
    bury = Host.bury

    async def late(host: Host, patience_s: float) -> str:
        while not all(call.doomed for call in host.calls.values()):
            await asyncio.sleep(0.01)
        await asyncio.sleep(2 * GRACE_S)
        return await bury(host, patience_s)

    async def work() -> None:
        pids: list[int] = []
        async with nursery() as cells:
            call = cells.run(f"{WORK}:sleeping", b"1000", unasked, Limits(), started=pids.append)
            task = asyncio.create_task(call)
            await until(lambda: pids)
            monkeypatch.setattr(Host, "bury", late)
            os.kill(host_pid(cells), signal.SIGKILL)
            with pytest.raises(NurseryLost, match="SIGKILL"):
                await task
            monkeypatch.setattr(Host, "bury", bury)

    run(work())


def test_a_frozen_nursery_does_not_hold_up_a_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.engine.host.KILL_S", 0.5)

    async def work() -> None:
        async with nursery() as cells:
            await cells.warm()

            async def freeze() -> None:
                calls = cells._hosts[False, False].result().calls
                # the time of a cell that the nursery has not reported yet has not begun
                while not any(call.began is not None for call in calls.values()):
                    await asyncio.sleep(0.01)
                os.kill(host_pid(cells), signal.SIGSTOP)

            freezing = asyncio.create_task(freeze())
            with pytest.raises(CellOverdue):
                await cells.run(f"{WORK}:sleeping", b"1000", unasked, Limits(wall_s=0.5))
            await freezing
            assert await cells.run(f"{WORK}:echo", b"x", unasked, Limits()) == b"x"

    run(work())


def test_a_nursery_that_is_frozen_before_it_forks_is_replaced() -> None:
    async def work() -> None:
        async with nursery() as cells:
            await cells.warm()
            cells._hosts[False, False].result().ready_s = 0.5
            frozen = host_pid(cells)
            os.kill(frozen, signal.SIGSTOP)
            with pytest.raises(NurseryLost, match="started no cell in time"):
                await cells.run(f"{WORK}:echo", b"x", unasked, Limits(wall_s=0.5))
            await until(lambda: not alive(frozen))
            assert await cells.run(f"{WORK}:echo", b"x", unasked, Limits()) == b"x"

    run(work())


def test_a_cell_that_is_frozen_before_it_begins_is_killed_alone() -> None:
    async def work() -> None:
        cells = Nursery(["tests.engine.standing"])
        try:
            await cells.warm()
            host = cells._hosts[False, False].result()
            host.ready_s = 0.5
            with pytest.raises(NurseryLost, match="was not ready within"):
                await cells.run(f"{WORK}:echo", b"x", unasked, Limits(wall_s=0.5))
            assert children(host.process.pid) == []
            assert not host.gone()
        finally:
            await cells.close()

    run(work())


def test_the_nursery_leaves_stopping_to_the_worker() -> None:
    async def work() -> None:
        async with nursery() as cells:
            await cells.warm()
            pid = host_pid(cells)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                os.kill(pid, number)
            assert await cells.run(f"{WORK}:echo", b"x", unasked, Limits()) == b"x"
            assert host_pid(cells) == pid

    run(work())


def test_closing_ends_everything() -> None:
    async def work() -> None:
        pids: list[int] = []
        async with nursery() as cells:
            call = cells.run(f"{WORK}:sleeping", b"1000", unasked, Limits(), started=pids.append)
            task = asyncio.create_task(call)
            await until(lambda: pids)
            pids.append(host_pid(cells))
            await cells.close()
            with pytest.raises(NurseryLost):
                await task
            assert all_gone(pids)
            with pytest.raises(NurseryLost):
                await cells.run(f"{WORK}:echo", b"x", unasked, Limits())

    run(work())


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Writes a module that nurseries started from now on can import."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, text: str) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        return path

    return write


def test_what_cannot_be_imported_is_named(module: Callable[[str, str], Path]) -> None:
    module("half", "import surely_not_there")
    module("quitter", "import sys; sys.exit('no')")
    module("crasher", "import ctypes; ctypes.string_at(0)")

    async def work() -> None:
        for name, told in {
            "half": "cannot import half: ModuleNotFoundError: No module named 'surely_not_there'",
            "quitter": "cannot import quitter: SystemExit: no",
            "crasher": "imports .*crasher.* was killed by SIGSEGV",
        }.items():
            async with nursery(name) as cells:
                with pytest.raises(PreloadFailed, match=told):
                    await cells.warm()
                with pytest.raises(PreloadFailed, match=told):
                    await cells.run("half:x", b"", unasked, Limits())

    run(work())


def test_modules_that_start_threads_work(module: Callable[[str, str], Path]) -> None:
    module(
        "threaded",
        """
        import os, sys, threading, time
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()

        def work(payload, ask):
            return b"%d %s" % (len(os.listdir("/proc/self/task")), ask(payload))

        def crash(payload, ask):
            os.abort()

        def hang(payload, ask):
            time.sleep(1000)
        """,
    )

    async def work() -> None:
        async def answer(message: bytes) -> bytes:
            return b"<" + message + b">"

        async with nursery("threaded") as cells:
            calls = [cells.run("threaded:work", b"x", answer, Limits()) for _ in range(3)]
            assert await asyncio.gather(*calls) == [b"2 <x>"] * 3  # a thread of its own: it was not forked
            with pytest.raises(CellCrashed, match="SIGABRT"):
                await cells.run("threaded:crash", b"", answer, Limits())
            with pytest.raises(CellOverdue):
                await cells.run("threaded:hang", b"", answer, Limits(wall_s=0.3))

    run(work())


def test_scripts_can_be_preloaded(module: Callable[[str, str], Path]) -> None:
    script = module(
        "script",
        """
        from perdure.errors import Permanent
        class Own(Permanent): pass
        def work(payload, ask):
            if payload: raise Own("own", "mine")
            return __name__.encode()
        if __name__ == "__main__":
            raise SystemExit("must not run")
        """,
    )

    async def work() -> None:
        async with nursery(str(script)) as cells:
            assert await cells.run("__main__:work", b"", unasked, Limits()) == b"__perdure_main__"
            with pytest.raises(Permanent, match="mine"):
                await cells.run("__main__:work", b"raise", unasked, Limits())

    run(work())


def test_the_nursery_is_light(module: Callable[[str, str], Path]) -> None:
    module(
        "looking",
        """
        import sys
        def heavy(payload, ask):
            names = ("asyncio", "pydantic", "asyncpg", "apsw", "psutil", "multiprocessing", "subprocess")
            return " ".join(name for name in names if name in sys.modules).encode()
        """,
    )

    async def work() -> bytes:
        async with nursery("looking") as cells:
            return await cells.run("looking:heavy", b"", unasked, Limits())

    assert run(work()) == b""


def test_uvloop() -> None:
    async def work() -> None:
        async def answer(message: bytes) -> bytes:
            return message * 2

        async with nursery() as cells:
            payload = os.urandom(MIB) * 20
            assert await cells.run(f"{WORK}:echo", payload, unasked, Limits()) == payload
            assert await cells.run(f"{WORK}:asking", b"2", answer, Limits()) == b"00,11"
            with pytest.raises(CellCrashed, match="SIGSEGV"):
                await cells.run(f"{WORK}:segfault", b"", unasked, Limits())
            with pytest.raises(CellOverdue):
                await cells.run(f"{WORK}:sleeping", b"100", unasked, Limits(wall_s=0.3))

    run(work(), uvloop.new_event_loop)


PARENT = """
    import asyncio, os, sys, json
    from perdure.engine.isolate import Limits, Nursery

    async def main():
        cells, pids, left = Nursery([{module!r}]), [], []
        async def note(message):
            left.extend(json.loads(message))
            if len(left) == 6:
                print(json.dumps([cells._hosts[False, False].result().process.pid, *pids, *left]), flush=True)
            return b""
        await asyncio.gather(
            *(cells.run({module!r} + ":leaving", b"hang", note, Limits(), started=pids.append) for _ in range(3))
        )

    asyncio.run(main())
"""


def test_nothing_outlives_a_killed_parent() -> None:
    script = textwrap.dedent(PARENT).format(module=WORK)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        assert len(pids) == 1 + 3 + 6
        assert all(alive(pid) for pid in pids)
        parent.kill()
        assert all_gone(pids)
