"""Search: any text is a query, the right chunks come first, and nobody sees what is not theirs."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from perdure.core.forms import forms
from perdure.core.words import asked, snippet, words
from perdure.errors import InputInvalid
from perdure.store.matrix import Matrix, unit
from perdure.store.near import Among
from perdure.store.searching import Searching
from tests.store.making import ORG, World, dead, output, save
from tests.store.test_chunks import MODEL, chunk, chunk_set, indexed, texts, vector


@pytest.fixture(params=["sqlite", "postgres", "pgvector"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A fresh store; the last one searches vectors itself."""
    if request.param == "sqlite":
        return World(f"sqlite:///{tmp_path}/perdure.db")
    if request.param == "pgvector":
        monkeypatch.setattr(Searching, "vectors_by", "pgvector")
    return World(request.getfixturevalue("postgres_url"))


@pytest.fixture
def memory_world(store_url: str) -> World:
    """A store whose vectors are searched by this process."""
    return World(store_url)


CORPUS = (
    "The retry policy waits longer after each failure.",
    "A policy for retired whales: retry nothing.",
    "Whales migrate in spring, and sing.",
    "Café naïve Ærø Straße ﬁre",
    "東京都の天気は晴れです",
)


async def test_words_find_their_chunks_and_more_of_them_come_first(world: World) -> None:
    for text in CORPUS:
        await indexed(world, text)

    assert (await texts(world, "retry policy failure"))[0] == CORPUS[0]
    assert set(await texts(world, "whales")) == {CORPUS[1], CORPUS[2]}
    assert (await texts(world, "do whales sing?"))[0] == CORPUS[2]
    assert await texts(world, '"retry policy"') == [CORPUS[0]]
    assert await texts(world, '"policy retry"') == []
    for same in ("CAFE", "cafe\u0301", "naive", "strasse", "FIRE", "東京", "天気"):
        assert len(await texts(world, same)) == 1, same
    assert await texts(world, "absent") == []
    assert await texts(world, " ?!* ") == []


async def test_a_search_stays_within_organisation_collection_and_document(world: World) -> None:
    one = await indexed(world, "whales one", vectors=[vector(1, 0)])
    two = await indexed(world, "whales two", vectors=[vector(1, 0)])
    await indexed(world, "whales elsewhere", vectors=[vector(1, 0)], org="elsewhere")
    await world.execute("UPDATE document SET collection = 'sea' WHERE id = $1", two.document_id)
    new = chunk(two.document_id, 0, "whales two!", vector(1, 0))
    await world.store.save(save(two, output=output(), chunks=chunk_set(new)))

    for given_vector in (None, (MODEL, vector(1, 0))):
        for query in ("whales", "") if given_vector else ("whales",):

            async def found(query: str = query, **more: Any) -> set[str]:
                return set(await texts(world, query, vector=given_vector, **more))  # noqa: B023

            assert await found() == {"whales one", "whales two!"}
            assert await found(collection="sea") == {"whales two!"}
            assert await found(document=one.document_id) == {"whales one"}
            assert await found(document=one.document_id, collection="sea") == set()
            assert await found(collection="nowhere") == set()


async def test_a_common_word_hides_no_chunk_however_many_are_newer(memory_world: World) -> None:
    world = memory_world
    await indexed(world, "where the zebra sleeps at night")
    await indexed(world, *(f"the number {n} is here, where it was" for n in range(6_000)))

    assert (await texts(world, "where does the zebra sleep"))[0] == "where the zebra sleeps at night"
    assert len(await texts(world, "the where is")) == 10


async def test_a_new_word_is_found_at_once_though_the_sample_is_older(memory_world: World) -> None:
    world = memory_world
    await indexed(world, *(f"the number {n}" for n in range(300)))
    assert await texts(world, "zebra") == []

    await indexed(world, "a zebra")

    assert await texts(world, "zebra") == ["a zebra"]
    assert (await texts(world, "the zebra"))[0] == "a zebra"


async def test_another_form_of_a_word_is_found_and_comes_behind_the_word_itself(memory_world: World) -> None:
    world = memory_world
    for text in ("it retried twice", "what retries cost", "whales sing"):
        await indexed(world, text)

    assert await texts(world, "retries") == ["what retries cost", "it retried twice"]
    assert await texts(world, '"retries"') == ["what retries cost"]


async def test_rarity_is_that_of_the_organisation_itself(memory_world: World) -> None:
    """A word that is common elsewhere is not common here."""
    world = memory_world
    await indexed(world, "a zebra", "a whale", *(f"a whale {n}" for n in range(20)))
    before = [(hit.snippet, hit.score) for hit in await world.store.search(ORG, "zebra whale")]
    await indexed(world, *(f"zebra {n}" for n in range(500)), org="elsewhere")

    after = [(hit.snippet, hit.score) for hit in await world.store.search(ORG, "zebra whale")]

    assert before[0][0] == "a zebra"
    assert after == before


async def test_nothing_is_shown_where_nothing_fits(memory_world: World) -> None:
    world, model = memory_world, "wordllama-l2-supercat-256"
    said = ["the whale sings", *(f"the number {n} is not told" for n in range(1_100))]
    many = [replace(chunk("d", n, text, vector(1, 0)), model=model) for n, text in enumerate(said)]
    job = await indexed(world, "one")
    await world.store.save(save(job, output=output(), chunks=chunk_set(*many)))

    assert await texts(world, "the sourdough bread recipe", vector=(model, vector(0, 1))) == []
    assert (await texts(world, "the whale sings", vector=(model, vector(0, 1))))[0] == "the whale sings"
    assert len(await texts(world, "the sourdough bread recipe", vector=(model, vector(1, 0)))) == 10


async def test_both_ways_together_beat_either_alone(world: World) -> None:
    await indexed(world, "sea sea sea", vectors=[vector(0, 0, 1)])
    await indexed(world, "ocean", vectors=[vector(1, 0.05, 0)])
    await indexed(world, "the sea, and much else that is long", vectors=[vector(1, 0, 0)])

    hits = await world.store.search(ORG, "sea", (MODEL, vector(1, 0, 0)))

    assert [hit.snippet[:5] for hit in hits] == ["the s", "sea s", "ocean"]
    assert hits[0].score > hits[1].score > 0
    assert len(await world.store.search(ORG, "sea", (MODEL, vector(1, 0, 0)), limit=1)) == 1


async def test_who_has_all_the_words_comes_before_who_is_near_and_has_some(world: World) -> None:
    """Rare words are asked for because they matter; a phrase in quotes must be there."""
    for n in range(5):
        await indexed(world, f"once you make more of it {n}", vectors=[vector(1, 0, n / 100)])
    await indexed(world, "Rye once more and more", vectors=[vector(-1, 0, 0)])
    await indexed(world, "the here-document ends", vectors=[vector(-1, 0, 0)])
    await indexed(world, "copies of the document that is here", vectors=[vector(1, 0, 0)])
    near = (MODEL, vector(1, 0, 0))

    assert (await texts(world, "rye once more", vector=near))[0] == "Rye once more and more"
    assert (await texts(world, "Rye", vector=near))[0] == "Rye once more and more"
    assert (await texts(world, "here-document", vector=near))[0] == "the here-document ends"
    assert await texts(world, '"here document"', vector=near) == ["the here-document ends"]
    assert await texts(world, '"once more" absent', vector=near) == ["Rye once more and more"]
    assert await texts(world, '"more once"', vector=near) == []
    assert len(await texts(world, "more of the same", vector=near)) == 8


async def test_what_was_purged_takes_nobodys_place(memory_world: World) -> None:
    world = memory_world
    gone = await indexed(world, "a whale that is gone", vectors=[vector(1, 0)])
    await indexed(world, "a whale", vectors=[vector(1, 0.5)])
    near = (MODEL, vector(1, 0))
    assert await texts(world, "", vector=near, limit=1) == ["a whale that is gone"]

    await world.settle(gone, dead("bad_file"))
    await world.store.purge([(ORG, gone.document_id)])

    assert await texts(world, "whale", vector=near) == ["a whale"]
    assert await texts(world, "", vector=near, limit=1) == ["a whale"]
    assert [matrix.count for matrix in world.store.vectors.matrices.values()] == [1]


async def test_vectors_of_another_model_or_length_or_none_are_left_out(world: World) -> None:
    await indexed(world, "plain", vectors=[vector(1, 0)])
    await indexed(world, "longer", vectors=[vector(1, 0, 0)])
    await indexed(world, "without")

    async def found(model: str, vec: bytes) -> list[str]:
        return await texts(world, "", vector=(model, vec))

    assert await found(MODEL, vector(1, 0)) == ["plain"]
    assert await found(MODEL, vector(1, 0, 0)) == ["longer"]
    assert await found("other", vector(1, 0)) == []
    assert await found(MODEL, vector(float("nan"), 0)) == []
    with pytest.raises(InputInvalid):
        await found(MODEL, b"123")
    with pytest.raises(InputInvalid):
        await world.store.search(ORG, "x", limit=0)


async def test_what_others_commit_is_seen_at_the_next_search(world: World) -> None:
    reader = await world.another()
    job = await indexed(world, "one", vectors=[vector(1, 0)])
    wanted = (MODEL, vector(1, 0))
    assert [h.snippet for h in await reader.search(ORG, "", wanted)] == ["one"]

    await indexed(world, "two", vectors=[vector(1, 0.1)])
    assert {h.snippet for h in await reader.search(ORG, "", wanted)} == {"one", "two"}
    new = chunk(job.document_id, 0, "three", vector(1, 0))
    await world.store.save(save(job, output=output(), chunks=chunk_set(new)))

    assert {h.snippet for h in await reader.search(ORG, "", wanted)} == {"two", "three"}


async def test_a_transaction_that_commits_late_is_not_missed(postgres_world: World) -> None:
    """Its number is lower than that of others which were seen before it."""
    world = postgres_world
    reader, late = await world.another(), await world.another()
    job = await indexed(world, "one", vectors=[vector(1, 0)])
    wanted = (MODEL, vector(1, 0))
    going_on, may_commit = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with late.driver.reading() as connection, connection.transaction():  # type: ignore[attr-defined]
            await connection.execute(
                "UPDATE chunk SET vector = $1 WHERE document_id = $2", vector(0, 1), job.document_id
            )
            await connection.execute(late.sql.INDEXED_SET, ORG, job.document_id, "r2", 1, 0, 1)
            going_on.set()
            await may_commit.wait()

    holding = asyncio.create_task(hold())
    await going_on.wait()
    await indexed(world, "two", vectors=[vector(1, 0.1)])
    assert len(await reader.search(ORG, "", wanted)) == 2
    may_commit.set()
    await holding

    assert [h.snippet for h in await reader.search(ORG, "", wanted)] == ["two"]


async def test_with_no_room_for_the_vectors_the_answer_is_the_same(memory_world: World) -> None:
    world = memory_world
    for n in range(12):
        await indexed(world, f"t{n}", vectors=[vector(1, n / 5)])
    cramped = await world.another()
    cramped.vector_room_bytes = 64
    wanted = (MODEL, vector(1, 1))

    expected = await world.store.search(ORG, "t3", wanted)

    assert await cramped.search(ORG, "t3", wanted) == expected
    assert cramped.vectors.matrices == {}
    assert await world.store.search(ORG, "t3", wanted) == expected


async def test_matrices_that_were_not_used_for_longest_go_first(memory_world: World) -> None:
    world = memory_world
    for n in range(3):
        await indexed(world, "whales", vectors=[vector(1, 0)], org=f"org{n}")
    store = await world.another()
    store.vector_room_bytes = 45_000  # two of the smallest
    for n in (0, 1, 0, 2, 0):
        assert len(await store.search(f"org{n}", "", (MODEL, vector(1, 0)))) == 1

    assert [which.org for which in store.vectors.matrices] == ["org2", "org0"]


HOSTILE = st.text(
    st.one_of(st.characters(), st.sampled_from("\"'*():^-+{}\\<>|&! \0%_\ud800éß東ANDORNOTNEAR")), max_size=60
)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_no_query_breaks_the_search(kind: str, request: pytest.FixtureRequest) -> None:
    with tempfile.TemporaryDirectory() as directory:
        url = request.getfixturevalue("postgres_url") if kind == "postgres" else f"sqlite:///{directory}/p.db"
        loop = asyncio.new_event_loop()
        world = World(url)
        loop.run_until_complete(world.__aenter__())
        loop.run_until_complete(indexed(world, 'AND OR NOT NEAR the whale\'s "song" of foo_bar 1e5 3.14'))

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(HOSTILE)
        @example('"')
        @example("NEAR(a b, 3) AND words : x* OR ^y -z")
        @example("'; DROP TABLE chunk; --")
        @example("a & | ! <-> (b):*")
        @example("word " * 500)
        def ask(query: str) -> None:
            hits = loop.run_until_complete(world.store.search(ORG, query))
            wanted = asked(query)
            own = set(words('AND OR NOT NEAR the whale\'s "song" of foo_bar 1e5 3.14'))
            if all(len(term) == 1 for term in wanted.terms):
                single = [word for (word,) in wanted.single]
                there = [word in own for (word,) in wanted.quoted] or [
                    not own.isdisjoint((word, *forms(word))) for word in single
                ]
                assert bool(hits) == (all(there) and bool(there) if wanted.quoted else any(there))

        try:
            ask()
        finally:
            loop.run_until_complete(world.__aexit__(None, None, None))
            loop.close()


# --- pieces ----------------------------------------------------------------------------------------


def test_a_snippet_shows_the_words_that_were_asked_for() -> None:
    text = "filler " * 100 + "here the RETRY Policy stands " + "filler " * 100

    shown = snippet(text, asked("retry policy").terms)

    assert "RETRY Policy" in shown
    assert shown.startswith("… ")
    assert shown.endswith(" …")
    assert len(shown) <= 244
    assert snippet("short\n\ntext", asked("absent").terms) == "short text"
    assert snippet(text, []).startswith("filler filler")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=40))
def test_a_matrix_holds_what_was_put_in_last(puts: list[tuple[int, int]]) -> None:
    rng = np.random.default_rng(7)
    matrix, held = Matrix(3), dict[str, list[tuple[int, bytes]]]()
    for step, (which, count) in enumerate(puts):
        nums = [step * 10 + n for n in range(count)]
        vectors = [rng.normal(size=3).astype("<f4").tobytes() for _ in nums]
        matrix.put(f"d{which}", f"c{which % 2}", f"r{step}", nums, vectors)
        held[f"d{which}"] = list(zip(nums, vectors, strict=True))
    wanted = unit(vector(1, 1, 1), 3)

    for among, documents in (
        (Among(), set(held)),
        (Among(collection="c1"), {d for d in held if int(d[1:]) % 2}),
        (Among(document="d2"), {"d2"} & set(held)),
        (Among(but="d2"), set(held) - {"d2"}),
    ):
        scores = {n: float((unit(v, 3) @ wanted.T)[0, 0]) for d in documents for n, v in held[d]}
        (found,) = matrix.nearest(wanted, 4, among)
        best = sorted(scores, key=lambda n: -scores[n])[:4]
        assert [near.num for near in found] == best
    assert matrix.count == sum(map(len, held.values()))


def test_anchors_are_not_shown() -> None:
    assert (
        snippet("<!-- page=3 -->\n\n# Leases\n\nWho holds one.", asked("leases").terms)
        == "# Leases Who holds one."
    )
