"""Fairness: each organisation gets its turns, whatever the others have piled up before it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from perdure.core.token import new_token
from perdure.store.base import BREAKER
from perdure.store.operations import Claim, Raise
from tests.store.making import DONE, QUEUE, World, document, hold, later, retry, save


async def pile(world: World, org: str, count: int, **job: Any) -> None:
    """Add many documents of one organisation."""
    for start in range(0, count, 1_000):
        await world.add(*(document(org=org, **job) for _ in range(min(1_000, count - start))))


async def served(world: World, count: int, batch: int = 10) -> Counter[str]:
    """Whose documents the next `count` claims are, taken in batches."""
    orgs: Counter[str] = Counter()
    while orgs.total() < count:
        found = await world.claim(batch)
        assert found, "nothing left to claim"
        orgs.update(c.document.org for c in found)
    return orgs


async def test_ten_behind_ten_thousand_are_among_the_first_hundred(world: World) -> None:
    await pile(world, "big", 10_000)
    await pile(world, "small", 10)

    assert (await served(world, 100))["small"] == 10


async def test_a_newcomer_is_served_at_once_while_a_backlog_is_half_done(world: World) -> None:
    await pile(world, "big", 300)
    await served(world, 100)
    await pile(world, "late", 20)

    assert await served(world, 40) == {"big": 20, "late": 20}


async def test_ten_organisations_share_alike(world: World) -> None:
    for n in range(10):
        await pile(world, f"org{n}", 50 - n)

    assert set((await served(world, 100)).values()) == {10}


async def test_weights_share_the_turns(world: World) -> None:
    await world.store.weigh("heavy", 3)
    await world.store.weigh("light", 0.5)
    for org in ("heavy", "plain", "light"):
        await pile(world, org, 200)

    shares = await served(world, 180, batch=5)

    assert abs(shares["heavy"] - 120) <= 6
    assert abs(shares["plain"] - 40) <= 4
    assert abs(shares["light"] - 20) <= 4


async def test_who_was_away_does_not_own_the_queue_when_it_returns(world: World) -> None:
    await pile(world, "early", 5)
    await served(world, 5)
    await pile(world, "busy", 500)
    await served(world, 300)
    await pile(world, "early", 100)

    shares = await served(world, 60)

    assert abs(shares["early"] - shares["busy"]) <= 10


async def test_who_had_many_turns_yesterday_is_not_made_to_wait_today(world: World) -> None:
    await pile(world, "bulk", 400)
    await served(world, 400, batch=100)  # the queue is empty now
    await pile(world, "bulk", 20)
    await pile(world, "other", 200)

    assert (await served(world, 50))["bulk"] >= 18


async def test_what_is_held_does_not_hold_the_time_back(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    await world.add(document(org="held", lane="ocr"))
    await world.store.hold("ocr", "away")
    await pile(world, "busy", 300)
    await served(world, 200)
    await pile(world, "late", 100)

    shares = await served(world, 60)

    assert abs(shares["late"] - shares["busy"]) <= 10


async def test_priorities_do_not_cut_in_front_of_another_organisation(world: World) -> None:
    await pile(world, "plain", 50)
    for priority in range(1, 11):
        await pile(world, "pushy", 20, priority=priority)

    # few ranks, each with a turn of its own: more than its half, but the other is served all along
    assert (await served(world, 110))["plain"] >= 10


async def test_a_retry_is_neither_behind_its_own_backlog_nor_before_everybody(world: World) -> None:
    await pile(world, "big", 500)
    await pile(world, "small", 50)
    first = (await world.claim(1))[0]
    assert first.document.org == "big"
    await world.settle(first.job, retry(1_000))
    await served(world, 20)
    world.clock.turn(1_000)
    await world.promoted(1)

    again = [c.job.id for _ in range(3) for c in await world.claim(5)]

    assert first.job.id in again


async def test_a_job_given_back_at_once_keeps_its_turn(world: World) -> None:
    await pile(world, "big", 100)
    first = (await world.claim(1))[0]
    await world.settle(first.job, later())

    assert (await world.claim(1))[0].job.id == first.job.id


async def test_queues_have_times_of_their_own(world: World) -> None:
    await pile(world, "acme", 200)
    await served(world, 100)
    await world.add(
        *(document(org="acme", queue="films") for _ in range(3)), document(org="zeta", queue="films")
    )

    orgs = [c.document.org for _ in range(4) for c in await world.claim(1, queues=["films"])]

    assert sorted(orgs[:2]) == ["acme", "zeta"]


async def claimed(world: World, count: int, *queues: str) -> list[str]:
    return [one.job.org for one in await world.claim(count, queues=queues)]


@pytest.mark.parametrize("batch", [1, 8])
async def test_a_backlog_in_a_seldom_used_queue_does_not_go_before_others(world: World, batch: int) -> None:
    await world.store.declare(["documents", "mail"], [])
    await pile(world, "usual", 300)
    while await claimed(world, 100, "documents", "mail"):
        world.clock.turn(1_100)
    await pile(world, "large", 100, queue="mail", pipeline="message")
    await pile(world, "small", 2)
    first = [org for _ in range(16 // batch) for org in await claimed(world, batch, "documents", "mail")]
    assert "small" in first[: max(2, batch)]
    assert Counter(first) == {"small": 2, "large": 14}


async def test_queues_that_share_slots_take_turns(world: World) -> None:
    await world.store.declare(["documents", "mail", "images"], [])
    for queue in ("documents", "mail", "images"):
        await pile(world, queue, 30, queue=queue)
    taken = Counter[str]()
    for _ in range(30):
        taken.update(await claimed(world, 1, "documents", "mail", "images"))
    assert taken == {"documents": 10, "mail": 10, "images": 10}


async def test_a_raised_document_goes_first_whatever_its_queue(world: World) -> None:
    await world.store.declare(["documents", "mail"], [])
    await pile(world, "many", 20)
    await pile(world, "urgent", 1, queue="mail")
    (raised,) = [row for row in await world.table("document") if row["org"] == "urgent"]
    assert await world.store.raise_(Raise("urgent", raised["id"])) == "raised"
    assert await claimed(world, 1, "documents", "mail") == ["urgent"]


async def test_finishing_changes_nothing_about_whose_turn_it_is(world: World) -> None:
    await pile(world, "a", 30)
    await pile(world, "b", 30)
    order = []
    for _ in range(20):
        (claimed,) = await world.claim(1)
        order.append(claimed.document.org)
        await world.settle(claimed.job, DONE)

    assert Counter(order) == {"a": 10, "b": 10}
    assert all({order[n], order[n + 1]} == {"a", "b"} for n in range(0, 20, 2))


async def outage(world: World) -> None:
    """The dependency `ocr` is down."""
    await world.store.declare([QUEUE], ["ocr"])
    await world.store.hold("ocr", "away", BREAKER)


async def worked_through(world: World, org: str, count: int) -> None:
    """An organisation's documents, each claimed and finished."""
    await pile(world, org, count)
    for claimed in [c for _ in range(0, count, 50) for c in await world.claim(50)]:
        await world.settle(claimed.job, DONE)


async def test_a_backlog_that_is_released_does_not_starve_the_others(world: World) -> None:
    await outage(world)
    await pile(world, "held", 200, lane="ocr")
    await worked_through(world, "small", 300)

    await world.store.release("ocr")
    await pile(world, "small", 10)

    assert abs((await served(world, 20))["small"] - 10) <= 1


async def test_the_others_keep_their_turns_when_a_backlog_is_released(world: World) -> None:
    await outage(world)
    await pile(world, "held", 200, lane="ocr")
    await pile(world, "busy", 400)
    await served(world, 200)

    await world.store.release("ocr")

    assert await served(world, 40) == {"held": 20, "busy": 20}


async def test_a_second_outage_is_as_fair_as_the_first(world: World) -> None:
    for _ in range(2):
        await outage(world)
        await pile(world, "held", 20, lane="ocr")
        await worked_through(world, "small", 100)
        await world.store.release("ocr")
        await pile(world, "small", 10)
        assert abs((await served(world, 20))["small"] - 10) <= 1
        await served(world, 10)


async def test_organisations_that_wait_for_one_dependency_share_it_when_it_is_back(world: World) -> None:
    await outage(world)
    await pile(world, "first", 200, lane="ocr")
    await worked_through(world, "late", 300)  # their next turn is far ahead of those that are held
    await pile(world, "late", 10, lane="ocr")

    await world.store.release("ocr")

    assert (await served(world, 20))["late"] == 10


async def test_documents_that_were_held_at_a_later_stage_get_new_turns(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    await pile(world, "held", 50)
    running = [c.job for c in await world.claim(50)]
    await outage(world)
    for job in running:
        assert await world.store.save(save(job, "read", "ocr"))
        await world.settle(job, hold(), "ocr")
    await worked_through(world, "small", 100)

    await world.store.release("ocr")
    await pile(world, "small", 10)

    assert abs((await served(world, 20))["small"] - 10) <= 1


async def test_documents_that_waited_for_room_do_not_turn_the_time_back(world: World) -> None:
    await world.store.limit("host", 1, None)
    await pile(world, "slow", 5, limit_key="host")
    (slow,) = await world.claim(1)
    await pile(world, "busy", 300)
    await served(world, 200)
    world.clock.turn(1_000)
    await served(world, 10)
    await world.settle(slow.job, DONE)  # the next one of those comes in
    await pile(world, "late", 50)

    shares = await served(world, 61)

    assert shares["slow"] == 1
    assert abs(shares["late"] - shares["busy"]) <= 10


async def test_a_document_that_no_worker_can_take_does_not_hold_the_time_back(world: World) -> None:
    await world.add(document(org="other", pipeline="films"))
    await pile(world, "busy", 100)

    async def books(count: int) -> Counter[str]:
        claim = Claim(world.worker, (QUEUE,), new_token(), count, pipelines=("books",))
        return Counter(claimed.document.org for claimed in await world.store.claim(claim))

    assert await books(60) == {"busy": 60}
    world.clock.turn(1_000)
    await books(1)
    await pile(world, "late", 30)

    assert abs((await books(20))["late"] - 10) <= 1
