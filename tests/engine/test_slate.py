"""The table of what a worker has in hand, written in one process and read in another."""

from __future__ import annotations

import os
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from perdure.engine.slate import SLOTS_MAX, Slate


def test_a_job_in_hand_is_seen_until_it_is_settled() -> None:
    slate = Slate.private()
    assert slate.held() == []
    slot = slate.take(7, -(2**62), 30_000, 1_000)
    (held,) = slate.held()
    assert (held.job_id, held.token, held.lease_ms, held.renewed_ms) == (7, -(2**62), 30_000, 1_000)
    assert (held.started, held.deadline_ms) == (False, 0)
    slate.start(slot, 99_000, 60_000)
    (held,) = slate.held()
    assert (held.started, held.deadline_ms, held.lease_ms) == (True, 99_000, 60_000)
    slate.pause(slot)
    assert not slate.held()[0].started
    assert slate.held()[0].deadline_ms == 0
    slate.renewed(slot, 5_000)
    assert slate.held()[0].renewed_ms == 5_000
    slate.free(slot)
    assert slate.held() == []


def test_what_the_keeper_writes_reaches_only_the_job_it_meant() -> None:
    slate = Slate.private()
    slot = slate.take(1, 11, 30_000, 0)
    (old,) = slate.held()
    slate.free(slot)
    assert slate.take(2, 22, 30_000, 0) == slot
    slate.revoke(old)
    slate.beaten(old, 9_000)
    assert not slate.revoked(slot)
    (new,) = slate.held()
    assert new.renewed_ms == 0
    slate.revoke(new)
    slate.beaten(new, 9_000)
    assert slate.revoked(slot)
    assert slate.held()[0].renewed_ms == 9_000


def test_a_slot_taken_again_is_not_revoked_any_more() -> None:
    slate = Slate.private()
    slot = slate.take(1, 11, 30_000, 0)
    slate.revoke(slate.held()[0])
    slate.free(slot)
    assert not slate.revoked(slate.take(2, 22, 30_000, 0))


@given(st.lists(st.one_of(st.just("take"), st.integers(0, 50)), max_size=60))
def test_held_is_what_was_taken_and_not_freed(steps: list[str | int]) -> None:
    slate = Slate.private()
    model: dict[int, int] = {}
    for token, step in enumerate(steps, 1):
        if isinstance(step, str):
            slot = slate.take(token * 10, token, 30_000, 0)
            assert slot not in model
            model[slot] = token
        elif model:
            slot = sorted(model)[step % len(model)]
            del model[slot]
            slate.free(slot)
        assert {held.slot: held.token for held in slate.held()} == model


def test_there_is_room_for_the_largest_worker() -> None:
    slate = Slate.private()
    slots = [slate.take(n, n, 1_000, 0) for n in range(1, SLOTS_MAX + 1)]
    assert len(set(slots)) == SLOTS_MAX
    assert len(slate.held()) == SLOTS_MAX


def test_another_process_sees_and_revokes_what_is_in_hand() -> None:
    slate = Slate.shared()
    slot = slate.take(7, 77, 30_000, 0)
    code = (
        "import sys; from perdure.engine.slate import Slate\n"
        "slate = Slate.attached(int(sys.argv[1]))\n"
        "(held,) = slate.held(); print(held.job_id, held.token); slate.revoke(held)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(slate.fd)],
        pass_fds=[slate.fd],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["7", "77"]
    assert slate.revoked(slot)
    os.close(slate.fd)
