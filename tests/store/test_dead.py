"""The rows of dead documents: written with the end, gone when they go on, and read without a look at anything else."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.core.model import Policy
from perdure.core.outcome import Later
from perdure.store.base import Row
from perdure.store.dead import Where
from perdure.store.operations import Cancel, NewJob, Promote, Requeue, Save
from tests.store.making import DONE, LEASE_MS, ORG, QUEUE, START_MS, World, dead, document, retry


async def test_a_row_is_there_exactly_while_the_document_is_dead(world: World) -> None:
    died, went_on, good, ended = await world.add(*(document(str(n)) for n in range(4)))
    jobs = {claimed.document.id: claimed.job for claimed in await world.claim(4)}
    world.clock.turn(50)
    await world.settle(jobs[died], dead("bad_file"))
    assert not await world.settle(jobs[died], dead("bad_file"))
    await world.settle(jobs[went_on], retry())
    await world.settle(jobs[good], DONE)
    await world.store.cancel(Cancel(ORG, ended))

    (row,) = await world.table("dead")
    assert (row["document_id"], row["died_ms"], row["collection"]) == (died, START_MS + 50, "documents")
    assert (row["stage"], row["error_type"], row["error_code"], row["attempts"]) == (
        "extract",
        "ValueError",
        "bad_file",
        1,
    )
    (attempt,) = await world.store.attempts(ORG, died)
    assert row["fingerprint"] == attempt.fingerprint

    again = Requeue(ORG, died, NewJob("books", QUEUE, "extract", policy=Policy(attempts=1)))
    assert await world.store.requeue(again) == "requeued"
    assert await world.table("dead") == []
    (job,) = [one.job for one in await world.claim(2) if one.document.id == died]
    await world.settle(job, dead("bad_again"))
    (row,) = await world.table("dead")
    assert (row["generation"], row["error_code"]) == (2, "bad_again")


async def test_an_attempt_that_was_given_back_is_not_told(world: World) -> None:
    await world.add(document())
    await world.settle(await world.take(), dead("postpones_exhausted", charged=False))
    assert (await world.store.dead(Where()))[0].attempts == 0


async def test_the_end_of_a_follow_up_has_a_row_of_its_own_and_makes_no_dead_document(world: World) -> None:
    await world.add(document(policy=Policy(hooks=("done",))))
    await world.settle(await world.take(), DONE)
    await world.settle(await world.take(), dead("hook_failed"))
    (row,) = await world.table("dead")
    assert (row["job"], row["error_code"], row["message"]) == ("on_done", "hook_failed", "boom")
    assert (await world.store.counts()).states() == {"done": 1}
    assert await world.store.dead_queues() == []
    assert await world.store.revive((await world.store.dead(Where()))[0], "ann", "") == "requeued"
    assert await world.table("dead") == []
    world.clock.turn(1)
    await world.store.promote(Promote())
    await world.settle(await world.take(), DONE)


async def test_a_follow_up_that_goes_on_is_as_new(world: World) -> None:
    await world.add(document(policy=Policy(hooks=("done",))))
    await world.settle(await world.take(), DONE)
    hook = await world.take()
    await world.settle(hook, Later(0, "an accident", counted=True, flickered=True, released=True))
    await world.settle(await world.take(), dead("hook_failed", crashes=1))
    assert await world.store.revive((await world.store.dead(Where()))[0], "ann", "") == "requeued"
    world.clock.turn(1)
    await world.store.promote(Promote())
    again = await world.take()
    counted = (
        again.postpones,
        again.postponed_ms,
        again.releases,
        again.crashes,
        again.holds,
        again.flickers,
    )
    assert (again.attempts, counted, again.suspect) == (1, (0,) * 6, False)
    assert again.claims == 3


async def test_a_follow_up_whose_document_began_anew_does_not_run_beside_the_new_one(world: World) -> None:
    await world.add(document())
    first = await world.take()
    follow = NewJob("connect", QUEUE, "connect", name="connect")
    await world.settle(first, DONE, save=Save(first, first.stage, first.lane, LEASE_MS, jobs=(follow,)))
    await world.settle(await world.take(), dead("broken"))
    (listed,) = await world.store.dead(Where())
    again = Requeue(ORG, first.document_id, NewJob("books", QUEUE, "extract"))
    assert await world.store.requeue(again) == "requeued"
    assert await world.store.revive(listed, "ann", "") == "refused: the job connect is not dead any more"
    world.clock.turn(1)
    await world.store.promote(Promote())
    assert [one.job.key for one in await world.claim(5)] == [f"doc-{first.document_id}"]


async def test_what_sqlite_reads(sqlite_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world = sqlite_world
    asked: list[tuple[str, tuple[Any, ...]]] = []

    async def noted(sql: str, *params: Any) -> list[Row]:
        asked.append((sql, params))
        return []

    monkeypatch.setattr(world.store, "_rows", noted)
    await world.store.dead(Where(group="0123456789abcdef"))
    await world.store.dead(Where(org=ORG), (START_MS, ORG, "d", "", 1))
    await world.store.dead_causes(Where())
    await world.store.dead_causes(Where(org=ORG, pipeline="books", queue=QUEUE, stage="extract"))
    monkeypatch.undo()
    plans = [
        "; ".join(row[3] for row in await world.query(f"EXPLAIN QUERY PLAN {sql.replace('$', '?')}", *params))
        for sql, params in asked
    ]
    assert "SEARCH dead USING INDEX dead_group (fingerprint=?)" in plans[0]
    assert "SEARCH dead USING PRIMARY KEY ((died_ms,org,document_id,job,generation)<(?,?,?,?,?))" in plans[1]
    assert all("SCAN dead USING COVERING INDEX dead_group" in plan for plan in plans[2:])
