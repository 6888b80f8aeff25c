"""Rare words find their chunks beside any number of common ones, and what a search reads and computes is bounded."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest

from perdure.core.words import asked
from perdure.store import candidates, rarity, searching
from perdure.store.background import SHORT
from perdure.store.ranking import Measure, Wanted, fused, share
from tests.store.making import ORG, World, dead
from tests.store.test_chunks import MODEL, indexed, texts, vector


@pytest.fixture
def memory_world(store_url: str) -> World:
    """A store whose vectors are searched by this process."""
    return World(store_url)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a few hundred chunks reach."""
    monkeypatch.setattr(candidates, "BUDGET", 100)
    monkeypatch.setattr(candidates, "CANDIDATES", 20)
    monkeypatch.setattr(candidates, "CANDIDATES_MAX", 40)
    monkeypatch.setattr(rarity, "SAMPLE", 50)
    for name in ("BUDGET", "RANKED", "CANDIDATES"):  # where they stood before
        monkeypatch.setattr(searching, name, 100, raising=False)


@pytest.fixture
def reads(world: World, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the store read each statement."""
    found: Counter[str] = Counter()
    driver = world.store.driver
    before = driver.read

    async def read(steps: Any) -> Any:
        def counted() -> Any:
            running, answer = steps(), None
            while True:
                try:
                    query = running.send(answer)
                except StopIteration as end:
                    return end.value
                found[query.sql] += 1
                answer = yield query

        return await before(counted)

    monkeypatch.setattr(driver, "read", read)
    return found


async def test_a_form_that_stands_everywhere_does_not_hide_the_rare_word(world: World, small: None) -> None:
    await indexed(world, *(f"the pump {n} is used here" for n in range(600)))
    await indexed(world, "where a zebra sleeps")

    assert (await texts(world, "zebra uses"))[0] == "where a zebra sleeps"
    assert (await texts(world, "the pump used zebra"))[0] == "where a zebra sleeps"


async def test_a_word_of_one_large_document_does_not_hide_the_rare_word(world: World, small: None) -> None:
    for n in range(60):
        await indexed(world, f"a note {n}")
    await indexed(world, *(f"the procedure {n}" for n in range(600)))
    await indexed(world, "where a zebra sleeps")

    assert (await texts(world, "zebra procedure"))[0] == "where a zebra sleeps"


async def test_each_text_of_the_sample_stands_for_equally_many_chunks(world: World, small: None) -> None:
    await indexed(world, *(f"the procedure {n}" for n in range(600)))
    for n in range(100):
        await indexed(world, f"a note {n}")

    sample = await world.store.rarity.sample(ORG)

    assert (sample.total, 45 <= sample.size <= 55) == (700, True)
    assert sample.share("procedure") == pytest.approx(6 / 7, abs=0.03)
    assert sample.share("note") == pytest.approx(1 / 7, abs=0.03)


async def test_common_words_choose_among_many_chunks_with_a_rare_one(world: World, small: None) -> None:
    said = [f"whale {n}" + (" sings" if n == 30 else "") for n in range(60)]
    await indexed(world, *said, *(f"it sings {n}" for n in range(300)))

    assert (await texts(world, "whale sings"))[0] == "whale 30 sings"


async def test_if_every_word_is_common_chunks_with_two_of_them_are_found(world: World, small: None) -> None:
    await indexed(world, *(f"red {n}" for n in range(200)), *(f"green {n}" for n in range(200)))
    await indexed(world, "red and green")

    assert (await texts(world, "red green"))[0] == "red and green"
    assert len(await texts(world, "red")) == 10


async def test_measuring_many_chunks_leaves_the_event_loop_free(
    memory_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await indexed(memory_world, "a whale " * SHORT)
    measured = searching._hits

    def slow(*given: Any) -> Any:
        time.sleep(0.3)
        return measured(*given)

    monkeypatch.setattr(searching, "_hits", slow)
    search = asyncio.create_task(memory_world.store.search(ORG, "whale"))
    waits = []
    while not search.done():
        began_s = time.monotonic()
        await asyncio.sleep(0.01)
        waits.append(time.monotonic() - began_s)

    assert len(search.result()) == 1
    assert max(waits) < 0.2


def test_a_chunk_is_measured_once_for_all_words() -> None:
    """19 words with their forms in 500 chunks of 190 words; word by word this took half a second."""
    wanted = [Wanted((f"word{n}",), tuple(f"word{n}x{m}" for m in range(12)), 1.0, 1) for n in range(19)]
    measure = Measure(wanted, [])
    text = [f"word{n % 40}" for n in range(190)]

    began_s = time.process_time()
    (fit, *_) = [measure.fit(text) for _ in range(500)]

    assert time.process_time() - began_s < 0.15
    assert (fit.covered, fit.ordered) == (1.0, 1.0)


def test_forms_phrases_and_order_count_as_they_should() -> None:
    terms = [Wanted(("retry",), ("retries",), 2.0, 1), Wanted(("here", "document"), (), 2.0, 1)]
    measure = Measure(terms, asked("here-document").joined)

    assert measure.fit("a here document".split()).covered == 0.5
    assert measure.fit("here a document retries".split()).covered == pytest.approx(0.35)
    assert measure.fit("retry here document".split()).covered == 1.0
    assert (
        measure.fit("retry here document".split()).ordered
        > measure.fit("here document retry".split()).ordered
    )


async def test_a_sample_is_read_once_while_nothing_changes(world: World, reads: Counter[str]) -> None:
    await indexed(world, "a whale")
    sql = world.store.sql

    for _ in range(3):
        assert await texts(world, "whale") == ["a whale"]
    assert reads[sql.CHUNK_WORDS] == 1

    await indexed(world, "another whale")
    assert len(await texts(world, "whale")) == 2
    assert reads[sql.CHUNK_WORDS] == 2


async def test_searches_at_the_same_time_read_one_sample(
    world: World, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await indexed(world, *(f"whale {n}" for n in range(300)))
    await asyncio.gather(*(texts(world, "whale") for _ in range(8)))
    assert reads[world.store.sql.CHUNK_WORDS] == 1

    monkeypatch.setattr(rarity, "OLD_S", 0.0)
    await asyncio.gather(*(texts(world, "whale") for _ in range(8)))
    assert reads[world.store.sql.CHUNK_WORDS] < 9


async def test_purged_documents_take_no_part_in_the_sample(world: World) -> None:
    gone = await indexed(world, "a whale")
    await indexed(world, "a zebra")
    await world.settle(gone, dead("bad_file"))
    await world.store.purge([(ORG, gone.document_id)])

    sample = await world.store.rarity.sample(ORG)

    assert (sample.total, dict(sample.has)) == (1, {"a": 1, "zebra": 1})


async def test_many_organisations_are_searched_at_once_though_few_samples_are_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rarity, "ORGANISATIONS", 2)
    for n in range(6):
        await indexed(world, f"whale {n}", org=f"org{n}")

    found = await asyncio.gather(
        *(world.store.search(f"org{n % 6}", "whale") for n in range(60)), return_exceptions=True
    )

    assert [[hit.snippet for hit in hits] for hits in found if isinstance(hits, list)] == [
        [f"whale {n % 6}"] for n in range(60)
    ]
    assert len(world.store.rarity._samples) <= 2


async def test_a_search_that_is_cancelled_keeps_the_vectors(
    memory_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = memory_world
    await indexed(world, "a whale", vectors=[vector(1, 0)])
    near = (MODEL, vector(1, 0))
    assert await texts(world, "", vector=near) == ["a whale"]
    matrices = dict(world.store.vectors.matrices)
    waiting = asyncio.Event()

    async def never(*_: Any) -> Any:
        waiting.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(world.store.vectors, "_changed", never)
        search = asyncio.create_task(texts(world, "", vector=near))
        await waiting.wait()
        search.cancel()
        await asyncio.gather(search, return_exceptions=True)

    assert dict(world.store.vectors.matrices) == matrices
    assert await texts(world, "", vector=near) == ["a whale"]


async def test_a_question_without_spaces_need_not_stand_there_literally(world: World) -> None:
    await indexed(world, "東京の天気は晴れです", "大阪の電車は遅れています")

    assert (await texts(world, "東京は晴れですか"))[0] == "東京の天気は晴れです"
    assert await texts(world, '"東京は晴れ"') == []


def test_words_count_for_less_beside_vectors_of_sentences() -> None:
    assert share("text-embedding-3-small", 3) == 0.5
    assert share("wordllama-l2-supercat-256", 3) == 0.9
    assert share("text-embedding-3-small", 1) > 0.7


def test_cosines_are_stretched_over_the_nearest() -> None:
    """One chunk that points away does not make all others alike."""
    ranked = dict(fused({}, {1: 0.9, 2: 0.8, 3: 0.75, 4: -0.9}, 0.5, 0.8))

    assert ranked == pytest.approx({1: 1.0, 2: 0.5, 3: 0.25, 4: 0.0})
    assert fused({}, {1: 0.9}, 0.5, 0.9) == [(1, 1.0)]


async def test_no_more_rows_are_read_than_the_budget_allows(world: World, small: None) -> None:
    await indexed(world, *(f"red green blue whale {n}" for n in range(600)))
    limits: list[int] = []
    sample = await world.store.rarity.sample(ORG)

    def run(steps: Any) -> None:
        answer: list[Any] | None = None
        while True:
            query = steps.send(answer)
            limits.append(query.params[0])
            answer = [(n,) for n in range(query.params[0])]

    finder = candidates.Candidates(world.store.sql, sample, ["o" + "0" * 24], True)
    with pytest.raises(StopIteration):
        run(finder.find(asked("red green blue whale absent 7")))

    assert max(limits) <= candidates.BUDGET + 1


async def test_a_search_by_words_reads_three_times_and_once_more_after_a_change(
    memory_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read waits for a connection: beside others a search took as long as its reads, which were seven."""
    driver, reads = memory_world.store.driver, []
    read = driver.read

    async def counted(steps: Any) -> Any:
        reads.append(steps)
        return await read(steps)

    monkeypatch.setattr(driver, "read", counted)
    counts = []
    for name in ("a", "b"):
        await indexed(memory_world, "a whale", name=name)
        for _ in range(2):
            reads.clear()
            await memory_world.store.search(ORG, "whale")
            counts.append(len(reads))
    assert counts == [3, 3, 4, 3]  # the first search ever knows nothing that could have changed


async def test_searches_of_a_small_organisation_look_for_changes_at_the_same_time(
    memory_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await indexed(memory_world, "a whale")
    rarity, driver = memory_world.store.rarity, memory_world.store.driver
    await rarity.sample(ORG)
    read, under_way, most = driver.read, 0, 0

    async def slow(steps: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        found = await read(steps)
        under_way -= 1
        return found

    monkeypatch.setattr(driver, "read", slow)
    await asyncio.gather(*(rarity.sample(ORG) for _ in range(5)))
    assert most == 5
