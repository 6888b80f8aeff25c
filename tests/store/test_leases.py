"""Leases: beats renew them, what is lost is told, what ran out is found, what is due is promoted; and worker locks."""

from __future__ import annotations

import asyncio

from perdure.store.open import open_store
from perdure.store.operations import Beat, Cancel, Promote, Settle
from tests.store.locks import locked, waits
from tests.store.making import DONE, LEASE_MS, ORG, START_MS, World, document, later, retry


async def test_a_beat_renews_the_leases_it_names(world: World) -> None:
    beaten, left = await world.add(document(), document())
    jobs = [c.job for c in await world.claim(2)]
    world.clock.turn(20_000)

    assert await world.store.beat(Beat(world.worker, ((jobs[0].id, jobs[0].token),))) == set()

    row, now_ms = await world.job(beaten), START_MS + 20_000
    assert (row["lease_until_ms"], row["beat_ms"]) == (now_ms + LEASE_MS, now_ms)
    assert (await world.status(beaten)).last_heartbeat_ms == now_ms
    assert (await world.job(left))["lease_until_ms"] == START_MS + LEASE_MS
    assert [w.beat_ms for w in await world.store.workers() if w.id == world.worker] == [now_ms]


async def test_a_beat_tells_what_is_lost(world: World) -> None:
    done, taken, cancelled, ours = await world.add(*(document() for _ in range(4)))
    jobs = {c.document.id: c.job for c in await world.claim(4)}
    await world.settle(jobs[done], DONE)
    await world.settle(jobs[taken], later())
    again = await world.take()
    await world.store.cancel(Cancel(ORG, cancelled))

    pairs = {id_: (job.id, job.token) for id_, job in jobs.items()}
    lost = await world.store.beat(Beat(world.worker, (*pairs.values(), (again.id, again.token), (99, 99))))

    assert lost == {pairs[done], pairs[taken], pairs[cancelled], (99, 99)}
    assert pairs[ours] not in lost


async def test_a_beat_under_an_old_token_renews_nothing(world: World) -> None:
    (id_,) = await world.add(document())
    old = await world.take()
    await world.settle(old, later())
    await world.take()
    before = await world.job(id_)
    world.clock.turn(1_000)

    assert await world.store.beat(Beat(world.worker, ((old.id, old.token),))) == {(old.id, old.token)}
    assert await world.job(id_) == before


async def test_a_beat_without_jobs_is_a_sign_of_life(world: World) -> None:
    world.clock.turn(1_234)

    assert await world.store.beat(Beat(world.worker, ())) == set()
    assert await world.store.peers() == [(world.worker, START_MS + 1_234)]


async def test_a_beat_tells_since_when_a_loop_stands_still(world: World) -> None:
    world.clock.turn(50_000)
    await world.store.beat(Beat(world.worker, (), silent_ms=40_000))
    (ours,) = (w for w in await world.store.workers() if w.id == world.worker)
    assert ours.silent_since_ms == START_MS + 10_000
    assert (await world.store.pulse()).silent_since_ms == START_MS + 10_000

    await world.store.beat(Beat(world.worker, ()))
    assert (await world.store.pulse()).silent_since_ms is None


async def test_a_row_that_somebody_has_locked_is_neither_lost_nor_waited_for(postgres_world: World) -> None:
    world = postgres_world
    taken, free = await world.add(document(), document())
    jobs = [c.job for c in await world.claim(2)]
    world.clock.turn(1_000)
    async with locked(world, "SELECT 1 FROM job WHERE id = $1", jobs[0].id) as other:
        beat = Beat(world.worker, tuple((j.id, j.token) for j in jobs))
        beating = asyncio.create_task(world.store.beat(beat))

        assert not await waits(other, beating)

        assert beating.result() == set()
        assert (await world.job(free))["beat_ms"] == START_MS + 1_000
        assert (await world.job(taken))["beat_ms"] == START_MS


async def test_expired_leases_are_found_with_all_that_settling_needs(world: World) -> None:
    await world.add(*(document() for _ in range(3)))
    first, second, third = (c.job for c in await world.claim(3))
    world.clock.turn(LEASE_MS)
    assert await world.store.expired(10) == []  # not before it is over
    await world.store.beat(Beat(world.worker, ((second.id, second.token),)))
    world.clock.turn(1)

    assert await world.store.expired(10) == [first, third]
    assert await world.store.expired(1) == [first]
    assert await world.store.in_hand(world.worker) == [first, second, third]
    assert await world.store.in_hand(world.worker + 99) == []


async def test_recovery_of_an_expired_lease_is_refused_once_it_was_renewed(world: World) -> None:
    await world.add(document(), document())
    renewed, gone = (c.job for c in await world.claim(2))
    world.clock.turn(LEASE_MS + 1)
    assert await world.store.expired(10) == [renewed, gone]
    await world.store.beat(Beat(world.worker, ((renewed.id, renewed.token),)))

    taken = [
        await world.store.settle(Settle(j, later(), j.stage, j.lane, expired_only=True))
        for j in (renewed, gone)
    ]

    assert taken == [False, True]
    assert await world.settle(renewed, DONE)


async def test_many_sweepers_recover_a_job_once(world: World) -> None:
    await world.add(*(document() for _ in range(40)))
    await world.claim(40)
    world.clock.turn(LEASE_MS + 1)
    stores = [world.store, await world.another(), await world.another()]
    found = [await store.expired(100) for store in stores]

    answers = await asyncio.gather(
        *(
            store.settle(Settle(job, later(), job.stage, job.lane, expired_only=True))
            for store, jobs in zip(stores, found, strict=True)
            for job in jobs
        )
    )

    assert (len(answers), sum(answers)) == (120, 40)
    assert {row["postpones"] for row in await world.table("job")} == {1}
    assert (await world.store.tally()).fenced == 80


async def test_a_mass_of_due_documents_does_not_hold_up_the_next_one(world: World) -> None:
    await world.add(*(document(org="large", delay_ms=1_000) for _ in range(1_000)))
    world.clock.turn(1)
    (small,) = await world.add(document(org="small", delay_ms=1_000))
    world.clock.turn(5_000)
    assert await world.store.promote(Promote(100)) >= 100
    assert (await world.job(small))["state"] == "queued"
    assert sum([await world.store.promote(Promote(100)) for _ in range(10)]) >= 880


async def test_promoting_moves_what_is_due_and_nothing_else(world: World) -> None:
    await world.add(*(document(f"n{n}", delay_ms=n * 1_000) for n in range(1, 6)))
    assert await world.store.promote(Promote()) == 0
    world.clock.turn(3_000)

    assert await world.store.promote(Promote(limit=2)) == 2  # the longest due first
    assert await world.names_in_turn(3) == ["n1", "n2"]
    assert await world.store.promote(Promote()) == 1
    assert await world.names_in_turn(2) == ["n3"]
    assert (await world.store.tally()).next_due_ms == START_MS + 4_000


async def test_a_retry_waits_its_delay_and_comes_back(world: World) -> None:
    (id_,) = await world.add(document())
    await world.settle(await world.take(), retry(2_000))
    assert ((await world.status(id_)).state, (await world.status(id_)).run_at_ms) == (
        "waiting",
        START_MS + 2_000,
    )
    world.clock.turn(1_999)
    await world.promoted(0)
    world.clock.turn(1)
    await world.promoted(1)

    assert (await world.take()).attempts == 2


async def test_two_promoters_move_each_job_once(world: World) -> None:
    other = await world.another()
    await world.add(*(document(delay_ms=1) for _ in range(200)))
    world.clock.turn(1)

    moved = await asyncio.gather(*(s.promote(Promote(50)) for s in (world.store, other) for _ in range(3)))
    while more := await world.store.promote(Promote(50)):
        moved.append(more)

    assert sum(moved) == 200
    assert len(await world.claim(300)) == 200


# --- workers and their locks -----------------------------------------------------------------------


async def test_a_registered_worker_is_known_and_present_until_it_retires(world: World) -> None:
    other = await world.another()
    theirs = await other.register("worker", "host:7", ["films", "mail"])
    (record,) = [w for w in await world.store.workers() if w.id == theirs]
    assert (record.kind, record.name, record.queues) == ("worker", "host:7", ("films", "mail"))
    assert (record.started_ms, record.running, record.fenced) == (START_MS, 0, 0)
    assert await world.store.missing([world.worker, theirs, 999]) == {999}

    await other.retire(theirs)

    assert await world.store.missing([world.worker, theirs]) == {theirs}
    assert [w for w, _ in await world.store.peers()] == [world.worker]


async def test_a_worker_shows_how_much_it_runs(world: World) -> None:
    await world.add(*(document() for _ in range(3)))
    await world.claim(2)

    assert {w.id: w.running for w in await world.store.workers()}[world.worker] == 2


async def test_there_is_one_leader_until_it_closes(world: World) -> None:
    other = await world.another()

    assert [await world.store.lead(), await other.lead(), await world.store.lead()] == [True, False, True]
    third = await world.another()
    assert not await third.lead()
    await world.store.driver.unlock("leader", 0)
    assert await third.lead()


async def test_a_leader_whose_connection_broke_does_not_lead_beside_its_successor(
    postgres_world: World,
) -> None:
    world = postgres_world
    other = await world.another()
    assert await world.store.lead()
    await world.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND objid = 0 AND objsubid = 2"
    )
    async with asyncio.timeout(90):
        while not await other.lead():  # the server frees the lock when it notices
            pass
        while await world.store.lead():  # it frees the lock before we see the connection end
            await asyncio.sleep(0.01)

    assert await world.store.missing([world.worker]) == set()  # its other lock was taken again


async def test_another_clock_is_not_needed(world: World) -> None:
    """Without a clock of ours the database tells the time."""
    store = open_store(world.url)
    await store.open()
    try:
        before = await store.now_ms()
        await store.add([document(queue="films")])
        claimed = (await world.claim(queues=["films"], store=store))[0]
        assert before <= claimed.job.claimed_ms <= await store.now_ms()
        assert abs(before - START_MS) > 1_000_000_000  # the test's clock stands in the past
    finally:
        await store.close()
