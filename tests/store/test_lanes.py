"""Lanes: holding and releasing change the lane, never the jobs; `held` is read, not written."""

from __future__ import annotations

import asyncio
from dataclasses import astuple

import asyncpg
import pytest

from perdure.core.outcome import Outcome
from perdure.store import holding
from perdure.store.counting import Counting
from perdure.store.operations import NewJob
from perdure.store.postgres import drive
from tests.store.making import DONE, QUEUE, START_MS, World, document, hold, later, retry, save


async def down(world: World) -> dict[str, tuple[int | None, str | None]]:
    """The lanes that are down, since when and why."""
    lanes = await world.store.lanes()
    return {lane.name: (lane.down_since_ms, lane.reason) for lane in lanes if lane.down_since_ms is not None}


async def test_a_held_lane_hands_out_nothing_and_the_others_go_on(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    held, free = await world.add(document("held", lane="ocr"), document("free"))
    await world.store.hold("ocr", "503 for a minute", by="breaker")

    assert await world.names_in_turn(2) == ["free"]
    status = await world.status(held)
    assert (status.state, status.held_by) == ("held", "ocr")
    assert (await world.status(free)).held_by is None
    assert (await world.store.tally()).queues[QUEUE] == {"held": 1, "running": 1}
    assert [s.id for s in await world.store.documents(state="held")] == [held]
    assert await down(world) == {"ocr": (START_MS, "503 for a minute")}

    await world.store.release("ocr", by="breaker")

    assert await down(world) == {}
    assert await world.names_in_turn(2) == ["held"]
    assert [astuple(act)[2:] for act in await world.store.acts()] == [
        ("breaker", "release", None, "ocr", ""), ("breaker", "hold", None, "ocr", "503 for a minute"),
    ]  # fmt: skip


async def test_holding_and_releasing_touch_no_job(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    await world.add(*(document(lane="ocr") for _ in range(300)))
    before = await world.table("job")
    version = "xmin" if not world.sqlite else "0"
    stamps = await world.query(f"SELECT id, {version} FROM job")

    await world.store.hold("ocr", "away")
    assert (await world.store.tally()).queues[QUEUE] == {"held": 300}
    await world.store.release("ocr")

    assert await world.table("job") == before
    assert await world.query(f"SELECT id, {version} FROM job") == stamps  # not even rewritten as they were


async def test_a_lane_of_several_is_down_while_any_of_them_is(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr+openai", "openai", ""])
    await world.add(document("both", lane="ocr+openai"), document("one", lane="openai"), document("none"))
    await world.store.hold("ocr", "ocr away")
    world.clock.turn(1_000)
    await world.store.hold("openai", "openai away")

    assert set(await down(world)) == {"ocr+openai", "openai"}
    assert await world.names_in_turn(3) == ["none"]
    await world.store.release("openai")
    assert await world.names_in_turn(3) == ["one"]
    assert await down(world) == {"ocr+openai": (START_MS, "ocr away")}  # by whom it is down now
    await world.store.release("ocr")
    assert await world.names_in_turn(3) == ["both"]


async def test_a_dependency_that_nobody_needs_holds_nothing(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr", "ocr2"])
    await world.add(document(lane="ocr2"), document())

    await world.store.hold("ocr", "away")

    assert len(await world.claim(9)) == 2


async def test_a_lane_declared_while_its_dependency_is_down_starts_down(world: World) -> None:
    await world.store.hold("openai", "away")
    await world.store.declare([QUEUE], ["ocr+openai", "ocr"])

    assert await down(world) == {"ocr+openai": (START_MS, "away")}
    await world.add(document(lane="ocr+openai"))
    assert await world.claim(9) == []
    await world.store.release("openai")
    assert len(await world.claim(9)) == 1


async def test_a_lane_declared_while_its_dependency_is_being_released_does_not_stay_down(
    postgres_world: World,
) -> None:
    world = postgres_world
    await world.store.hold("openai", "away")
    release = holding.release(world.store.sql, None, Counting(), "openai", "ann")
    connection = await asyncpg.connect(world.url)
    try:
        async with connection.transaction():
            await drive(connection, release, lambda more_s=0.0: None)
            declaring = asyncio.create_task(world.store.declare([QUEUE], ["openai"]))
            await asyncio.sleep(0.2)
            assert not declaring.done()
        await declaring
    finally:
        await connection.close()
    assert await down(world) == {}


async def test_declaring_again_changes_nothing(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    await world.store.pause(QUEUE, True)
    await world.store.hold("ocr", "away")
    await world.store.declare([QUEUE], ["ocr", ""])

    assert await down(world) == {"ocr": (START_MS, "away")}
    assert [tuple(map(bool, row)) for row in await world.query("SELECT paused FROM queue")] == [(True,)]


async def test_a_lane_first_seen_with_a_document_knows_that_its_dependency_is_down(world: World) -> None:
    await world.store.hold("openai", "away")
    (id_,) = await world.add(document(lane="ocr+openai"))

    assert await world.claim(9) == []
    assert (await world.status(id_)).state == "held"


@pytest.mark.parametrize("ending", [retry(1_000), later(), later(1_000), hold()])
async def test_a_job_settled_into_a_lane_nobody_declared_is_not_lost(world: World, ending: Outcome) -> None:
    await world.add(document("a"))
    await world.settle(await world.take(), ending, lane="mail+ocr")
    world.clock.turn(600_000)
    await world.promoted(ending != later())

    assert await world.names_in_turn(1) == ["a"]


async def test_a_hold_into_an_unknown_lane_of_a_dependency_that_is_down_is_held(world: World) -> None:
    await world.store.hold("mail", "away")
    (id_,) = await world.add(document("a"))
    await world.settle(await world.take(), hold(), lane="mail")

    assert (await world.status(id_)).state == "held"
    await world.store.release("mail")
    assert await world.names_in_turn(1) == ["a"]


async def test_a_save_and_its_follow_ups_may_name_new_lanes(world: World) -> None:
    await world.add(document("a"))
    job = await world.take()
    spawned = NewJob("connect", "graphs", "connect", lane="neo4j", name="connect")
    assert await world.store.save(save(job, "embed", "openai", jobs=(spawned,)))
    await world.settle(job, later(), lane="openai")

    assert len(await world.claim(9, queues=[QUEUE, "graphs"])) == 2


async def test_only_what_waits_for_its_lane_is_shown_as_held(world: World) -> None:
    await world.store.declare([QUEUE], ["ocr"])
    done, running, waiting = await world.add(*(document(lane="ocr") for _ in range(3)))
    first, _, third = (c.job for c in await world.claim(3))
    await world.settle(first, DONE)
    await world.settle(third, retry(1_000))
    await world.store.hold("ocr", "away")

    shown = [(s.state, s.held_by) for s in [await world.status(i) for i in (done, running, waiting)]]
    assert shown == [("done", None), ("running", None), ("waiting", None)]
