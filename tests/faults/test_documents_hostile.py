"""Documents that crash their parser, hang it, or unfold without end, among good ones: only they suffer."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from perdure.service import AddOptions
from tests.faults.documents.account import add, passages, wait_until_quiet
from tests.faults.documents.library import book
from tests.faults.documents.places import APP, BATCH_VARIABLE, CRASHES, HANGS, STALL_VARIABLE
from tests.faults.fleet import Fleet
from tests.pipelines.extract.hostile import MIB, chapter, epub
from tests.pipelines.extract.test_hostile import READ, REFUSED

GOOD = 30
STALL_S = 2.0
ATTEMPTS = 3
RSS_MAX_MB = 300
FACTOR_MAX = 4.0
#: What each must die of, and after how many attempts.
ENDS = {CRASHES: ("crashed:SIGSEGV", 2), HANGS: ("no_progress", ATTEMPTS), "bomb": ("document_bomb", 1)}


def good(group: str) -> dict[str, AddOptions]:
    return {f"{group} {n}": {"data": book(f"theme {n % 10}", f"{group} {n}", 8)} for n in range(GOOD)}


def hostile() -> dict[str, AddOptions]:
    small = chapter(b"<p>It looks like any other book.</p>")
    return {
        CRASHES: {"data": epub([small, chapter(b"<p>crash</p>")])},
        HANGS: {"data": epub([small, chapter(b"<p>hang</p>")])},
        "bomb": {"data": epub([small, chapter(b"<p>%s</p>" % (b" " * 60 * MIB))])},
    }


def heaviest_mb(pids: Iterable[int | None]) -> int:
    """The most memory that one of these processes ever had, as the kernel tells it."""
    statuses = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return max(int(status.partition("VmHWM:")[2].split()[0]) for status in statuses) // 1024


def ended(fleet: Fleet, entries: dict[str, AddOptions], org: str) -> tuple[dict[str, str], float]:
    """Take them in; their ids, and how long it took until all the good ones were done."""
    began_s = time.monotonic()
    ids = add(fleet, entries, org)
    wanted = {id_ for name, id_ in ids.items() if name not in ENDS}

    def all_done() -> bool:
        done = fleet.ask(fleet.app.documents(org=org, state="done", limit=1_000))
        return wanted <= {status.id for status in done}

    fleet.wait(all_done, "the good ones to be done", within_s=180, look_s=0.05)
    return ids, time.monotonic() - began_s


def assert_only_they_suffer(fleet: Fleet) -> None:
    """Two workers with room for two each: the three of them cannot keep the others from being done."""
    workers = [fleet.start(APP, concurrency=2, ready=ready) for ready in (False, True)]
    ended(fleet, {"warm": {"text": "warm up"}}, "warm")
    _, alone_s = ended(fleet, good("alone"), "alone")
    mixed = list((good("among") | hostile()).items())
    random.Random(7).shuffle(mixed)
    ids, among_s = ended(fleet, dict(mixed), "among")
    wait_until_quiet(fleet, within_s=180)
    supervisor_mb = heaviest_mb(worker.pid for worker in workers)
    worker_mb = heaviest_mb(worker.child for worker in workers)

    print(
        f"{GOOD} books took {alone_s:.1f} s alone and {among_s:.1f} s among hostile ones; at most {supervisor_mb} MB "
        f"in a supervisor, {worker_mb} MB in a worker's process"
    )
    for name, id_ in ids.items():
        status = fleet.ask(fleet.app.status(id_, "among"))
        ending = (status.state, status.error_code, status.attempts_made)
        code, attempts = ENDS.get(name, (None, 1))
        assert ending == ("done" if code is None else "dead", code, attempts), name
        # one that crashed in a process that had served others ran once more, uncharged, to be found out alone
        assert status.claims <= attempts + (name == CRASHES), name
    passages(fleet, "among", {name: id_ for name, id_ in ids.items() if name not in ENDS})
    assert among_s < FACTOR_MAX * alone_s + ATTEMPTS * STALL_S
    assert max(supervisor_mb, worker_mb) < RSS_MAX_MB
    assert not any('"worker lost"' in worker.said for worker in workers)


@pytest.fixture(autouse=True)
def impatient(nearby: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Little patience with a parser that shows no progress, and the embedder that is used where nobody chose one."""
    monkeypatch.setenv(STALL_VARIABLE, str(STALL_S))
    monkeypatch.setenv("PERDURE_EMBEDDER", "auto")


def assert_little_memory(fleet: Fleet, cases: Iterable[str], within_s: float) -> None:
    """All of these through a worker: each ends as it must, and only processes that can be killed grow by them."""
    options: dict[str, Any] = {BATCH_VARIABLE: "64"}
    worker = fleet.start(APP, concurrency=1, **options)
    entries: dict[str, AddOptions] = {
        case: {"data": (REFUSED.get(case) or READ[case])[1](), "media_type": "application/octet-stream"}
        for case in cases
    }
    # each for itself: lines that are the same from end to end would be connected with each other for minutes
    ids = {case: add(fleet, {case: entry}, case)[case] for case, entry in entries.items()}
    wait_until_quiet(fleet, within_s=within_s)
    supervisor_mb, worker_mb = heaviest_mb([worker.pid]), heaviest_mb([worker.child])

    print(f"at most {supervisor_mb} MB in the supervisor, {worker_mb} MB in the worker's process")
    for case, id_ in ids.items():
        status = fleet.ask(fleet.app.status(id_, case))
        wanted = ("dead", REFUSED[case][0]) if case in REFUSED else ("done", None)
        assert (status.state, status.error_code) == wanted, case
    assert max(supervisor_mb, worker_mb) < RSS_MAX_MB
    assert '"worker lost"' not in worker.said


@pytest.fixture
def patient(impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as it has by itself: some of these take their time."""
    monkeypatch.delenv(STALL_VARIABLE)


@pytest.mark.timeout(1_800)
def test_a_line_without_end_takes_little_memory(local_library: Fleet, patient: None) -> None:
    assert_little_memory(
        local_library, ["line of 10 MB", "zip bomb", "entity bomb in docx", "deep mail"], 200
    )


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_whatever_is_hostile_takes_little_memory(library: Fleet, patient: None) -> None:
    assert_little_memory(library, [case for case in (*REFUSED, *READ) if case != "empty"], 1_500)


@pytest.mark.timeout(1_800)
def test_good_documents_do_not_suffer(local_library: Fleet) -> None:
    assert_only_they_suffer(local_library)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_good_documents_do_not_suffer_on_any_store(library: Fleet) -> None:
    assert_only_they_suffer(library)
