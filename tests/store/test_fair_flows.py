"""Fairness between flows whose times differ: after an outage, and where workers have different pipelines."""

from __future__ import annotations

from perdure.core.token import new_token
from perdure.store.operations import Claim
from tests.store.making import DONE, QUEUE, World, document


async def claimed(world: World, *pipelines: str, limit: int = 1) -> list[str]:
    """Whose documents a worker with these pipelines gets."""
    asked = Claim(world.worker, (QUEUE,), new_token(), limit, pipelines=pipelines)
    return [one.document.org for one in await world.store.claim(asked)]


async def test_a_backlog_that_no_worker_can_run_does_not_put_off_a_newcomer(world: World) -> None:
    """Its turns are in the time of its own flow, and say nothing about the present of the queue."""
    await world.store.limit("host", 1, None)
    await world.add(*(document(org="big", limit_key="host") for _ in range(5)))
    (running,) = await world.claim()
    await claimed(world, "books", limit=0)
    await world.add(document(org="other", pipeline="films"))
    await world.store.attend()
    await world.add(*(document(org="other", pipeline="films") for _ in range(100)))

    await world.add(document(org="small"))
    await world.settle(running.job, DONE)  # the next one of the big organisation is ready
    await world.add(*(document(org="big", limit_key="host") for _ in range(50)))

    served = []
    for _ in range(8):
        asked = Claim(world.worker, (QUEUE,), new_token(), 1, pipelines=("books",))
        (running,) = await world.store.claim(asked)
        served.append(running.document.org)
        await world.settle(running.job, DONE)
    assert "small" in served


async def test_a_worker_with_one_pipeline_does_not_put_newcomers_behind_the_backlog_of_another(
    world: World,
) -> None:
    await world.add(*(document(org="big", pipeline="books") for _ in range(200)))
    await world.add(document(org="big", pipeline="films"))
    assert await claimed(world, "films") == ["big"]

    await world.add(document(org="small", pipeline="books"))

    assert "small" in await claimed(world, "books", limit=10)


async def test_under_a_limit_a_lane_that_was_down_does_not_go_before_all_others(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    await world.store.limit("host", 1, None)
    await world.add(document(org="ocr", lane="ocr"))
    await world.store.hold("ocr", "away")
    await world.add(*(document(org="busy") for _ in range(100)))
    await claimed(world, "books", limit=100)
    await world.store.release("ocr")  # its time is moved by about 100
    await claimed(world, "books", limit=100)

    await world.add(document(org="plain", limit_key="host"))  # takes the room
    (first,) = await world.claim()
    await world.add(document(org="plain", limit_key="host"))
    await world.add(*(document(org="ocr", lane="ocr", limit_key="host") for _ in range(20)))

    served = []
    for _ in range(5):
        await world.settle(first.job, DONE)
        (first,) = await world.claim()
        served.append(first.document.org)
    assert "plain" in served


async def test_a_newcomer_is_not_put_behind_all_that_waits_for_room_under_a_limit(world: World) -> None:
    """Nothing is ready, because the one that has room is running: what waits for room was promised its turns."""
    await world.store.limit("host", 1, None)
    await world.add(*(document(org="big", limit_key="host") for _ in range(50)))
    (running,) = await world.claim()

    await world.add(document(org="small"))

    served = []
    for _ in range(5):
        await world.settle(running.job, DONE)
        (running,) = await world.claim()
        served.append(running.document.org)
    assert "small" in served
