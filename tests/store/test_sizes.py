"""Large documents wait in lanes of their own, whatever happens to them, and a claim asks for either size."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from perdure.core.lane import is_large
from perdure.core.token import new_token
from perdure.store import ranks
from perdure.store.base import BREAKER
from perdure.store.operations import Claim, NewDocument, NewJob, Promote, Requeue
from perdure.store.records import Claimed
from tests.store.making import DONE, QUEUE, World, dead, document, hold, later, output, retry, save

LARGE_BYTES = 1_000


@pytest.fixture
def sizes(world: World) -> World:
    """A store in which documents of a thousand bytes are large."""
    world.store.flusher.large_bytes = LARGE_BYTES
    return world


def large(name: str = "", size: int = LARGE_BYTES, **job: Any) -> NewDocument:
    return replace(document(name, **job), size=size)


async def claim(world: World, small: int = 0, large: int = 0, suspects: int = 0) -> list[Claimed]:
    """A claim for so many of each."""
    return await world.store.claim(Claim(world.worker, (QUEUE,), new_token(), small, suspects, large=large))


def names(found: list[Claimed]) -> Counter[str]:
    return Counter(one.document.name for one in found)


async def test_the_size_decides_and_each_claim_finds_its_own(sizes: World) -> None:
    await sizes.add(large("l"), large("s", LARGE_BYTES - 1), large("l", 9_999), document("s"))

    assert names(await claim(sizes, small=9)) == {"s": 2}
    assert names(await claim(sizes, large=1)) == {"l": 1}
    assert names(await claim(sizes, small=9, large=9)) == {"l": 1}


async def test_one_claim_takes_both_and_no_more_than_asked_for(sizes: World) -> None:
    await sizes.add(*(large("l") for _ in range(5)), *(document("s") for _ in range(5)))

    assert names(await claim(sizes, small=3, large=2)) == {"s": 3, "l": 2}


async def test_a_claim_that_does_not_ask_for_sizes_takes_all_by_turn(sizes: World) -> None:
    ids = await sizes.add(large(), document(), large())

    assert [c.job.document_id for _ in ids for c in await sizes.claim()] == ids


async def test_without_a_bound_nothing_is_large(sizes: World) -> None:
    sizes.store.flusher.large_bytes = 0
    await sizes.add(large("s"))

    assert names(await claim(sizes, small=1)) == {"s": 1}


async def test_what_is_tried_again_later_or_held_stays_large(sizes: World) -> None:
    for ending in (retry(), later(), retry(10), hold()):
        await sizes.add(large("l"))
        [one] = await claim(sizes, large=1)
        await sizes.settle(one.job, ending)
        sizes.clock.turn(10_000)
        await sizes.store.promote(Promote())
        assert await claim(sizes, small=5) == []
        [again] = await claim(sizes, large=5)
        await sizes.settle(again.job, DONE)


async def test_a_suspect_is_a_suspect_whatever_its_size(sizes: World) -> None:
    await sizes.add(large("l"))
    [one] = await claim(sizes, large=1)
    await sizes.settle(one.job, later(suspect=True))

    assert await claim(sizes, small=5, large=5) == []
    assert names(await claim(sizes, suspects=5)) == {"l": 1}


async def test_it_is_held_and_released_with_the_others(sizes: World) -> None:
    await sizes.store.hold("ocr", "away", "ada")
    await sizes.add(large("l", lane="ocr"), document("s", lane="ocr"))
    assert await claim(sizes, small=5, large=5) == []
    assert {one.name: one.held for one in await sizes.store.dependencies()} == {"ocr": 2}
    [lane] = [one for one in await sizes.store.lanes() if one.name]
    assert (lane.name, lane.reason) == ("ocr", "away")

    await sizes.store.release("ocr")

    assert names(await claim(sizes, small=5)) == {"s": 1}
    assert names(await claim(sizes, large=5)) == {"l": 1}


async def test_one_that_reaches_a_stage_whose_service_is_down_is_held(sizes: World) -> None:
    await sizes.add(large("l"))
    [one] = await claim(sizes, large=1)
    assert await sizes.store.save(save(one.job, "read", "ocr"))
    await sizes.store.hold("ocr", "away", "ada")
    await sizes.settle(replace(one.job, stage="read"), hold(), lane="ocr")
    assert (await sizes.status(one.job.document_id)).held_by == "ocr"
    assert await claim(sizes, small=5, large=5) == []

    await sizes.store.release("ocr")

    assert names(await claim(sizes, small=5, large=5)) == {"l": 1}


async def test_one_that_is_lent_takes_a_slot_of_large_ones(sizes: World) -> None:
    await sizes.store.hold("ocr", "away", BREAKER)
    [id_] = await sizes.add(large("l", lane="ocr"))
    sizes.clock.turn(10_000)
    assert await sizes.store.lend() == 1

    assert await claim(sizes, small=5) == []
    [lent] = await claim(sizes, large=5)
    assert (lent.job.probe, is_large(lent.job.lane)) == ("ocr", True)
    await sizes.settle(lent.job, later(), lane="ocr")
    assert (await sizes.status(id_)).state == "held"


async def test_one_that_is_lent_and_recalled_is_where_it_was(sizes: World) -> None:
    await sizes.store.hold("ocr", "away", BREAKER)
    await sizes.add(large("l", lane="ocr"))
    sizes.clock.turn(10_000)
    assert await sizes.store.lend() == 1

    await sizes.store.release("ocr")

    assert names(await claim(sizes, small=5, large=5)) == {"l": 1}


async def test_limits_count_both_sizes_together(sizes: World) -> None:
    await sizes.store.limit("few", 2, None)
    await sizes.add(
        *(large("l", limit_key="few") for _ in range(2)), *(document("s", limit_key="few") for _ in range(2))
    )

    found = await claim(sizes, small=9, large=9)
    assert len(found) == 2
    for one in found:
        await sizes.settle(one.job, DONE)
    again = await claim(sizes, small=9, large=9)

    assert names(found) + names(again) == {"l": 2, "s": 2}


async def test_jobs_that_follow_from_a_large_document_are_large(sizes: World) -> None:
    await sizes.add(large("l"))
    [one] = await claim(sizes, large=1)
    follow = NewJob("after", QUEUE, "look", name="after")
    await sizes.settle(one.job, DONE, save=save(one.job, jobs=(follow,)))

    assert await claim(sizes, small=5) == []
    [after] = await claim(sizes, large=5)
    assert after.job.pipeline == "after"


async def test_a_child_is_as_large_as_it_is(sizes: World) -> None:
    await sizes.add(large("parent"))
    [one] = await claim(sizes, large=1)
    children = (
        replace(document("small"), parent_id=one.job.document_id),
        replace(large("big"), parent_id=one.job.document_id),
    )
    await sizes.settle(one.job, DONE, save=save(one.job, documents=children))

    assert names(await claim(sizes, small=5)) == {"small": 1}
    assert names(await claim(sizes, large=5)) == {"big": 1}


@pytest.mark.parametrize("bytes_now", [LARGE_BYTES, 0])
async def test_a_requeue_goes_by_the_size_and_the_bound_of_today(sizes: World, bytes_now: int) -> None:
    [id_] = await sizes.add(large("l"))
    [one] = await claim(sizes, large=1)
    await sizes.settle(one.job, dead())
    sizes.store.flusher.large_bytes = bytes_now

    again = NewJob("books", QUEUE, "extract")
    assert await sizes.store.requeue(Requeue(one.job.org, id_, again)) == "requeued"

    assert len(await claim(sizes, large=5)) == bool(bytes_now)
    assert len(await claim(sizes, small=5)) == (not bytes_now)


@pytest.mark.parametrize("fresh_from", [None, "chunk"])
async def test_a_requeue_of_one_that_a_stage_made_large_is_large(
    sizes: World, fresh_from: str | None
) -> None:
    """What the stage gave is not made again, so nobody would notice how large it is."""
    [id_] = await sizes.add(document("s"))
    [one] = await claim(sizes, small=1)
    text = replace(output(), size=LARGE_BYTES)
    await sizes.settle(one.job, dead(), save=save(one.job, output=text))

    again = NewJob("books", QUEUE, "extract")
    await sizes.store.requeue(Requeue(one.job.org, id_, again, fresh_from))

    assert await claim(sizes, small=5) == []
    assert names(await claim(sizes, large=5)) == {"s": 1}


async def test_a_requeue_with_other_content_goes_by_that(sizes: World) -> None:
    [id_] = await sizes.add(large("l"))
    [one] = await claim(sizes, large=1)
    await sizes.settle(one.job, dead())
    content = replace(document("s"), org=one.job.org)

    await sizes.store.requeue(Requeue(one.job.org, id_, content.job, content=content))

    assert len(await claim(sizes, small=5)) == 1


async def test_organisations_take_turns_among_large_ones_too(sizes: World) -> None:
    await sizes.add(*(large("a", org="a") for _ in range(50)))
    await sizes.add(*(large("b", org="b") for _ in range(5)))

    found = [names(await claim(sizes, large=1)) for _ in range(10)]

    assert sum(found, Counter()) == {"a": 5, "b": 5}


async def test_what_nobody_says_is_large_costs_no_flow(sizes: World) -> None:
    await sizes.add(document())

    assert not [row for row in await sizes.table("flow") if is_large(row["lane"])]


async def test_a_ramp_lends_both_sizes_and_a_release_gives_the_rest(sizes: World) -> None:
    await sizes.store.hold("ocr", "away", BREAKER)
    await sizes.add(
        *(made(lane="ocr", name=word) for _ in range(30) for made, word in ((large, "l"), (document, "s")))
    )
    sizes.clock.turn(10_000)
    assert await sizes.store.lend() == 1
    [probe] = await claim(sizes, small=1, large=1)
    await sizes.store.probed("ocr", True)
    await sizes.settle(probe.job, DONE)

    seen = names([probe])
    for _ in range(20):
        sizes.clock.turn(1_000)
        await sizes.store.lend()
        for sort in ({"small": 30}, {"large": 30}):
            found = await claim(sizes, **sort)
            assert {is_large(one.job.lane) for one in found} <= {"large" in sort}
            seen += names(found)
            for one in found:
                await sizes.settle(one.job, DONE)

    assert seen == {"l": 30, "s": 30}
    assert not [one for one in await sizes.store.dependencies() if one.state != "up"]


@pytest.mark.parametrize("is_large_one", [False, True])
async def test_a_lent_job_counts_in_the_stream_of_its_size(sizes: World, is_large_one: bool) -> None:
    await sizes.add(document())  # a turn that is not the first of all
    await claim(sizes, small=1)
    await sizes.store.hold("ocr", "away", BREAKER)
    await sizes.add((large if is_large_one else document)("x", lane="ocr", priority=5))
    sizes.clock.turn(10_000)
    assert await sizes.store.lend() == 1

    [lent] = await claim(sizes, small=5, large=5)

    assert lent.job.probe == "ocr"
    assert set(sizes.store.flusher._written[ranks.Had]) == {(QUEUE, is_large_one)}


async def pile(world: World, org: str, make: Any, number: int, **job: Any) -> None:
    await world.add(*(replace(make(org, **job), org=org) for _ in range(number)))


async def test_large_ones_that_are_served_early_do_not_put_others_behind_a_backlog(sizes: World) -> None:
    await pile(sizes, "hostile", document, 50)
    await pile(sizes, "hostile", large, 2)
    assert names(await claim(sizes, small=1, large=1)) == {"hostile": 2}

    await pile(
        sizes, "both", large, 1
    )  # its large one is behind one of the others, its small one is the next
    await pile(sizes, "both", document, 1)
    await pile(sizes, "elsewhere", document, 1, pipeline="other")

    assert names(await claim(sizes, small=5)) == {"hostile": 3, "both": 1, "elsewhere": 1}
    assert names(await claim(sizes, large=2)) == {"hostile": 1, "both": 1}


async def test_a_large_one_is_not_behind_large_ones_because_small_ones_are_quick(sizes: World) -> None:
    await pile(sizes, "hostile", large, 50)
    await pile(sizes, "polite", document, 60)
    while await claim(sizes, small=10):
        pass
    await pile(sizes, "polite", large, 1)
    await pile(sizes, "elsewhere", large, 1, pipeline="other")

    assert names(await claim(sizes, large=4)) == {"hostile": 2, "polite": 1, "elsewhere": 1}


async def test_the_first_large_ones_begin_where_the_others_are(sizes: World) -> None:
    await pile(sizes, "polite", document, 60)
    await sizes.claim(50)
    await pile(sizes, "hostile", large, 20)

    assert names(await sizes.claim(10)) == {"hostile": 5, "polite": 5}


async def test_both_sizes_share_the_room_under_a_limit(sizes: World) -> None:
    await pile(sizes, "quick", document, 60)
    await pile(sizes, "hostile", large, 30, limit_key="k", limit_each=1)
    while await claim(sizes, small=10):
        pass
    await pile(sizes, "polite", document, 1, limit_key="k", limit_each=1)
    seen: list[str] = []
    while "polite" not in seen:
        for one in await claim(sizes, small=1, large=1):
            seen.append(one.document.name)
            sizes.clock.turn(1)
            await sizes.settle(one.job, DONE)

    assert len(seen) <= 10
