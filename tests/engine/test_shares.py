"""Shares of a worker's slots: sizes beside each other, organisations beside each other, in time that stands still."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from perdure.core.model import Job
from perdure.engine.shares import RECENT_MS, SLOW_MS, Asked, Shares, share
from perdure.store.operations import Passing
from tests.core.jobs import FIRST

_numbers = itertools.count(1)


def job(org: str = "a", large: bool = False) -> Job:
    return replace(FIRST, id=next(_numbers), org=org, lane="~" if large else "")


class Bench:
    """A worker's shares, and a clock."""

    def __init__(self, slots: int = 3, extra: int = 1) -> None:
        self.shares = Shares(slots, extra)
        self.now_ms = 0

    def ask(self, most: int = 250) -> Asked:
        return self.shares.ask(most, self.now_ms)

    def claim(self, *waiting: Job) -> list[Job]:
        """Claims, one after the other, until nothing more is found: which jobs of those that wait, in their order."""
        left = list(waiting)
        taken: list[Job] = []
        for _ in range(20):
            asked = self.ask()
            if not asked.total:
                return taken
            found = _found(asked, left)
            again = self.shares.answered(asked, found)
            for one in found:
                left.remove(one)
                self.shares.take(one, self.now_ms)
            taken += found
            if not again:
                return taken
        raise AssertionError("it asks without end")

    def end(self, one: Job) -> None:
        self.shares.leave(one, self.now_ms)


def _found(asked: Asked, waiting: list[Job]) -> list[Job]:
    """What a store answers."""
    found = []
    for large, most, passing in (
        (False, asked.small, asked.passing),
        (True, asked.large or 0, asked.passing_large),
    ):
        fits = [one for one in waiting if asked.large is None or bool(one.lane) == large]
        others = [one for one in fits if passing is None or one.org not in passing.orgs]
        rest = [one for one in fits if one not in others] if passing is not None and passing.fill else []
        found += [*others, *rest][:most]
    return found


def test_a_share_is_never_everything() -> None:
    assert [share(n) for n in (1, 2, 3, 4, 6, 10)] == [1, 1, 1, 2, 3, 5]


def test_small_ones_alone_use_all_slots() -> None:
    assert len(Bench().claim(*(job() for _ in range(9)))) == 3


def test_large_ones_alone_use_as_many() -> None:
    assert len(Bench().claim(*(job(large=True) for _ in range(9)))) == 3


@pytest.mark.parametrize("slots", [1, 2, 3, 8, 50])
def test_a_slot_is_left_for_the_other_size(slots: int) -> None:
    for large in (True, False):
        bench = Bench(slots, max(1, slots // 2))
        assert len(bench.claim(*(job(large=large) for _ in range(99)))) == slots
        other = bench.claim(*(job(large=not large) for _ in range(99)))
        assert len(other) == max(1, slots // 2)


def test_small_ones_come_first_where_both_wait() -> None:
    bench = Bench()
    both = [job(large=bool(n % 2)) for n in range(20)]

    taken = bench.claim(*both)

    assert [bool(one.lane) for one in taken].count(True) == 1
    assert len(taken) == 4


def test_large_ones_go_on_while_small_ones_keep_coming() -> None:
    bench = Bench()
    held = bench.claim(*(job() for _ in range(9)), job(large=True))
    [large] = [one for one in held if one.lane]
    for _ in range(10):
        bench.end(large)
        [large] = bench.claim(job(), job(large=True))
        assert large.lane


def test_small_ones_get_their_slots_back_as_large_ones_end() -> None:
    bench = Bench()
    large = bench.claim(*(job(large=True) for _ in range(9)))
    assert len(bench.claim(*(job() for _ in range(9)))) == 1
    for one in large:
        bench.end(one)
    waiting = [*(job() for _ in range(9)), *(job(large=True) for _ in range(9))]

    assert [bool(one.lane) for one in bench.claim(*waiting)] == [False, False, True]


def test_many_small_ones_that_come_at_once_are_all_taken_after_a_pause() -> None:
    bench = Bench()
    for one in bench.claim(*(job(large=True) for _ in range(2))):
        bench.end(one)
    assert bench.claim() == []

    assert len(bench.claim(*(job() for _ in range(5)))) == 3


def test_without_slots_beside_both_sizes_share() -> None:
    bench = Bench(3, 0)
    assert bench.ask() == Asked(3, None)

    assert len(bench.claim(*(job(large=True) for _ in range(2)), *(job() for _ in range(5)))) == 3


# --- organisations ---------------------------------------------------------------------------


def test_who_is_alone_has_all_slots_however_long_it_takes() -> None:
    bench = Bench()
    held = bench.claim(*(job("a") for _ in range(3)))
    for _ in range(5):
        bench.now_ms += 10 * SLOW_MS
        bench.end(held.pop(0))
        held += bench.claim(job("a"))
        assert len(held) == 3


def test_a_newcomer_has_the_next_slot_that_is_free() -> None:
    bench = Bench()
    held = bench.claim(*(job("a") for _ in range(3)))
    bench.now_ms += SLOW_MS
    bench.end(held[0])

    assert [one.org for one in bench.claim(job("a"), job("a"), job("b"))] == ["b"]


def test_a_slot_is_kept_for_others_for_a_minute_after_they_were_seen() -> None:
    bench = Bench()
    held = bench.claim(*(job("a") for _ in range(2)), job("b"))
    bench.now_ms += SLOW_MS
    bench.end(held[2])
    assert bench.claim(job("a")) == []
    assert bench.ask().passing == Passing(("a",), fill=False)
    assert [one.org for one in bench.claim(job("a"), job("c"))] == ["c"]

    bench.now_ms += RECENT_MS + 1
    bench.end(held[0])
    held = bench.claim(*(job("a") for _ in range(3)))
    assert [one.org for one in held] == ["a"]


def test_quick_documents_bound_nobody() -> None:
    bench = Bench()
    bench.end(bench.claim(job("b"))[0])
    for _ in range(20):
        held = bench.claim(*(job("a") for _ in range(5)))
        assert len(held) == 3
        bench.now_ms += SLOW_MS // 4
        for one in held:
            bench.end(one)


def test_who_was_slow_does_not_take_all_slots_at_one_go() -> None:
    bench = Bench()
    for one in bench.claim(job("a"), job("b")):
        bench.now_ms += SLOW_MS
        bench.end(one)

    assert [one.org for one in bench.claim(*(job("a") for _ in range(9)))] == ["a", "a"]


def test_of_twenty_that_are_slow_none_starves() -> None:
    bench = Bench(6, 3)
    waiting = [job(f"o{n % 20:02}") for n in range(200)]
    served: list[str] = []
    for _ in range(60):
        held = bench.claim(*waiting)
        waiting = [one for one in waiting if one not in held]
        bench.now_ms += SLOW_MS
        for one in held:
            bench.end(one)
            served.append(one.org)

    assert len(served) == 200
    assert set(served[:120]) == {f"o{n:02}" for n in range(20)}


def test_where_all_are_slow_nobody_is_passed_over_for_one_slot() -> None:
    bench = Bench()
    for one in bench.claim(*(job(org) for org in "abc")):
        bench.now_ms += SLOW_MS
        bench.end(one)
    held = bench.claim(job("a"), job("b"))
    assert len(held) == 2
    assert bench.ask().passing is None

    assert [one.org for one in bench.claim(job("a"), job("b"))] == ["a"]


def test_large_ones_of_one_leave_a_slot_for_large_ones_of_others() -> None:
    bench = Bench()
    held = bench.claim(*(job("a", large=True) for _ in range(3)))
    bench.now_ms += SLOW_MS
    bench.end(held[0])

    assert [one.org for one in bench.claim(job("a", large=True), job("b", large=True))] == ["b"]


def test_who_is_slow_has_one_share_for_large_and_small_ones() -> None:
    bench = Bench()
    for one in bench.claim(job("b")):
        bench.end(one)
    held = bench.claim(*(job("a", large=True) for _ in range(9)))
    assert [bool(one.lane) for one in held] == [True]
    bench.now_ms += SLOW_MS

    assert bench.claim(*(job("a") for _ in range(9)), *(job("a", large=True) for _ in range(9))) == []
    assert [one.org for one in bench.claim(*(job("a") for _ in range(9)), *(job("b") for _ in range(9)))] == [
        "b"
    ] * 3


def test_quick_ones_of_others_have_a_slot_for_each_that_is_held_for_long() -> None:
    bench = Bench()
    for one in bench.claim(job("b")):
        bench.end(one)
    [slow] = bench.claim(job("a"))
    bench.now_ms += SLOW_MS

    assert [one.org for one in bench.claim(*(job("b") for _ in range(9)))] == ["b"] * 3
    bench.end(slow)
    assert bench.claim(*(job("b") for _ in range(9))) == []


def test_others_have_a_slot_beside_a_flood_of_quick_ones() -> None:
    bench = Bench()
    for one in bench.claim(job("b")):
        bench.end(one)
    assert len(bench.claim(*(job("a") for _ in range(9)))) == 3

    assert [one.org for one in bench.claim(*(job("a") for _ in range(9)), job("b"), job("b"))] == ["b"]


def test_many_organisations_that_are_slow_cost_an_ask_little() -> None:
    compared = 0

    class Name(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str(self) == other

        __hash__ = str.__hash__

    bench = Bench(100, 50)
    for n in range(1_000):
        one = job(Name(n))
        bench.shares.take(one, 0)
        bench.shares.leave(one, SLOW_MS)
    bench.ask()
    assert compared < 10_000


def test_a_job_that_is_taken_twice_is_counted_twice() -> None:
    bench = Bench()
    first = job("a")
    again = replace(first, token=first.token + 1)
    for one in (first, again):
        bench.shares.take(one, 0)
    assert bench.shares.small.taken == 2
    for one in (first, again):
        bench.end(one)

    assert (bench.shares.small.taken, bench.shares.small.held) == (0, {})


def test_one_that_grew_leaves_the_slot_that_it_had() -> None:
    bench = Bench()
    small = job()
    bench.shares.take(small, 0)
    bench.end(replace(small, lane="~"))

    assert (bench.shares.small.taken, bench.shares.large.taken) == (0, 0)


def test_what_is_asked_for_is_not_asked_for_twice() -> None:
    bench = Bench()
    asked = bench.ask()
    bench.shares.reserve(asked, 1)
    assert bench.ask().total == 0
    bench.shares.reserve(asked, -1)

    assert bench.ask() == asked
