"""How fast dead documents are listed and grouped among a million others, and what requeue, export and purge cost.

    python benchmarks/dead.py [--documents 1000000] [--dead 100000] [--store sqlite --store postgres]

The documents are written straight into the tables, every tenth dead of one of five causes; then the verbs are asked as
the command asks them. Reads are the median of seven.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from perdure.bench.place import place
from perdure.service import AsyncPerdure
from perdure.store.base import Query, Steps
from perdure.store.dead import Where

ROUNDS = 7
SLICE = 50_000  # rows of one transaction
CAUSES = 5


def filling(first: int, last: int, every: int, kind: str) -> Callable[[], Steps[None]]:
    """Documents with these numbers, and what belongs to the dead ones."""
    numbers = f"WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last}) "
    dead = f"i % {every} = 0"
    content = f"CAST('what was handed in' AS {kind})"
    org = f"'o' || (i / {every} % 10)"

    def steps() -> Steps[None]:
        yield Query(
            "INSERT INTO document (org, id, collection, pipeline, kind, name, media_type, content_hash, size, inline, "
            f"meta, created_ms, state, finished_ms, error_code, error_message) {numbers} SELECT {org}, 'd' || i, "
            "CASE WHEN i % 3 = 0 THEN 'archives' ELSE 'documents' END, 'one', 'text', 'n' || i, '', '', 18, "
            f"{content}, CAST('{{}}' AS {kind}), 1, CASE WHEN {dead} THEN 'dead' ELSE 'done' END, i, "
            f"CASE WHEN {dead} THEN 'http_500' END, CASE WHEN {dead} THEN 'the service said no' END FROM n"
        )
        yield Query(
            "INSERT INTO dead (org, document_id, collection, pipeline, queue, lane, stage, error_type, error_code, "
            f"fingerprint, attempts, generation, died_ms) {numbers} SELECT {org}, 'd' || i, "
            "CASE WHEN i % 3 = 0 THEN 'archives' ELSE 'documents' END, 'one', 'bench', '', "
            f"'stage' || (i / {every} % {CAUSES}), 'Transient', 'http_500', "
            f"'abcdef012345678' || (i / {every} % {CAUSES}), 3, 1, i FROM n WHERE {dead}"
        )
        yield Query(
            "INSERT INTO job (org, key, document_id, pipeline, queue, lane, stage, state, run_at_ms, lease_ms, "
            f"attempts, attempts_max, created_ms, finished_ms) {numbers} SELECT {org}, 'doc-d' || i, 'd' || i, 'one', "
            f"'bench', '', 'only', 'dead', i, 30000, 3, 3, 1, i FROM n WHERE {dead}"
        )

    return steps


async def timed(act: Callable[[], Awaitable[object]]) -> float:
    """The median of several, in milliseconds."""
    took = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        await act()
        took.append(1000 * (time.perf_counter() - began_s))
    return statistics.median(took)


async def measure(kind: str, documents: int, dead: int) -> None:
    async with place(kind) as url:
        app = AsyncPerdure(url)
        await app.start()
        try:
            every = max(1, documents // dead)
            blob = "blob" if app.store.dialect_name == "sqlite" else "bytea"
            for first in range(0, documents, SLICE):
                await app.store.driver.write(filling(first, min(documents, first + SLICE) - 1, every, blob))
            if blob == "bytea":
                await app.store.driver.script("ANALYZE")
            await reads(app, kind)
            await acts(app)
        finally:
            await app.close()


async def reads(app: AsyncPerdure, kind: str) -> None:
    count = await app.store.dead_count(Where())
    print(f"{kind}: {count:,} dead documents", flush=True)
    middle = (await app.dead(limit=1000)).after
    asked: dict[str, Callable[[], Awaitable[object]]] = {
        "groups": lambda: app.groups(),
        "groups of a collection": lambda: app.groups(collection="archives"),
        "groups of an organisation": lambda: app.groups(org="o0"),
        "first page": lambda: app.dead(),
        "a page further on": lambda: app.dead(after=middle),
        "page of a group": lambda: app.dead(group="abcdef0123456784"),
        "page of archives.failed": lambda: app.dead(failed="archives.failed"),
        "page of a stage, old ones": lambda: app.dead(stage="stage1", older_than="3d"),
        "page of what there is none of": lambda: app.dead(code="http_404"),
    }
    for name, read in asked.items():
        print(f"  {name:32} {await timed(read):8.1f} ms", flush=True)


async def acts(app: AsyncPerdure) -> None:
    """Something is done to all of an organisation, which has a tenth of them."""
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as directory:
        file, purged = Path(directory) / "dead.jsonl", Path(directory) / "purged.jsonl.gz"
        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "export": lambda: app.export(file, org="o0"),
            "purge (exports first)": lambda: app.purge(export=purged, org="o0"),
            "import": lambda: app.import_(file),
            "requeue": lambda: app.requeue_dead(org="o0"),
        }
        count = await app.store.dead_count(Where(org="o0"))
        for name, verb in verbs.items():
            began_s = time.perf_counter()
            await verb()
            took_s = time.perf_counter() - began_s
            print(f"  {name:32} {count / took_s:8.0f} documents/s", flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--documents", type=int, default=1_000_000)
    asked.add_argument("--dead", type=int, default=100_000)
    asked.add_argument(
        "--act", type=int, default=1_000, help="documents that something is done to (at most 1000)"
    )
    asked.add_argument("--store", action="append")
    given = asked.parse_args()
    for kind in given.store or ["sqlite", "postgres"]:
        asyncio.run(measure(kind, given.documents, given.dead))


if __name__ == "__main__":
    main()
