"""Pages of documents are what a filter over all of them would give, near the top and far below it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from perdure.core.model import State
from perdure.store.base import Query, Steps
from perdure.store.list_statements import LIVE, Wanted, ended_badly, live, look, walk, walk_each
from perdure.store.listing import LOOK
from perdure.store.operations import Cancel, NewDocument
from perdure.store.records import Place, Status
from tests.store.making import DONE, ORG, START_MS, World, dead, document, retry
from tests.store.test_plans import fill, plan_of

STATES = [str(state) for state in State if state is not State.PARKED]


async def all_pages(world: World, limit: int, **asked: Any) -> list[str]:
    found: list[Status] = []
    while page := await world.store.documents(after=found[-1].place if found else None, limit=limit, **asked):
        found += page
        if len(page) < limit:
            break
    return [one.id for one in found]


async def old_ones(world: World) -> None:
    """Documents of every state, two organisations and two collections, older than a backlog that is not looked at."""
    made = [document(org=("acme", "other")[n % 2], limit_key="k" if n == 3 else None) for n in range(32)]
    ids = await world.add(*(replace(d, collection="images") if n % 3 == 0 else d for n, d in enumerate(made)))
    claimed = await world.claim(24)
    for n, one in enumerate(claimed):
        if n % 5 < 4:
            await world.settle(one.job, (DONE, dead(), retry(90_000), retry())[n % 5])
    await world.store.cancel(Cancel(ORG, ids[30]))
    await world.add(document(lane="openai"), document(lane="openai", org="other"))
    await world.store.hold("openai", "away")


async def test_pages_are_what_a_filter_over_all_documents_gives(world: World) -> None:
    await old_ones(world)
    for n in range(0, LOOK + 200, 100):
        await world.add(
            *(document(f"b{n}", queue="backlog", org=("acme", "other")[i % 2]) for i in range(100))
        )
    everything = await world.store.documents(limit=10_000)
    assert len(everything) > LOOK + 200
    assert [one.id for one in everything] == sorted((one.id for one in everything), reverse=True)

    def chosen(**asked: str) -> list[str]:
        def fits(one: Status) -> bool:
            return all(getattr(one, name) == value for name, value in asked.items())

        return [one.id for one in everything if fits(one)]

    for state in STATES:
        assert await all_pages(world, 5 if state != "queued" else 500, state=state) == chosen(state=state), (
            state
        )
        assert await all_pages(world, 700, state=state, org="other") == chosen(state=state, org="other"), (
            state
        )
    for asked in ({"collection": "images"}, {"collection": "images", "org": "acme"}, {"org": "other"},
                  {"collection": "images", "state": "done"}, {"collection": "images", "state": "waiting"},
                  {"collection": "images", "state": "dead", "org": "acme"},
                  {"collection": "none"}):  # fmt: skip
        assert await all_pages(world, 600, **asked) == chosen(**asked), asked
    assert {one.state for one in everything} == set(STATES)


async def test_a_document_that_was_done_and_is_run_again_is_not_listed_as_done(world: World) -> None:
    (id_,) = await world.add(document())
    await world.settle(await world.take(), DONE)
    assert [one.id for one in await world.store.documents(state="done")] == [id_]


def hashed(**more: Any) -> NewDocument:
    """A document whose id does not say when it came, as those of children."""
    made = document(**more)
    return replace(made, id=sha256(made.id.encode()).hexdigest()[:32])


async def test_the_last_that_came_is_the_first_whatever_its_id(world: World) -> None:
    ids: list[str] = []
    for n in range(40):
        ids += await world.add(hashed(org=("acme", "other")[n % 2]))
        world.clock.turn(n % 3)

    everything = await world.store.documents()
    assert [one.created_ms for one in everything] == sorted(
        (one.created_ms for one in everything), reverse=True
    )
    assert ids != sorted(ids)
    assert await all_pages(world, 7) == [one.id for one in everything]
    for org in ("acme", "other"):
        assert await all_pages(world, 3, org=org) == [one.id for one in everything if one.org == org]


async def test_a_list_continues_after_a_document_that_was_deleted(world: World) -> None:
    await world.add(*(hashed() for _ in range(6)))
    first, second, *rest = await world.store.documents()
    await world.store.cancel(Cancel(ORG, second.id))
    await world.store.purge([(ORG, second.id)], ("cancelled",))

    page = await world.store.documents(after=second.place)
    assert page == rest
    assert first not in page


async def test_ranges_of_times_are_what_a_filter_over_all_documents_gives(world: World) -> None:
    for n in range(60):
        await world.add(hashed(org=("acme", "other")[n % 2], queue="documents" if n % 4 else "later"))
        if n % 3 == 2:
            for one in await world.claim(2):
                world.clock.turn(500)
                await world.settle(one.job, (DONE, dead(), retry(90_000))[n % 9 // 3])
        world.clock.turn(1_000)
    for _ in range(0, LOOK, 500):  # a backlog that hides them from the first look
        await world.add(*(document(queue="later", org=("acme", "other")[i % 2]) for i in range(500)))
    everything = await world.store.documents(limit=10_000)
    moments = [None, START_MS + 20_000, START_MS + 31_500, START_MS + 10_000_000]

    def chosen(asked: dict[str, Any]) -> list[str]:
        def within(at_ms: int | None, name: str) -> bool:
            least, most = asked[f"{name}_from_ms"], asked[f"{name}_to_ms"]
            if least is None and most is None:
                return True
            return at_ms is not None and (least or 0) <= at_ms < (most or at_ms + 1)

        return [
            one.id
            for one in everything
            if within(one.created_ms, "created") and within(one.finished_ms, "finished")
            and asked.get("org") in (None, one.org) and one.state in asked.get("state", one.state)
        ]  # fmt: skip

    kinds: list[dict[str, Any]] = [
        {}, {"org": "acme"}, {"state": ("done",)}, {"org": "other", "state": ("dead", "cancelled")},
    ]  # fmt: skip
    seen = set()
    for since in moments[:3]:
        for to in moments[1:]:
            for name, other in (("created", "finished"), ("finished", "created")):
                times = {f"{name}_from_ms": since, f"{name}_to_ms": to}
                for kind in kinds:
                    asked = {**times, f"{other}_from_ms": None, f"{other}_to_ms": None, **kind}
                    found = await all_pages(world, 9 if to != moments[-1] else 900, **asked)
                    assert found == chosen(asked), asked
                    seen.add(len(found))
    assert len(seen) > 10


async def test_no_list_reads_all_documents(world: World) -> None:
    await fill(world)
    number = "CAST(substr(id, 2) AS integer)"
    await world.execute(f"UPDATE document SET created_ms = {number}")
    await world.execute(
        f"UPDATE document SET finished_ms = {number} + 9, state = 'done' WHERE {number} < 20000"
    )
    if not world.sqlite:
        await world.store.driver.script("ANALYZE document")
    after = Place(19_000, "x")
    one = Wanted(org="o1", after=after)
    lists = {
        "of an organisation": look(one, 100),
        "of a collection": look(replace(one, collection="c"), 100),
        "created": look(replace(one, created_from_ms=5_000, created_to_ms=18_000), LOOK),
        "done": walk(replace(one, states=("done",))),
        "finished": walk(replace(one, finished_from_ms=9_000, finished_to_ms=9_500)),
        "of all organisations": walk_each(Wanted(limit=2), world.store.sql.name, [("o1", after)]),
        "dead": ended_badly(one, "dead"),
        **{
            f"{state} {n}": live(one, *where)
            for state, found in LIVE.items()
            for n, where in enumerate(found)
        },
    }
    indexes = {
        "of an organisation": "document_created", "of all organisations": "document_created",
        "of a collection": "document_collection",
        "created": "document_created", "finished": "document_finished", "dead": "document_failed",
    }  # fmt: skip
    for name, query in lists.items():
        plan = "\n".join(await plan_of(world, query))
        assert indexes.get(name, "") in plan, (name, plan)
        assert "Seq Scan on document" not in plan, (name, plan)
        steps = plan.splitlines()  # what the first look gives is walked through
        assert steps.count("SCAN d") == steps.count("CO-ROUTINE d"), (name, plan)


async def test_a_list_of_all_takes_few_statements_however_many_organisations_there_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    orgs = 300
    await world.add(*(document(org=f"o{n % orgs:03}") for n in range(2 * orgs)))
    await world.add(*(document(org="busy") for _ in range(40)))
    read, asked = world.store._read, list[Query]()

    async def counted(steps: Callable[[], Steps[Any]]) -> Any:
        def noted() -> Steps[Any]:
            one, answer = steps(), None
            while True:
                try:
                    query = one.send(answer) if answer is not None else next(one)
                except StopIteration as ended:
                    return ended.value
                asked.append(query)
                answer = yield query

        return await read(noted)

    monkeypatch.setattr(world.store, "_read", counted)
    page = await world.store.documents(limit=50)
    assert [one.org for one in page] == ["busy"] * 40 + [f"o{n:03}" for n in range(299, 289, -1)]
    rest = await world.store.documents(after=page[-1].place, limit=1_000)
    assert len(rest) == 2 * orgs + 40 - 50
    assert len(asked) < 20
