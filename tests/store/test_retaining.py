"""Retention deletes what it has seen to be old, and nothing that went on since."""

from __future__ import annotations

import pytest

from perdure.operate.retention import Retaining
from perdure.store.operations import NewJob, Requeue
from perdure.store.sql_store import SqlStore
from tests.store.making import DONE, ORG, QUEUE, World, document

DAY_MS = 86_400_000


class Keeper(Retaining):
    """The verb of an app, with the store alone."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store


async def test_a_document_that_was_run_again_while_old_ones_were_looked_for_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    again, old = await world.add(document("again"), document("old"))
    for claimed in await world.claim(2):
        await world.settle(claimed.job, DONE)
    world.clock.turn(DAY_MS)
    read = world.store.ended

    async def ended(after: tuple[str, str], limit: int) -> list[tuple[str, str, str, int, int]]:
        page = await read(after, limit)
        if page:
            requeue = Requeue(ORG, again, NewJob("books", QUEUE, "extract"))
            assert await world.store.requeue(requeue) == "requeued"
            assert await world.settle(await world.take(), DONE)
        return page

    monkeypatch.setattr(world.store, "ended", ended)

    assert await Keeper(world.store)._retain_done(world.clock.ms - 1) == 1

    assert await world.store.document(ORG, old) is None
    status = await world.status(again)
    assert (status.state, status.generation) == ("done", 2)
