"""Pages of documents are what a filter over all of them would give, near the top and far below it."""

from __future__ import annotations

from dataclasses import replace

from perdure.core.model import State
from perdure.store.listing import LOOK
from perdure.store.operations import Cancel
from perdure.store.records import Status
from tests.store.making import DONE, ORG, World, dead, document, retry

STATES = [str(state) for state in State if state is not State.PARKED]


async def all_pages(world: World, limit: int, **asked: str) -> list[str]:
    found: list[str] = []
    while page := await world.store.documents(after=found[-1] if found else None, limit=limit, **asked):
        found += [one.id for one in page]
        if len(page) < limit:
            break
    return found


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
                  {"collection": "none"}):  # fmt: skip
        assert await all_pages(world, 600, **asked) == chosen(**asked), asked
    assert {one.state for one in everything} == set(STATES)


async def test_a_document_that_was_done_and_is_run_again_is_not_listed_as_done(world: World) -> None:
    (id_,) = await world.add(document())
    await world.settle(await world.take(), DONE)
    assert [one.id for one in await world.store.documents(state="done")] == [id_]
