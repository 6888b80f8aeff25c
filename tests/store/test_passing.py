"""Claims that pass over organisations: others are found wherever they stand, and little is looked at."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.core.token import new_token
from perdure.store import passing
from perdure.store.operations import Claim, Passing, Raise
from perdure.store.records import Claimed
from tests.store.making import QUEUE, World, document, later
from tests.store.test_fairness import pile, served
from tests.store.test_plans import _literal, connected, walked

BIG = ("big",)


async def claim(
    world: World, most: int = 1, orgs: tuple[str, ...] = BIG, fill: bool = False, **more: Any
) -> list[Claimed]:
    return await world.store.claim(
        Claim(world.worker, (QUEUE,), new_token(), most, passing=Passing(orgs, fill), **more)
    )


def orgs_of(found: list[Claimed]) -> list[str]:
    return sorted(one.job.org for one in found)


async def test_a_newcomer_is_found_behind_a_backlog(world: World) -> None:
    await pile(world, "big", 2_000)
    await world.claim(100)
    await pile(world, "small", 1)

    assert orgs_of(await claim(world)) == ["small"]


async def test_nobody_else_waits(world: World) -> None:
    await pile(world, "big", 100)

    assert await claim(world, 3) == []
    assert orgs_of(await claim(world, 3, fill=True)) == ["big"] * 3


async def test_others_come_first_and_the_rest_is_filled_up(world: World) -> None:
    await pile(world, "big", 100)
    await pile(world, "small", 2)

    assert orgs_of(await claim(world, 3, fill=True)) == ["big", "small", "small"]


async def test_each_job_is_taken_once(world: World) -> None:
    await pile(world, "big", 50)
    await pile(world, "small", 20)

    found = [one.job.id for _ in range(10) for one in await claim(world, 3)]

    assert len(found) == len(set(found)) == 20


async def test_who_runs_ahead_of_those_that_are_passed_over_is_found_there(world: World) -> None:
    await pile(world, "big", 1_000)
    await pile(world, "quick", 300)

    found = [org for _ in range(100) for org in orgs_of(await claim(world, 3))]

    assert found == ["quick"] * 300  # the last ones are hundreds of turns behind the head


@pytest.mark.parametrize("batch", [1, 4])
async def test_turns_that_were_passed_over_are_not_saved_up(world: World, batch: int) -> None:
    """Else all others would wait until who was passed over has had them."""
    await pile(world, "big", 200)
    await pile(world, "quick", 60)
    for _ in range(60 // batch):
        assert orgs_of(await claim(world, batch)) == ["quick"] * batch
    await pile(world, "quick", 40)
    await pile(world, "new", 10)

    shares = await served(world, 40, batch)

    assert shares["new"] >= 10 - batch
    assert shares["quick"] >= 15 - batch
    assert shares["big"] >= 15 - batch


async def test_who_stands_in_the_middle_is_found_by_a_client_that_knows_of_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "STRIDE", 50)
    await pile(world, "big", 1_000)
    await pile(world, "other", 400)
    for _ in range(39):
        await claim(world, 10)  # 390 turns ahead of the head
    fresh = await world.another()
    worker = await fresh.register("worker", "fresh", [QUEUE])
    asked = [
        len(await fresh.claim(Claim(worker, (QUEUE,), new_token(), 10, passing=Passing(BIG, False))))
        for _ in range(6)
    ]

    assert sum(asked) == 10


async def test_the_walk_begins_again_at_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "STRIDE", 20)
    await pile(world, "big", 200)
    for _ in range(10):
        assert await claim(world, 2) == []
    await pile(world, "new", 1)

    assert orgs_of([one for _ in range(8) for one in await claim(world, 2)]) == ["new"]


async def test_twenty_organisations_are_all_served(world: World) -> None:
    await pile(world, "big", 500)
    for n in range(20):
        await pile(world, f"org{n:02}", 5)

    found = [org for _ in range(50) for org in orgs_of(await claim(world, 2))]

    assert sorted(found) == sorted([f"org{n:02}" for n in range(20)] * 5)


async def test_two_are_passed_over_and_come_back_in_order(world: World) -> None:
    ids = {}
    for org in ("big", "second"):
        ids[org] = await world.add(*(document(org=org) for _ in range(30)))
    await pile(world, "small", 5)
    assert orgs_of(await claim(world, 9, ("big", "second"))) == ["small"] * 5

    found = await world.claim(20)
    assert [one.job.document_id for one in found if one.job.org == "big"] == ids["big"][:10]


async def test_a_raised_job_of_another_is_taken_first(world: World) -> None:
    await pile(world, "big", 100)
    await pile(world, "small", 3)
    [last] = await world.add(document(org="small"))
    assert await world.store.raise_(Raise("small", last)) == "raised"

    assert [one.job.document_id for one in await claim(world)] == [last]


async def test_lanes_that_are_down_and_paused_queues_are_left_alone(world: World) -> None:
    await world.store.hold("ocr", "away", "ada")
    await world.add(document(org="small", lane="ocr"))
    assert await claim(world) == []
    await world.store.release("ocr")
    await world.store.pause(QUEUE, True)
    assert await claim(world) == []
    await world.store.pause(QUEUE, False)
    assert orgs_of(await claim(world)) == ["small"]


async def test_pipelines_of_others_are_left_alone(world: World) -> None:
    await world.add(document(org="small", pipeline="films"), document(org="small"))

    assert [one.job.pipeline for one in await claim(world, 5, pipelines=("films",))] == ["films"]


async def test_little_is_looked_at_on_postgresql(postgres_world: World) -> None:
    world = postgres_world
    await pile(world, "big", 3_000)
    await pile(world, "small", 1)
    await world.store.driver.script("ANALYZE job; ANALYZE flow; ANALYZE lane; ANALYZE queue")
    asked = Claim(1, (QUEUE,), 7, 3)
    query = next(world.store.sql.look(asked, None, (float("-inf"),), passing.WINDOW))
    async with connected(world.url) as connection:
        values = ", ".join(_literal(value) for value in query.params)
        await connection.execute("SET plan_cache_mode = force_generic_plan")
        await connection.execute(f"PREPARE look AS {query.sql}")
        found = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE look({values})")
        # other tests use the same server
        locked = await connection.fetchval(
            "SELECT count(*) FROM pg_locks WHERE locktype = 'tuple' AND pid = pg_backend_pid()"
        )
    (told,) = json.loads(found)
    ready = [n for n in walked(told["Plan"]) if n.get("Index Name") == "job_ready"]
    assert ready
    assert sum(n["Actual Rows"] * n["Actual Loops"] for n in ready) <= passing.WINDOW
    assert locked == 0


async def test_little_is_looked_at_on_sqlite(sqlite_world: World) -> None:
    world = sqlite_world
    found = await world.query(
        "EXPLAIN QUERY PLAN " + world.store.sql._LOOK.replace("$", "?"), QUEUE, "", "books", 0.0, 32, False
    )

    assert [row[3] for row in found] == [
        "SEARCH job USING INDEX job_ready (queue=? AND lane=? AND pipeline=? AND suspect=? AND vt>?)"
    ]


async def test_suspects_and_raised_jobs_of_those_that_are_passed_over_are_taken(world: World) -> None:
    """A suspect has a slot of its own, and an operator knows better."""
    [id_] = await world.add(document(org="big"))
    job = await world.take()
    await world.settle(job, later(suspect=True))
    await pile(world, "big", 50)
    [last] = await world.add(document(org="big"))
    assert await world.store.raise_(Raise("big", last)) == "raised"

    found = await claim(world, 3, suspects=2)

    assert {(one.job.document_id, one.job.suspect) for one in found} == {(id_, True), (last, False)}


async def test_a_raise_to_another_priority_leaves_the_share_as_it_is(world: World) -> None:
    await pile(world, "big", 50)
    [last] = await world.add(document(org="big"))
    assert await world.store.raise_(Raise("big", last, priority=9)) == "changed"
    await pile(world, "small", 2)

    assert orgs_of(await claim(world, 5)) == ["small", "small"]
    assert [one.job.document_id for one in await world.claim()] == [last]
