"""Threads follow from the set of messages alone."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.pipelines.mail.archive import open_archive
from perdure.pipelines.mail.message import decode
from perdure.pipelines.mail.threads import Letter, Thread, base_subject, letter_of, merge, threads
from tests.pipelines.mail.corpus import corpus

START = datetime(2024, 1, 1, tzinfo=UTC)


def letter(
    name: str,
    *references: str,
    subject: str = "",
    reply_to: str = "",
    days: float | None = 0,
    identity: str = "",
) -> Letter:
    date = None if days is None else START + timedelta(days=days)
    return Letter(identity or f"id-{name}", name, references, reply_to, subject, date)


def members(found: tuple[Thread, ...]) -> set[frozenset[str]]:
    return {frozenset(one.removeprefix("id-") for one in thread.messages) for thread in found}


def shape(thread: Thread) -> list[tuple[int, str]]:
    return [(node.depth, node.id.strip("<>")) for node in thread.nodes]


def test_the_corpus_is_threaded_as_it_was_made() -> None:
    made = corpus(400)
    letters, number = [], {}
    with open_archive(made.mbox) as archive:
        for place, entry in enumerate(archive):
            number[entry.identity] = place
            letters.append(letter_of(entry.identity, decode(entry.data)))
    found = threads(letters)

    assert {frozenset(number[one] for one in thread.messages) for thread in found} == {
        frozenset(one) for one in made.threads
    }
    random.Random(1).shuffle(letters)
    assert threads(letters) == found


def test_answers_stand_below_what_they_answer_in_the_order_of_dates() -> None:
    (thread,) = threads(
        [letter("d", "a", days=3), letter("c", "a", "b", days=2), letter("b", "a", days=1), letter("a")]
    )
    assert shape(thread) == [(0, "a"), (1, "b"), (2, "c"), (1, "d")]


def test_missing_parents_have_a_place_if_something_stands_below() -> None:
    (thread,) = threads([letter("x", "root", "mid", days=1), letter("y", "root", "mid", days=2)])

    assert shape(thread) == [(0, "root"), (1, "mid"), (2, "x"), (2, "y")]
    assert [node.messages for node in thread.nodes] == [(), (), ("id-x",), ("id-y",)]


def test_oddities() -> None:
    assert shape(threads([letter("a", "a", reply_to="a")])[0]) == [(0, "a")]
    cycle = threads([letter("a", "c", days=2), letter("b", "a", days=1), letter("c", "b", days=3)])
    assert [shape(one) for one in cycle] == [[(0, "b"), (1, "c"), (2, "a")]]
    twice = threads([letter("a"), letter("a", identity="other"), letter("b", "a", days=1)])
    assert [thread.messages for thread in twice] == [("id-a", "other", "id-b")]
    nameless = threads([letter("", identity="1"), letter("", identity="2"), letter("", "a", identity="3")])
    assert members(nameless) == {frozenset("1"), frozenset("2"), frozenset("3")}
    assert threads([]) == ()
    brackets = threads([letter("x", identity="y"), letter("", identity="x"), letter("z", "x", days=1)])
    assert {thread.messages for thread in brackets} == {("x",), ("y", "id-z")}


@pytest.mark.parametrize("earliest", "abc")
def test_a_cycle_is_broken_above_its_earliest_message(earliest: str) -> None:
    days = {"a": 5, "b": 6, "c": 7, earliest: 1}
    above = {"a": "c", "b": "a", "c": "b"}
    ring = [letter(name, above[name], days=day) for name, day in days.items()]
    (thread,) = threads([*ring, letter("tail", "b", days=0)])

    assert shape(thread)[0] == (0, earliest)
    assert {node.id.strip("<>"): (node.parent or "").strip("<>") for node in thread.nodes} == {
        **above,
        "tail": "b",
        earliest: "",
    }


def test_what_is_connected_by_subject_and_by_references_is_one_thread() -> None:
    found = threads(
        [
            letter("first", subject="Lunch"),
            letter("told by subject", subject="Re: Lunch", days=1),
            letter("other", "lost", subject="Dinner", days=2),
            letter("both", "told by subject", "other", subject="Re: Dinner", days=3),
        ]
    )
    assert [thread.messages for thread in found] == [
        ("id-first", "id-told by subject", "id-other", "id-both")
    ]


def test_references_count_more_than_in_reply_to() -> None:
    found = threads([letter("a"), letter("b"), letter("c", "a", reply_to="b"), letter("d", reply_to="b")])
    assert members(found) == {frozenset("ac"), frozenset("bd")}


@pytest.mark.parametrize(
    ("subject", "base"),
    [
        ("Re: AW: [list] Fwd: Hello  World", "hello world"),
        ("Re[2]: x", "x"),
        ("[a] [b] y (fwd)", "y"),
        ("RE：中文", "中文"),
        ("Regarding: x", "regarding: x"),
        ("Grüße", "gruße"),
        ("Re: ", ""),
        ("", ""),
    ],
)
def test_subjects(subject: str, base: str) -> None:
    assert base_subject(subject) == base_subject(base) == base_subject(f"Re: {base}")
    assert bool(base_subject(subject)) == bool(base)


def test_the_subject_is_the_last_resort() -> None:
    found = threads(
        [
            letter("a", subject="Lunch"),
            letter("b", subject="Re: [team] lunch", days=2),
            letter("late", subject="Re: Lunch", days=40),
            letter("new", subject="Lunch", days=3),
            letter("after new", subject="AW: Lunch", days=4),
            letter("elsewhere", "z", subject="Re: Lunch", days=5),
            letter("undated", subject="Re: Lunch", days=None),
            letter("empty", subject="Re:", days=1),
            letter("empty too", subject="Re:", days=1),
        ]
    )
    assert members(found) == {
        frozenset({"a", "b"}), frozenset({"new", "after new"}), frozenset({"late"}), frozenset({"elsewhere"}),
        frozenset({"undated"}), frozenset({"empty"}), frozenset({"empty too"}),
    }  # fmt: skip


def test_a_late_root_that_was_referred_to_changes_no_id() -> None:
    replies = [letter("b", "a", days=1), letter("c", "a", "b", days=2)]
    (before,) = threads(replies)
    after = merge(replies, [letter("a")])

    assert (after.threads[0].id, after.superseded) == (before.id, {})
    assert after.changed == (before.id,)
    assert merge([*replies, letter("a")], []).changed == ()


def test_what_is_superseded_is_told() -> None:
    known = [letter("b", days=1), letter("y", days=2)]
    b, y = threads(known)
    joined = merge(known, [letter("z", "b", "y", days=3)])
    (thread,) = joined.threads
    assert (thread.id, joined.superseded) == (b.id, {y.id: (b.id,)})

    only_parent = [letter("c", reply_to="b", days=2)]
    (before,) = threads(only_parent)
    above = merge(only_parent, [letter("b", "a", days=1)])
    assert above.superseded == {before.id: (above.threads[0].id,)}


NAMES = st.sampled_from("abcdefgh")
LETTERS = st.lists(
    st.builds(
        Letter,
        identity=st.sampled_from([f"{n}" for n in range(12)]),
        message_id=NAMES | st.just(""),
        references=st.lists(NAMES, max_size=4).map(tuple),
        in_reply_to=NAMES | st.just(""),
        subject=st.sampled_from(["", "Re: x", "x", "Re: y"]),
        date=st.none() | st.integers(0, 60).map(lambda days: START + timedelta(days=days)),
    ),
    max_size=12,
)


@given(LETTERS, st.randoms(use_true_random=False))
def test_any_order_gives_the_same_threads(letters: list[Letter], chance: random.Random) -> None:
    shuffled = list(letters)
    chance.shuffle(shuffled)
    found = threads(letters)

    assert threads(shuffled) == found
    identities = [one for thread in found for one in thread.messages]
    assert sorted(identities) == sorted({one.identity for one in letters})
    assert len({thread.id for thread in found}) == len(found)
    for thread in found:
        seen: set[str | None] = {None}
        for node in thread.nodes:
            assert node.parent in seen
            seen.add(node.id)


@given(LETTERS, st.integers(0, 12))
def test_adding_later_is_the_same_as_all_at_once(letters: list[Letter], cut: int) -> None:
    unique = list({one.identity: one for one in letters}.values())
    before = threads(unique[:cut])
    found = merge(unique[:cut], unique[cut:])

    assert found.threads == threads(unique)
    ids = {thread.id for thread in found.threads}
    for thread in before:
        assert (thread.id in ids) != (thread.id in found.superseded)
        heirs = {thread.id} if thread.id in ids else set(found.superseded[thread.id])
        assert heirs <= ids
        if thread.id in found.superseded:
            placed = {one for heir in found.threads if heir.id in heirs for one in heir.messages}
            assert placed >= set(thread.messages)
