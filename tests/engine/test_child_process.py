"""What a supervisor sees of the processes below it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from perdure.engine import child_process
from perdure.engine.child_process import MARK, marked_with
from perdure.engine.nursery import children


@contextmanager
def sleeping(environment: dict[str, str]) -> Iterator[int]:
    """The pid of a program with this environment."""
    with subprocess.Popen(["/bin/sleep", "600"], env=environment) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({"HOME": "/", MARK: "abc"}, True),
        ({MARK: "abcd"}, False),
        ({"OTHER": f"{MARK}=abc"}, False),
        ({}, False),
    ],
)
def test_a_process_is_known_by_the_whole_mark(environment: dict[str, str], found: bool) -> None:
    with sleeping(environment) as pid:
        while (marked := marked_with("abc", pid)) is None:
            pass
        assert marked is found


def test_a_process_that_gets_its_environment_between_two_looks_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = iter([b"", b"1 (sh) " + b"1 " * 60, f"{MARK}=abc".encode()])
    monkeypatch.setattr(child_process, "_read", lambda *_: next(looks))
    assert marked_with("abc", 1) is True


def test_a_process_that_has_ended_is_not_decided_on_until_it_is_reaped() -> None:
    process = subprocess.Popen(["/bin/true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert marked_with("abc", process.pid) is None
    process.wait()
    assert marked_with("abc", process.pid) is False


def test_children_are_found_when_a_thread_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    there = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["0", *there(path)])  # a thread that has ended since
    with sleeping({}) as pid:
        assert pid in children(os.getpid())


SEEN = """
import ctypes, os, sys
from perdure.engine.child_process import hide_memory

def dumpable():
    return ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)

hide_memory(sys.argv[1])
print(dumpable(), flush=True)
pid = os.fork()
if pid == 0:
    print(dumpable(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
"""


@pytest.mark.parametrize(
    ("store", "dumpable"), [("postgresql://ann:pw@host/db", ["0", "1"]), ("sqlite:///a.db", ["1", "1"])]
)
def test_memory_is_hidden_where_the_address_of_a_server_is_in_it(store: str, dumpable: list[str]) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SEEN, store], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.split() == dumpable
