"""Plans: however many jobs have finished or wait, the hot statements read only what they take."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import asyncpg
import pytest

from perdure.store.auditing import LOST_JOBS
from perdure.store.base import Query, Row
from perdure.store.inspecting import RUNNING_OF
from perdure.store.metering import _HEARD
from perdure.store.operations import Claim
from perdure.store.postgres_session import WRITER_SESSION
from perdure.store.sqlite import numbered
from tests.store.making import ORG, QUEUE, START_MS, World

FINISHED, READY, PARKED, WAITING = 20_000, 5_000, 2_000, 2_000
CLAIM = Claim(1, (QUEUE, "films"), 7, 10, 10, large=5)

#: number → the row of a job: most have finished, many are ready, some wait for room or for their time
JOBS = f"""
INSERT INTO document (org, id, collection, pipeline, kind, name, media_type, content_hash, size, meta, created_ms)
  SELECT 'o' || (n % 50), 'd' || n, 'c', 'p', 'text', '', '', 'h', 0, CAST('' AS {{bytes}}), 0 FROM {{numbers}};
INSERT INTO flow (queue, pipeline, lane) VALUES ('{QUEUE}', 'p', ''), ('{QUEUE}', 'p', 'ocr');
INSERT INTO job (org, key, document_id, pipeline, queue, lane, stage, state, vt, run_at_ms, lease_ms, attempts_max,
                 created_ms, finished_ms, limit_key)
  SELECT 'o' || (n % 50), 'doc-d' || n, 'd' || n, 'p', '{QUEUE}', CASE WHEN n % 3 = 0 THEN 'ocr' ELSE '' END, 's',
    CASE WHEN n <= {FINISHED} THEN 'done' WHEN n <= {FINISHED + READY} THEN 'queued'
         WHEN n <= {FINISHED + READY + PARKED} THEN 'parked' ELSE 'waiting' END,
    n, {START_MS} + n, 30000, 3, 0, CASE WHEN n <= {FINISHED} THEN {START_MS} + n END,
    CASE WHEN n > {FINISHED + READY} AND n <= {FINISHED + READY + PARKED} THEN 'key' END FROM {{numbers}};
"""
TOTAL = FINISHED + READY + PARKED + WAITING
NUMBERS = {
    "sqlite": f"(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {TOTAL}) SELECT n FROM c)",
    "postgres": f"generate_series(1, {TOTAL}) AS n",
}


async def fill(world: World) -> None:
    """A store with a long past and a long queue."""
    await world.store.declare([QUEUE, "films"], ["", "ocr", "ocr+openai"])
    name = world.store.dialect_name
    text = JOBS.format(numbers=NUMBERS[name], bytes="blob" if world.sqlite else "bytea")
    world.tampered = True
    await world.store.driver.script(text)
    if not world.sqlite:
        await world.store.driver.script(
            "ANALYZE job; ANALYZE document; ANALYZE lane; ANALYZE queue; ANALYZE flow"
        )


def walked(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from walked(part)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
async def test_a_claim_on_postgresql_reads_the_ready_index_and_little_else(
    postgres_world: World, mode: str
) -> None:
    world = postgres_world
    await fill(world)
    query = next(world.store.sql.claim(CLAIM, START_MS, CLAIM.kinds))
    async with connected(world.url) as connection:
        await connection.execute(f"SET plan_cache_mode = {mode}")
        values = ", ".join(_literal(value) for value in query.params)
        await connection.execute(f"PREPARE claim AS {query.sql}")
        async with connection.transaction():
            found = await connection.fetchval(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE claim({values})"
            )

    (told,) = json.loads(found)
    nodes = list(walked(told["Plan"]))
    ready = [n for n in nodes if n.get("Index Name") == "job_ready"]
    assert ready
    assert not [
        n for n in nodes if n["Node Type"] == "Seq Scan" and n.get("Relation Name") in ("job", "document")
    ]
    assert sum(n["Actual Rows"] * n["Actual Loops"] for n in ready) <= CLAIM.limit * len(ready) * 6
    assert told["Plan"]["Shared Hit Blocks"] + told["Plan"]["Shared Read Blocks"] < 1_500
    assert told["Plan"]["Actual Rows"] == CLAIM.limit


async def test_a_claim_on_sqlite_reads_the_ready_index_in_order(sqlite_world: World) -> None:
    world = sqlite_world
    await fill(world)
    told = await plan_of(world, Query(world.store.sql._READY, (QUEUE, "", "p", False, 10)))

    assert told == [
        "SEARCH job USING COVERING INDEX job_ready (queue=? AND lane=? AND pipeline=? AND suspect=?)"
    ]
    for statement, params in ((world.store.sql._TAKE, (7, 1, START_MS, 5)), (world.store.sql._TAKEN, (5,))):
        assert "SCAN" not in "\n".join(await plan_of(world, Query(statement, params)))
    assert len(await world.claim(10)) == 10


async def plan_of(world: World, query: Query) -> list[str]:
    """The steps of a statement's plan, in the database's own words."""
    params = (*query.params, *(query.rows[0] if query.rows else ()))
    if world.sqlite:
        return [row[3] for row in await world.query(f"EXPLAIN QUERY PLAN {numbered(query.sql)}", *params)]
    arrays = tuple([value] for value in query.rows[0]) if query.rows else ()
    found: list[Row] = await world.query(f"EXPLAIN {query.sql}", *query.params, *arrays)
    return [row[0] for row in found]


async def test_no_hot_statement_reads_all_jobs(world: World) -> None:
    await fill(world)
    sql, now_ms = world.store.sql, START_MS + 60_000
    hot = {
        "parked": Query(sql.PARKED, ("key", 3, 1, -inf)),
        "parked, from a turn on": Query(sql.PARKED, ("key", 35, 1, 100.5)),
        "sizes": Query(sql.DOCUMENT_SIZES, rows=[(ORG, "d1")]),
        "used": Query(sql.SLOT_USED, ("key",)),
        "due": Query(sql.DUE, (now_ms, 500)),
        "expired": Query(sql.EXPIRED, (now_ms, 500)),
        "in hand": Query(sql.IN_HAND, (1,)),
        "beat": Query(sql.BEAT_HELD, rows=[(5, 7)]),
        "present": Query(sql.FLOW_TIMES, rows=[(QUEUE, "p", "ocr")]),
        "aged": Query(sql.PRUNE_AGED, (QUEUE, START_MS, 500)),
        "beyond": Query(sql.PRUNE_BEYOND, (QUEUE, 1_000, 500)),
        "status": Query(sql.STATUS, ("o1", "d1")),
        "cancel": Query(sql.JOB_CANCEL, ("o1", "d1", 0, now_ms, None)),
        "jobs that failed": Query(sql.JOBS_FAILED, ("o1", "d1", 1, 2)),
        "held": Query(sql.HELD_READY, (9, QUEUE, "p", "ocr", False, 10)),
        "held, parked": Query(sql.HELD_PARKED, (9, QUEUE, "p", "ocr", 10)),
        "lend": Query(sql.LEND, ("ocr",), [("o1", 5, 1.0)]),
        "unlend": Query(sql.UNLEND, rows=[("o1", 5)]),
        "recall": Query(sql.RECALL, ("ocr", False)),
        "lost claim": Query(sql.CLAIMED_AGAIN, (1, 7)),
    }

    plans = {name: await plan_of(world, query) for name, query in hot.items()}

    for name, plan in plans.items():
        # a walk through the running ones is meant: there are few where no other service has any
        scans = [
            step
            for step in plan
            if "Seq Scan on job" in step or step.startswith(("SCAN job", "SCAN j", "SCAN h"))
        ]
        assert [step for step in scans if "job_running" not in step] == [], (name, plan)
    # only the first ones of each flow are sorted: for each size, and both sizes in turn
    sorts = [step for step in plans["parked"] if "->  Sort" in step or "TEMP B-TREE" in step]
    assert len(sorts) == 2, plans["parked"]
    assert any("job_limited" in step for step in plans["parked"]), plans["parked"]


async def test_jobs_that_other_services_have_are_not_looked_at(world: World) -> None:
    """There may be any number of them, and they are in the index of the running ones, too."""
    await fill(world)
    statements = {
        "hands": Query(world.store.sql.IN_HAND_OF),
        "hand": Query(RUNNING_OF, ("o1", QUEUE)),
        "heard": Query(_HEARD),
        "lost": Query(LOST_JOBS, (START_MS,)),
    }
    for name, query in statements.items():
        plan = await plan_of(world, query)
        assert any("(worker>?)" in step or "Index Cond: (worker > 0)" in step for step in plan), (name, plan)


async def test_locks_are_found_by_key(postgres_world: World) -> None:
    """Among many documents of one organisation, and planned once for all, as the writing connection does."""
    world = postgres_world
    await fill(world)
    sql = world.store.sql
    wanted = {
        sql.JOBS_LOCK: "(org = r.org) AND (document_id = r.document_id)",
        sql.DOCUMENT_SAME: "AND (pipeline = r.pipeline) AND (dedupe = r.dedupe)",
        sql.PRUNE_JOB: "(id = r.id)",
        sql.LEASE_BEGIN: "(id = r.id)",
    }
    async with connected(world.url) as connection:
        await connection.execute(WRITER_SESSION)
        for statement, condition in wanted.items():
            await connection.execute(f"PREPARE locking AS {statement}")
            nulls = ", ".join(["NULL"] * len(set(re.findall(r"\$\d+", statement))))
            told = [row[0] for row in await connection.fetch(f"EXPLAIN EXECUTE locking({nulls})")]
            await connection.execute("DEALLOCATE locking")
            found = [line for line in told if "Index Cond" in line and condition in line and "org = " in line]
            assert found, told
            assert not any("Seq Scan" in line for line in told), told


async def test_a_page_of_checkpoints_is_read_by_key(world: World) -> None:
    await fill(world)
    plan = await plan_of(world, Query(world.store.sql.CHECKPOINTS, ("o1", "d1", 1_000, "embed", "vectors")))
    assert not any("Seq Scan" in step or "Sort" in step or "TEMP B-TREE" in step for step in plan), plan
    assert not any(step.startswith(("SCAN document", "SCAN s", "SCAN w", "SCAN x")) for step in plan), plan


def _literal(value: object) -> str:
    if isinstance(value, list):
        return "ARRAY[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, str | float):
        return f"'{value}'" + ("::float8" if isinstance(value, float) else "")
    return "NULL" if value is None else str(value)
