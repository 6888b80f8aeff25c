"""A worker takes jobs of the pipelines that it has, and the store knows which ones no worker has."""

from __future__ import annotations

from perdure.core.token import new_token
from perdure.store.base import BREAKER
from perdure.store.operations import Claim, HandOver, NewEvent
from tests.store.making import LEASE_MS, ORG, QUEUE, World, document

HOUR_MS = 3_600_000


async def claimed(world: World, *pipelines: str, limit: int = 10) -> set[str]:
    """The names of documents that a worker with these pipelines gets."""
    asked = Claim(world.worker, (QUEUE,), new_token(), limit, pipelines=pipelines)
    return {one.document.name for one in await world.store.claim(asked)}


async def test_a_claim_takes_only_jobs_of_the_pipelines_that_are_served(world: World) -> None:
    await world.add(document("new", pipeline="films"), document("old", pipeline="books"))

    assert await claimed(world, "books") == {"old"}
    assert await claimed(world, "books") == set()
    assert await world.store.claimable([QUEUE], ["books"]) is False
    assert await world.store.claimable([QUEUE], ["films"]) is True
    assert await claimed(world, "books", "films") == {"new"}


async def test_jobs_that_wait_for_room_count_where_their_pipeline_is_served(world: World) -> None:
    await world.store.limit("host", 1, None)
    await world.add(*(document(pipeline="films", limit_key="host") for _ in range(2)))
    await claimed(world, "films")

    assert await world.store.claimable([QUEUE], ["films"]) is False
    assert await world.store.claimable([QUEUE], ["films"], parked=True) is True
    assert await world.store.claimable([QUEUE], ["books"], parked=True) is False


async def test_a_pipeline_that_no_worker_has_is_named(world: World) -> None:
    (waits,) = await world.add(document(pipeline="films"))
    assert await world.store.unserved() == []  # no worker has asked yet
    await claimed(world, "books")

    assert await world.store.unserved() == [(QUEUE, "films", waits)]

    world.clock.turn(HOUR_MS)
    await claimed(world, "books", "films", limit=0)
    assert await world.store.unserved() == []


async def test_probes_go_on_after_the_clock_was_set_back(world: World) -> None:
    """A release that is gone wrote down its pipeline an hour ahead: the probe goes to a pipeline that a worker has."""
    await world.store.declare([QUEUE], ["ocr"])
    await world.add(document("first", lane="ocr", pipeline="books"))
    await world.add(document("second", lane="ocr", pipeline="films"))
    await world.store.hold("ocr", "503 for a minute", BREAKER)
    await claimed(world, "books", "films")
    world.clock.turn(-HOUR_MS)
    await claimed(world, "films")

    world.clock.turn(5_000)
    assert await world.store.lend() == 1
    assert await claimed(world, "films") == {"second"}


async def test_a_job_of_a_pipeline_that_no_worker_has_leaves_its_room_to_others(world: World) -> None:
    await world.store.limit("host", 1, None)
    first, _ = await world.add(
        document("new", pipeline="films", limit_key="host"),
        document("old", pipeline="books", limit_key="host"),
    )
    assert await claimed(world, "books") == set()  # the room was given before anybody had asked

    await world.store.refill()

    assert await world.store.unserved() == [(QUEUE, "films", first)]
    assert await claimed(world, "books") == {"old"}
    await world.add(document("third", pipeline="films", limit_key="host"))
    assert await world.miscounted() == {}
    assert await claimed(world, "books", "films") == set()  # back under the limit, not above it
    await world.store.refill()
    assert await claimed(world, "films") == set()


async def test_a_pipeline_that_a_worker_has_again_gets_room_again(world: World) -> None:
    await world.store.limit("host", 1, None)
    await claimed(world, "books")
    await world.add(document("new", pipeline="films", limit_key="host"))
    await world.store.refill()
    assert await world.store.claimable([QUEUE], ["films"]) is False
    assert await world.store.claimable([QUEUE], ["films"], parked=True) is True

    assert await claimed(world, "films") == set()
    await world.store.refill()

    assert await claimed(world, "films") == {"new"}
    assert await world.miscounted() == {}


async def test_nobody_waits_for_room_that_jobs_of_an_idle_queue_take(world: World) -> None:
    await world.store.declare([QUEUE, "idle"], [""])
    await world.store.limit("host", 1, None)
    await world.add(document(queue="idle", limit_key="host"), document(pipeline="books", limit_key="host"))

    assert await world.store.claimable([QUEUE], ["books"], parked=True) is False
    await world.store.pause("idle", True)
    assert await world.store.claimable([QUEUE], ["books"], parked=True) is True
    await world.store.pause("idle", False)
    await world.store.limit("host", 2, None)
    assert await world.store.claimable([QUEUE], ["books"]) is True


# --- a pipeline that is served again ---------------------------------------------------------------


async def orgs_in_turn(world: World, count: int, *pipelines: str) -> list[str]:
    """Whose documents a worker with these pipelines gets next, one by one."""
    asked = (Claim(world.worker, (QUEUE,), new_token(), 1, pipelines=pipelines) for _ in range(count))
    return [one.document.org for claim in asked for one in await world.store.claim(claim)]


async def unserved_while_others_work(world: World, backlog: int = 1_000) -> None:
    """Old documents of a pipeline that no worker has, while others went through many of another."""
    await world.add(*(document(org="old", pipeline="films") for _ in range(backlog)))
    for _ in range(3):
        await world.add(*(document(org="busy", pipeline="books") for _ in range(1_000)))
        await claimed(world, "books", limit=1_000)
        world.clock.turn(30_000)
        await world.store.attend()


async def test_a_backlog_that_no_worker_could_run_does_not_come_before_all_others(world: World) -> None:
    await unserved_while_others_work(world)
    await world.add(*(document(org="new", pipeline="books") for _ in range(10)))

    orgs = await orgs_in_turn(world, 30, "books", "films")

    assert orgs.count("new") == 10
    assert orgs.count("old") == 20


async def test_organisations_share_a_pipeline_that_was_unserved(world: World) -> None:
    await unserved_while_others_work(world)
    await world.add(*(document(org="late", pipeline="films") for _ in range(10)))

    assert (await orgs_in_turn(world, 30, "books", "films")).count("late") == 10


async def test_documents_of_a_served_pipeline_keep_their_turns_when_another_is_served_again(
    world: World,
) -> None:
    await unserved_while_others_work(world, 100)
    await world.add(*(document(org="busy", pipeline="books") for _ in range(100)))
    await orgs_in_turn(world, 20, "books", "films")

    assert abs((await orgs_in_turn(world, 40, "books", "films")).count("busy") - 20) <= 1


async def test_a_pipeline_that_is_unserved_while_its_lane_is_down_is_open_after_both(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    await world.store.hold("ocr", "away")
    await world.add(*(document(org="old", pipeline="films", lane="ocr") for _ in range(100)))
    await unserved_while_others_work(world, 1)
    await claimed(world, "books", "films", limit=0)
    await world.store.release("ocr")
    await world.add(*(document(org="new", pipeline="books") for _ in range(10)))

    assert (await orgs_in_turn(world, 25, "books", "films")).count("new") == 10


async def test_a_job_of_a_pipeline_that_only_a_busy_worker_has_is_not_passed_over(world: World) -> None:
    """The worker asks for one job a minute. Others, without the pipeline, take documents of a higher priority."""
    await world.add(document(org="rare", pipeline="films"))
    for n in range(30):
        await world.add(*(document(org=f"{n}", pipeline="books", priority=5) for _ in range(3)))
    orgs = []
    for _ in range(3):
        for _ in range(2):
            assert len(await claimed(world, "books", limit=5)) > 0
            world.clock.turn(30_000)
            await world.store.attend()
        orgs += await orgs_in_turn(world, 1, "books", "films")

    assert "rare" in orgs


async def test_a_limit_lets_jobs_into_a_flow_that_is_closed_by_its_own_time(world: World) -> None:
    """After the clock was set back, nobody knows that the workers lack the pipeline; its flow is closed still."""
    await world.store.limit("host", 1, None)
    await unserved_while_others_work(world, 10)
    assert len(await orgs_in_turn(world, 10, "films")) == 10
    await world.add(document(org="limited", pipeline="films", limit_key="host"))
    await world.add(*(document(org="busy", pipeline="books") for _ in range(100)))
    for _ in range(3):
        await claimed(world, "books", limit=20)
        world.clock.turn(30_000)
        await world.store.attend()
        await world.store.refill()
    world.clock.turn(-60_000)
    await world.store.refill()

    assert "limited" in await orgs_in_turn(world, 5, "books", "films")


async def test_nobody_waits_for_room_at_a_gate_that_other_services_take(world: World) -> None:
    await world.store.limit(f"org:{ORG}", 1, None)
    await world.add(document("a"), document("b"))
    job = await world.take()
    assert await world.claim(9) == []  # the other one waits
    assert await world.store.claimable([QUEUE], ["books"], parked=True) is True
    event = NewEvent(f"event-{job.token}", job.org, job.document_id, "Extract", "{}")
    handed_over = HandOver(job, job.token + 1_000, "extract", "", "{}", LEASE_MS, event)
    assert await world.store.hand_over(handed_over)

    assert await world.store.claimable([QUEUE], ["books"], parked=True) is False
    await world.store.limit(f"org:{ORG}", 2, None)
    assert await world.store.claimable([QUEUE], ["books"], parked=True) is True
