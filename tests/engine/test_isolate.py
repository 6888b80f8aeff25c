"""Calls in processes of their own: every way to end has one answer."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from perdure.core.outcome import describe, telling
from perdure.engine.behind import BEHIND
from perdure.engine.isolate import (
    CellCrashed,
    CellOverdue,
    Limits,
    RemoteError,
)
from perdure.errors import DependencyDown, LeaseLost, Permanent, RateLimited, Transient
from tests.engine.cells import MIB, WORK, call, nursery, run, unasked
from tests.engine.cellwork import RAISES

# --- answers ---------------------------------------------------------------------------------


def test_result_and_dotted_target() -> None:
    assert call("echo", b"abc") == b"abc"
    assert call("Tools.shout", b"abc") == b"ABC"


def test_ask_goes_there_and_back() -> None:
    asked: list[bytes] = []

    async def answer(message: bytes) -> bytes:
        asked.append(message)
        await asyncio.sleep(0)
        return b"<" + message + b">"

    assert call("asking", b"3", on_message=answer) == b"<0>,<1>,<2>"
    assert asked == [b"0", b"1", b"2"]


def test_large_payloads_arrive_whole() -> None:
    payload = os.urandom(MIB) * 100
    assert call("echo", payload) == payload


def test_what_a_cell_is_given() -> None:
    seen = json.loads(call("surroundings"))
    assert seen == {
        "stdin": "/dev/null",
        "leader": True,
        "core": 0,
        "blas": "1",
        "sockets": 1,
        "behind": os.nice(0) + BEHIND,
    }


def test_a_cell_cannot_change_how_its_worker_writes() -> None:
    """A worker whose stderr does not block any more loses lines of its log."""
    read, write = os.pipe()
    kept = os.dup(2)
    try:
        os.dup2(write, 2)
        told = call("unblocks")
        blocks = os.get_blocking(2)
    finally:
        os.dup2(kept, 2)
        for fd in (read, write, kept):
            os.close(fd)
    assert told.startswith(b"pipe:")
    assert blocks


def test_started_is_told_before_user_code_begins() -> None:
    async def work() -> None:
        events: list[Any] = []

        async def answer(message: bytes) -> bytes:
            events.append(message)
            return b""

        async with nursery() as cells:
            await cells.run(f"{WORK}:asking", b"1", answer, Limits(), started=events.append)
        assert len(events) == 2
        assert events[0] > 1
        assert events[1] == b"0"

    run(work())


def test_only_the_cell_answers_when_user_code_forks() -> None:
    assert call("forking") == b"cell"


# --- exceptions ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["value", "os", "unicode", "group", "picky"])
def test_other_exceptions_are_recorded_as_if_they_had_been_raised_here(name: str) -> None:
    wanted = describe("stage", telling(RAISES[name]()))
    with pytest.raises(RemoteError) as caught:
        call("raising", name.encode())
    found = describe("stage", caught.value)
    assert replace(found, place=None) == replace(wanted, place=None)
    assert (found.place or "").endswith("in raising")


def test_signals_keep_every_field() -> None:
    with pytest.raises(Permanent) as permanent:
        call("raising", b"permanent")
    assert (permanent.value.code, str(permanent.value)) == ("empty_document", "nothing in it")
    with pytest.raises(Permanent) as named:
        call("raising", b"enum")
    assert named.value.code == "no_pages"
    with pytest.raises(Transient) as transient:
        call("raising", b"transient")
    assert (transient.value.code, transient.value.retry_after_s) == ("http_503", 12.5)
    with pytest.raises(RateLimited) as rate:
        call("raising", b"rate")
    assert (rate.value.code, rate.value.delay_s) == ("rate_limited", 33)
    with pytest.raises(DependencyDown) as down:
        call("raising", b"dependency")
    assert (down.value.name, str(down.value)) == ("openai", "dependency openai is down")


def test_users_own_signals_keep_their_meaning() -> None:
    with pytest.raises(Permanent) as torn:
        call("raising", b"torn")
    assert type(torn.value) is Permanent  # no message chooses a class of the user's
    assert describe("", torn.value) == describe("", RAISES["torn"]())
    with pytest.raises(Permanent) as local:  # a class that does not exist here
        call("raise_local")
    assert type(local.value) is Permanent
    assert (local.value.code, str(local.value)) == ("local_code", "from within")


def test_the_trace_of_other_exceptions_is_told() -> None:
    with pytest.raises(RemoteError, match="status 503") as picky:
        call("raising", b"picky")
    assert (picky.value.type_name, picky.value.status_code) == ("Picky", 503)
    assert "in raising" in picky.value.trace


@pytest.mark.parametrize(
    ("name", "type_name"),
    [
        ("exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("cancelled", "CancelledError"),
        ("stop", "StopIteration"),
    ],
)
def test_what_would_mean_something_else_here_is_told(name: str, type_name: str) -> None:
    with pytest.raises(RemoteError) as caught:
        call("raising", name.encode())
    assert caught.value.type_name == type_name


def test_wrong_targets_and_results_are_errors_of_the_call() -> None:
    with pytest.raises(RemoteError, match="nothing_here"):
        call("nothing_here")
    with pytest.raises(RemoteError, match="returned dict, not bytes"):
        call("wrong_type")


def test_what_the_answer_raises_is_raised_in_the_cell() -> None:
    async def lost(message: bytes) -> bytes:
        raise LeaseLost("taken over")

    async def down(message: bytes) -> bytes:
        raise DependencyDown("store")

    assert call("catching", on_message=lost) == b"LeaseLost|taken over|lease_lost"
    assert call("catching", on_message=down) == b"DependencyDown|dependency store is down|dependency_down"
    with pytest.raises(LeaseLost, match="taken over"):
        call("asking", b"1", on_message=lost)


# --- crashes and limits ----------------------------------------------------------------------


def crash(function: str, payload: bytes = b"", limits: Limits = Limits()) -> str:  # noqa: B008 - frozen
    with pytest.raises(CellCrashed) as caught:
        call(function, payload, limits)
    assert caught.value.code == f"crashed:{caught.value.reason}"
    return caught.value.reason


def test_death_by_a_signal_names_it() -> None:
    assert crash("segfault") == "SIGSEGV"
    assert crash("killing", str(int(signal.SIGSEGV)).encode()) == "SIGSEGV"
    assert crash("killing", str(int(signal.SIGKILL)).encode()) == "SIGKILL"
    assert crash("killing", str(int(signal.SIGABRT)).encode()) == "SIGABRT"


def test_stopping_the_service_does_not_crash_documents() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert call("killing", str(int(number)).encode()) == b"survived"


def test_exit_without_answer() -> None:
    assert crash("exiting", b"0") == "exit:0"
    assert crash("exiting", b"7") == "exit:7"


def test_closing_our_socket_is_a_crash() -> None:
    assert crash("closing") == "silenced"


def test_memory_is_watched() -> None:
    limits = Limits(memory_bytes=200 * MIB, wall_s=20)
    assert crash("hog", limits=limits) == "memory_exceeded"
    assert crash("hog_in_child", limits=limits) == "memory_exceeded"


def test_memory_backstop_and_memory_error() -> None:
    assert crash("wide", str(8 << 30).encode(), Limits(memory_bytes=200 * MIB)) == "memory_exceeded"
    assert crash("raising", b"memory") == "memory_exceeded"


def test_memory_that_forks_share_counts_once() -> None:
    limits = Limits(memory_bytes=400 * MIB, wall_s=60)
    assert call("fork_many", b"25", limits) == str(40 * MIB).encode()


def test_fork_storm_is_ended() -> None:
    assert crash("fork_storm", limits=Limits(processes=30, wall_s=20)) == "processes_exceeded"


def test_cpu_limit() -> None:
    assert crash("spin", limits=Limits(cpu_s=1, wall_s=120)) == "cpu_exceeded"


@pytest.mark.long
def test_cpu_limit_holds_for_who_ignores_the_signal() -> None:
    assert crash("spin", b"deaf", Limits(cpu_s=1, wall_s=120)) == "cpu_exceeded"


def test_file_size_limit(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="File too large"):
        call("large_file", str(tmp_path / "large").encode(), Limits(file_bytes=MIB))


def overdue(function: str, payload: bytes, limits: Limits) -> str:
    async def work() -> str:
        async with nursery() as cells:
            await cells.warm()
            with pytest.raises(CellOverdue) as caught:
                await cells.run(f"{WORK}:{function}", payload, unasked, limits)
            return str(caught.value.code)

    return run(work())


def test_hanging_calls_are_killed() -> None:
    assert overdue("sleeping", b"1000", Limits(wall_s=0.5)) == "stage_timeout"
    assert overdue("spin", b"", Limits(stall_s=0.5)) == "no_progress"


def test_messages_are_progress_and_slow_answers_are_not_silence() -> None:
    async def slow(message: bytes) -> bytes:
        if message == b"0":
            await asyncio.sleep(2.0)
        return b""

    assert call("ticking", limits=Limits(stall_s=1.5), on_message=slow) == b"done"
    assert call("asking", b"2", Limits(stall_s=1.5), slow) == b","


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_blocked_loop_does_not_accuse_its_cells(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def work() -> bytes:
        async def answer(message: bytes) -> bytes:
            return b""

        async with nursery() as cells:
            await cells.warm()
            task = asyncio.create_task(cells.run(f"{WORK}:ticking", b"", answer, Limits(stall_s=1.5)))
            await asyncio.sleep(0.2)
            time.sleep(2.0)  # noqa: ASYNC251 - that is the point
            return await task

    assert run(work(), loop) == b"done"
