"""Many dead documents of five causes, from the groups to the last one that is done, with real workers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure import Document, Perdure, Permanent, Pipeline
from perdure.operate.requeue import RequeueOptions
from perdure.service import AsyncPerdure
from perdure.store.base import Query
from perdure.store.reading import one

CAUSES = 5


def books(repaired: bool) -> Pipeline:
    made = Pipeline("books", attempts=1)

    @made.stage
    def read(doc: Document) -> int:
        number = int(doc.text)
        if not repaired:
            raise Permanent(f"cause_{number % CAUSES}", f"{'abcde'[number % CAUSES]}: no use for {number}")
        return number

    return made


def app(url: str, repaired: bool) -> Perdure:
    return Perdure(url, pipelines=[books(repaired)], concurrency=20)


async def everything(service: AsyncPerdure) -> list[Any]:
    """All that a dry run could have changed."""
    tables = ("document", "job", "dead", "act")
    return [
        sorted(map(repr, await service.store.driver.read(one(Query(f"SELECT * FROM {table}")))))
        for table in tables
    ]


@asynccontextmanager
async def working(url: str) -> AsyncIterator[None]:
    """A worker whose code is repaired."""
    async with app(url, repaired=True) as service:
        run = asyncio.create_task(service.run())
        try:
            yield
        finally:
            await service.stop()
            await run


@pytest.mark.parametrize(
    "count", [30, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1_800)])]
)
async def test_five_causes_and_what_an_operator_does_about_them(
    store_url: str, tmp_path: Path, count: int
) -> None:
    async with app(store_url, repaired=False) as service:
        await service.add_many([{"text": str(n)} for n in range(count)], pipeline="books")
        assert (await service.run_until_idle()).dead == count

        groups = await service.groups()
        assert [(group.count, group.code) for group in groups] == [
            (count // CAUSES, group.code) for group in groups
        ]
        assert {group.code for group in groups} == {f"cause_{n}" for n in range(CAUSES)}

        before = await everything(service)
        dry = await service.requeue_dead(how={"dry_run": True, "canary": 10})
        assert (dry.found, dry.requeued) == (count, 0)
        assert (await service.purge(export=None, dry_run=True)).found == count
        assert await everything(service) == before

        file = tmp_path / "dead.jsonl.gz"
        assert (await service.export(tmp_path / "all.jsonl")).exported == count
        with (tmp_path / "all.jsonl").open() as lines:
            ids = [json.loads(line)["id"] for line in lines]
        assert len(ids) == len(set(ids)) == count

        purged = await service.purge(export=file, code="cause_0")
        assert (purged.exported, purged.purged) == (count // CAUSES, count // CAUSES)
        assert len(await service.groups()) == CAUSES - 1
        assert (await service.import_(file)).imported == count // CAUSES
        assert [group.count for group in await service.groups()] == [count // CAUSES] * CAUSES

        async with working(store_url):
            seen: list[tuple[int, int]] = []
            choice = await service.choose()
            async for told in service.requeuing(choice, RequeueOptions(canary=10, rate=count / 2)):
                seen.append((told.requeued, told.canary.done if told.canary else 0))
            assert told.stopped == ""
            assert seen[-1] == (count, 10)
            assert (10, 10) in seen  # nothing else was requeued before all of them were done
            while (await service.store.tally()).documents.get("done") != count:
                await asyncio.sleep(0.05)
        assert await service.groups() == []
        assert await service.store.counted("purged") == count // CAUSES
