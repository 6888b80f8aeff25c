"""What the tests with a proxy share: the points, pipelines whose every effect shows a repetition, and their books."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg

from perdure import Context, Document, Perdure, Pipeline, Result
from perdure.core.outcome import Done
from perdure.engine.result import Spawn
from perdure.service import AsyncPerdure
from perdure.store.apply import Flush
from perdure.store.operations import Add, Added, Claim, NewDocument, NewJob, Operation, Save, Settle
from perdure.store.postgres_dialect import PostgresDialect
from tests.core.jobs import FIRST
from tests.faults.fleet import Fleet
from tests.faults.process import WorkerProcess
from tests.faults.record import INSERT_EFFECT, Run
from tests.faults.stages import STORE_VARIABLE

APP = f"{__name__}:app"
LEASE_S = 3.0
ALONE = "alone"  # a save with statements of the stage's own is committed alone


def points() -> dict[str, str]:
    """Where a reply may be lost: the statement with which the product's own flush begins each step."""

    def begins(step: Operation) -> str:
        known = {(FIRST.queue, FIRST.pipeline, ""), ("", "", "")}
        return next(Flush(sql, client=0, number=0, now_ms=0, known=known, written={}).run([step])).sql

    sql = PostgresDialect()
    return {
        "enqueue": begins(Add((NewDocument("", "", NewJob("", "", "")),))), "claim": begins(Claim(0, (), 0, limit=1)),
        "save": begins(Save(FIRST, "", "", 0)), "finish": begins(Settle(FIRST, Done(), "", "")),
        "resolve": sql.FLUSH_NUMBER, "effect": INSERT_EFFECT,
    }  # fmt: skip


# --- a parcel: two saves, a child document, an end with a follow-up and a hook ------------------------

leaflets = Pipeline("leaflets")
receipts = Pipeline("receipts")
parcels = Pipeline("parcels")
PARCEL_STAGES = ("weigh", "stamp", "send", "sign", "told")
PARCEL_JOBS = ("", "/receipts", "/on_done")


def shared(run: Run, ctx: Context, *spawn: Spawn) -> Result[str]:
    """The end of a run that is committed together with others'."""
    run.emit(ctx, run.stage)
    run.note("end")
    return Result(run.id, spawn=spawn)


@leaflets.stage
async def read(doc: Document, ctx: Context) -> Result[str]:
    return shared(Run(doc, "read"), ctx)


@receipts.stage
async def sign(doc: Document, ctx: Context) -> Result[str]:
    return shared(Run(doc, "sign"), ctx)


@parcels.stage
async def weigh(doc: Document, ctx: Context) -> Result[str]:
    leaflet = leaflets.child("leaflet", text=doc.text, name=f"{doc.name} leaflet")
    return shared(Run(doc, "weigh"), ctx, leaflet)


@parcels.stage
def stamp(doc: Document, weigh: str, ctx: Context) -> Result[str]:
    run = Run(doc, "stamp")
    return run.finish(ctx, run.id) if doc.text == ALONE else shared(run, ctx)


@parcels.stage
async def send(doc: Document, stamp: str, ctx: Context) -> Result[str]:
    run = Run(doc, "send")
    if doc.text == ALONE:
        return replace(run.finish(ctx, run.id), spawn=[receipts.job(doc)])
    return shared(run, ctx, receipts.job(doc))


@parcels.on_done
async def told(doc: Document, ctx: Context) -> Result[str]:
    return shared(Run(doc, "told"), ctx)


# --- a loan: waits at its gates, under a short lease ---------------------------------------------------

loans = Pipeline("loans", lease_s=LEASE_S)


async def waited(doc: Document, ctx: Context, place: str) -> Result[str]:
    run = Run(doc, place)
    try:
        await run.at_async(place)
    except asyncio.CancelledError:
        run.note("abandoned")
        raise
    return run.finish(ctx, run.id)


@loans.stage
async def lend(doc: Document, ctx: Context) -> Result[str]:
    return await waited(doc, ctx, "lend")


@loans.stage
async def bring(doc: Document, lend: str, ctx: Context) -> Result[str]:
    return await waited(doc, ctx, "bring")


ALL = [leaflets, receipts, parcels, loans]
app = Perdure(os.environ.get(STORE_VARIABLE, "sqlite:///not-opened.db"), pipelines=ALL)


async def add_until(adding: AsyncPerdure, enough: Callable[[], bool]) -> dict[str, list[Added]]:
    """Several callers add at once, each identity more than once; what they were told."""
    answers: dict[str, list[Added]] = defaultdict(list)

    async def add(identity: str, **options: Any) -> None:
        answers[identity].append(await adding.add(pipeline="parcels", **options))

    async def add_many(number: int) -> None:
        keys = [f"many-{number}-{n // 2}" for n in range(6)]
        added = await adding.add_many([{"text": "many", "key": key} for key in keys], pipeline="parcels")
        for key, answer in zip(keys, added, strict=True):
            answers[key].append(answer)

    for number in itertools.takewhile(lambda _: not enough(), itertools.count(1)):
        await asyncio.gather(
            add(f"first-{number}", text="the same text", dedupe=False),
            add(f"second-{number}", text="the same text", dedupe=False),
            add(f"content-{number}", text=f"content {number}"),
            add(f"content-{number}", text=f"content {number}"),
            add(f"key-{number}", text="one", key=f"key-{number}"),
            add(f"key-{number}", text="another", key=f"key-{number}"),
            add(f"key-{number // 2}", text="once more", key=f"key-{number // 2}"),
            add_many(number),
        )
    return answers


# --- books -----------------------------------------------------------------------------------------------


class ParcelFleet(Fleet):
    """Workers that send parcels; looks into the database by itself."""

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__(url, directory, server_old=False)
        self.app = AsyncPerdure(url, pipelines=ALL)

    def begin(self, concurrency: int, url: str | None = None) -> WorkerProcess:
        """A worker that is connected directly, or to this address; it forgets nothing that has ended."""
        given = {STORE_VARIABLE: url or self.url, "PERDURE_RETENTION_COUNT": "1000000"}
        return self.start(APP, concurrency=concurrency, ready=True, **given)

    def post(self, count: int) -> None:
        """Take new parcels in; stages of every third one have statements of their own."""
        first = len(self.ids)
        self.add("parcels", {f"p{n}": "" if n % 3 else ALONE for n in range(first, first + count)})

    def lend(self, count: int) -> dict[str, str]:
        """Take loans in and let each wait at a gate, half of them in the first stage, half in the last; name → gate."""
        gates = {f"d{n}": ("lend", "bring")[n % 2] for n in range(count)}
        for gate in gates.items():
            self.shut(*gate)
        self.add("loans", dict.fromkeys(gates, ""))
        return gates

    def leases(self) -> dict[str, float]:
        """When the leases of running documents end, by the monotonic clock."""
        now_s = time.monotonic()
        left = self.look(
            "SELECT name, lease_until_ms - perdure_now() FROM job j JOIN document d ON d.id = document_id "
            "WHERE j.state = 'running'"
        )
        return {name: now_s + left_ms / 1000 for name, left_ms in left}

    def abandoned(self) -> dict[str, float]:
        """Which documents a stage was interrupted on, and when."""
        return {line.document: line.at_s for line in self.ledger if line.event == "abandoned"}

    def look(self, sql: str) -> list[tuple[Any, ...]]:
        """Ask the database directly."""

        async def ask() -> list[tuple[Any, ...]]:
            connection = await asyncpg.connect(self.url)
            try:
                return [tuple(row) for row in await connection.fetch(sql)]
            finally:
                await connection.close()

        return asyncio.run(ask())

    @property
    def left(self) -> int:
        """How many jobs have not ended, follow-ups too."""
        return int(self.look("SELECT count(*) FROM job WHERE finished_ms IS NULL")[0][0])

    def check_parcels(self) -> None:
        """Every parcel has ended once, with everything that hangs on it, and no stage ran twice."""
        children = [f"{name} leaflet" for name in self.ids]
        stages = [*itertools.product(self.ids, PARCEL_STAGES), *((child, "read") for child in children)]
        jobs = [*itertools.product(self.ids, PARCEL_JOBS), *((child, "") for child in children)]
        alone = itertools.product(list(self.ids)[::3], ("stamp", "send"))
        runs = {(line.document, line.stage): line.run for line in self.starts()}

        _check("runs", [(x.document, x.stage, "once") for x in self.starts()], dict.fromkeys(stages, "once"))
        ended = self.look("SELECT name, state FROM document")
        _check("documents", ended, {(name,): "done" for name in (*self.ids, *children)})
        counted = self.look(
            "SELECT d.name, substr(key, 41), (j.state, j.attempts, j.claims, postpones, releases, crashes, holds, "
            "outcome, claim, attempt, charged)::text FROM job j JOIN document d ON d.id = document_id "
            "LEFT JOIN attempt a ON a.document_id = d.id AND job_key = key"
        )
        _check("jobs and their history", counted, dict.fromkeys(jobs, "(done,1,1,0,0,0,0,done,1,1,t)"))
        saved = self.look("SELECT name, s.stage, s.inline FROM saved s JOIN document d ON d.id = document_id")
        _check("outputs", [(name, stage, json.loads(data)) for name, stage, data in saved], runs)
        emitted = self.look("SELECT d.name, key, data FROM emitted JOIN document d ON d.id = document_id")
        _check(
            "rows", [(name, json.loads(key)["stage"], json.loads(data)) for name, key, data in emitted], runs
        )
        _check("effects", self.effects(), {key: runs[key] for key in alone})
        assert self.tally().fenced == 0, "a write of a worker that held its lease was refused"


def _check(what: str, rows: Iterable[tuple[Any, ...]], expected: dict[Any, str]) -> None:
    """Every key (all columns but the last) is there once, with the value that is expected of it, and no other is."""
    found: dict[Any, list[Any]] = defaultdict(list)
    for *key, value in rows:
        found[tuple(key)].append(value)
    wrong = {key: found[key] for key in {*found, *expected} if found[key] != [expected.get(key)]}
    assert wrong == {}, f"not once, or not what was expected, of {len(expected)} {what}: {wrong}"
