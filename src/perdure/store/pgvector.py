"""Vectors searched by PostgreSQL, where it has the extension `vector`: exactly, and without a copy in this process.

The table `chunk_vector` follows `chunk` by triggers (`pgvector.sql`), within the transaction that saves the chunks: it
does not matter which programs of a fleet have seen the extension. Whoever opens the store first makes the table and
fills it from what is there; once nothing is missing there is a view, `chunk_vector_whole`, and only through it is
searched. Without the view, or when the extension goes away and takes the view with it, this process searches itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from perdure.core.frozen import frozen
from perdure.errors import StoreBusy, StoreError, StoreUnavailable
from perdure.store.base import DataRefused, Query, Row
from perdure.store.near import Among, Near, Which
from perdure.store.postgres_transaction import transaction
from perdure.store.reading import one

OLDEST = (0, 5)
#: What the type `vector` can hold; longer ones are searched in memory.
DIMENSIONS_MAX = 16_000
#: Chunks that are filled in by one transaction.
SLICE = 500
#: A store that is opened waits so long for the table to be filled; what is left goes on beside the work.
FILL_S = 1.0
TELL_S = 10.0
#: All that is missing is held by other transactions: look again after so long, then ever more rarely.
HELD_S, HELD_S_MAX = 0.5, 60.0
SETTING_UP, FILLING = 0, 1  # numbers of the lock `vectors`
#: How often a process that searches itself looks whether the table is whole by now.
AGAIN_S = 5.0
#: Numbers that one statement multiplies at most: a server ends statements that take too long.
PRODUCTS = 2_500_000_000

_log = logging.getLogger("perdure.store")

LOOK = """
SELECT quote_ident(n.nspname), e.extversion, quote_ident(en.nspname), t.count = 5 AND v.vector AND v.unit, v.whole
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_extension e ON e.extname = 'vector' LEFT JOIN pg_namespace en ON en.oid = e.extnamespace
CROSS JOIN LATERAL (SELECT count(*) FROM pg_trigger t
  WHERE t.tgrelid IN (c.oid, to_regclass('chunk_staged')) AND t.tgenabled <> 'D'
  AND t.tgname IN ('chunk_vector_come', 'chunk_vector_change', 'chunk_vector_go')) t
CROSS JOIN LATERAL (SELECT
  EXISTS (SELECT 1 FROM pg_class v JOIN pg_attribute a ON a.attrelid = v.oid WHERE v.relnamespace = n.oid
    AND v.relname = 'chunk_vector' AND a.attname = 'vector' AND NOT a.attisdropped) AS vector,
  EXISTS (SELECT 1 FROM pg_proc p WHERE p.pronamespace = n.oid AND p.proname = 'chunk_unit') AS unit,
  EXISTS (SELECT 1 FROM pg_class v WHERE v.relnamespace = n.oid AND v.relname = 'chunk_vector_whole'
    AND has_table_privilege(v.oid, 'SELECT')) AS whole) v
WHERE c.oid = to_regclass('chunk')
"""
OFFERED = "SELECT default_version FROM pg_available_extensions WHERE name = 'vector'"
_MISSING = """octet_length(c.vector) BETWEEN 4 AND 64000
    AND NOT EXISTS (SELECT 1 FROM {ours}.chunk_vector v WHERE v.num = c.num)"""
MISSING = f"SELECT EXISTS (SELECT 1 FROM {{ours}}.chunk c WHERE {_MISSING})"
#: The rows are locked until the commit: a transaction that changes or deletes one comes after this one and has the
#: last word. A row that another transaction holds is left to its triggers: a save locks chunks in an order of its own,
#: and to wait for one here would be a deadlock.
FILL = f"""
WITH slice AS MATERIALIZED (
  SELECT c.num, c.org, c.document_id, c.model, c.vector FROM {{ours}}.chunk c
  WHERE c.num > $1 AND {_MISSING}
  ORDER BY c.num LIMIT $2 FOR SHARE OF c SKIP LOCKED),
filled AS (
  INSERT INTO {{ours}}.chunk_vector (num, org, document_id, model, dimensions, vector)
  SELECT num, org, document_id, model, octet_length(vector) / 4, {{ours}}.chunk_unit(vector) FROM slice
  ON CONFLICT (num) DO NOTHING)
SELECT max(num), count(*) FROM slice
"""
WHOLE = "CREATE OR REPLACE VIEW {ours}.chunk_vector_whole AS SELECT * FROM {ours}.chunk_vector"
COUNT = (
    "SELECT count(*) FROM {ours}.chunk_vector_whole v WHERE v.org = $1 AND v.model = $2 AND v.dimensions = $3"
)
NEAREST = """
WITH wanted AS MATERIALIZED (
  SELECT w.n, {ours}.chunk_unit(w.data) AS vector FROM unnest($4::bytea[]) WITH ORDINALITY AS w(data, n))
SELECT w.n, f.score, f.num FROM wanted w CROSS JOIN LATERAL (
  SELECT v.num, -(v.vector OPERATOR({theirs}.<#>) w.vector) AS score FROM {ours}.chunk_vector_whole v
  WHERE v.org = $1 AND v.model = $2 AND v.dimensions = $3 {among}
  ORDER BY score DESC, v.num LIMIT $5) f
WHERE f.score >= $6 ORDER BY w.n, f.score DESC, f.num
"""
#: Without a limit nothing has to be sorted before it is known to be near enough.
WITHIN = """
WITH wanted AS MATERIALIZED (
  SELECT w.n, {ours}.chunk_unit(w.data) AS vector FROM unnest($4::bytea[]) WITH ORDINALITY AS w(data, n))
SELECT w.n, f.score, f.num FROM wanted w CROSS JOIN LATERAL (
  SELECT v.num, -(v.vector OPERATOR({theirs}.<#>) w.vector) AS score FROM {ours}.chunk_vector_whole v
  WHERE v.org = $1 AND v.model = $2 AND v.dimensions = $3 {among} OFFSET 0) f
WHERE f.score >= $5 ORDER BY w.n, f.score DESC, f.num
"""
AMONG = {
    "collection": "AND EXISTS (SELECT 1 FROM {ours}.document d WHERE d.org = v.org AND d.id = v.document_id "
    "AND d.collection = ${n})",
    "document": "AND v.document_id = ${n}",
    "but": "AND v.document_id <> ${n}",
}


@frozen
class Look:
    """What the database has: schemas ready to stand in a statement, and how far the table is."""

    ours: str
    version: str | None
    theirs: str | None
    set_up: bool
    whole: bool


class PgVectors:
    """The vectors of a store on PostgreSQL, as far as the server can search them."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._ours = self._theirs = ""
        self.version = ""
        self.whole = False
        self._filling: asyncio.Task[None] | None = None
        self._looked_s = 0.0

    async def open(self) -> str:
        """Set up what is missing; why the server cannot search vectors, or '' if it can once all are filled in."""
        look = await self._look()
        if not look.set_up:
            try:
                if why_not := await self._set_up(look):
                    return why_not
            except StoreUnavailable:
                raise
            except StoreError as error:
                return f"what it needs could not be set up ({error}); open the store once as an owner of its tables"
            look = await self._look()
        self._take(look)
        if not self.whole:
            await self._begin_filling()
        return ""

    def __str__(self) -> str:
        return f"pgvector {self.version}" + ("" if self.whole else " once chunk_vector is filled")

    async def filled(self) -> None:
        """Wait until this process has nothing more to fill in."""
        if self._filling is not None:
            await self._filling

    async def close(self) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)

    async def nearest(
        self, which: Which, wanted: Sequence[bytes], limit: int | None, among: Among, least: float
    ) -> list[list[Near]] | None:
        """For each vector the most similar chunks that are committed, best first; None: the server cannot, now."""
        if which.dimensions > DIMENSIONS_MAX or not await self._is_whole():
            return None
        try:
            found: list[list[Near]] = []
            for some in await self._sliced(which, wanted):
                found += await self._nearest(which, some, limit, among, least)
            return found
        except (StoreBusy, StoreUnavailable):
            raise
        except StoreError as error:  # the view is gone, or we may not read it any more
            self.whole = False
            self._looked_s = asyncio.get_running_loop().time()
            _log.warning("vectors are searched in memory from now on: pgvector failed (%s)", error)
            return None

    async def _nearest(
        self, which: Which, wanted: Sequence[bytes], limit: int | None, among: Among, least: float
    ) -> list[list[Near]]:
        params: list[Any] = [which.org, which.model, which.dimensions, list(wanted)]
        params += [least] if limit is None else [limit, least]
        conditions = []
        for name, condition in AMONG.items():
            if (value := getattr(among, name)) is not None:
                params.append(value)
                conditions.append(condition.replace("{n}", str(len(params))))
        statement = (WITHIN if limit is None else NEAREST).replace("{among}", " ".join(conditions))
        found: list[list[Near]] = [[] for _ in wanted]
        for n, score, num in await self._rows(statement, *params):
            found[n - 1].append(Near(score, num))
        return found

    async def _sliced(self, which: Which, wanted: Sequence[bytes]) -> list[Sequence[bytes]]:
        """So many at a time that a statement stays well below the time that the server gives it."""
        if len(wanted) == 1:
            return [wanted]
        ((count,),) = await self._rows(COUNT, which.org, which.model, which.dimensions)
        most = max(1, PRODUCTS // max(1, count * which.dimensions))
        return [wanted[n : n + most] for n in range(0, len(wanted), most)]

    async def _rows(self, statement: str, *params: object) -> list[Row]:
        rows: list[Row] = await self._driver.read(one(Query(self._named(statement), params)))
        return rows

    def _named(self, statement: str) -> str:
        return statement.replace("{ours}", self._ours).replace("{theirs}", self._theirs)

    # --- what is there ---------------------------------------------------------------------------

    async def _look(self) -> Look:
        look = Look(*(await self._driver.read(one(Query(LOOK))))[0])
        self._looked_s = asyncio.get_running_loop().time()
        return look

    def _take(self, look: Look) -> None:
        self._ours, self._theirs, self.version = look.ours, look.theirs or "", look.version or ""
        self.whole = look.set_up and look.whole

    async def _is_whole(self) -> bool:
        if not self.whole and asyncio.get_running_loop().time() >= self._looked_s + AGAIN_S:
            self._take(look := await self._look())
            if look.set_up and not look.whole:
                await self._begin_filling()  # whoever was at it may have died
        return self.whole

    # --- setting up ------------------------------------------------------------------------------

    async def _set_up(self, look: Look) -> str:
        """One process at a time; why it is not possible, or ''."""
        if look.version is None and not await self._driver.read(one(Query(OFFERED))):
            return "the server does not have pgvector; install it there"
        while not await self._driver.lock("vectors", SETTING_UP):
            await asyncio.sleep(0.1)
        try:
            if look.version is None:
                try:
                    await self._driver.script("CREATE EXTENSION IF NOT EXISTS vector")
                except StoreUnavailable:
                    raise
                except StoreError as error:
                    return f"{error}; let an administrator run CREATE EXTENSION vector in this database"
            self._take(look := await self._look())
            if tuple(map(int, re.findall(r"\d+", self.version)[:2])) < OLDEST:
                return f"its pgvector is {self.version}; 0.5 is needed: ALTER EXTENSION vector UPDATE"
            if not look.set_up:
                script = files("perdure.store").joinpath("pgvector.sql").read_text(encoding="utf-8")
                await self._driver.script(self._named(script))
            return ""
        finally:
            await self._driver.unlock("vectors", SETTING_UP)

    async def _begin_filling(self) -> None:
        """Fill in what is missing, unless somebody is at it; after a while beside whatever else is done."""
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._fill(), name="perdure-vectors")
            await asyncio.wait({self._filling}, timeout=FILL_S)

    async def _fill(self) -> None:
        try:
            if await self._driver.lock("vectors", FILLING):
                try:
                    await self._fill_all()
                finally:
                    await self._driver.unlock("vectors", FILLING)
        except (StoreError, DataRefused) as error:
            _log.warning("vectors are searched in memory: chunk_vector could not be filled (%s)", error)

    async def _fill_all(self) -> None:
        after, filled, told_s, held_s = 0, 0, asyncio.get_running_loop().time(), HELD_S
        while True:
            async with self._driver.reading() as connection, transaction(connection):
                last, count = await connection.fetchrow(self._named(FILL), after, SLICE)
                if not count and not await connection.fetchval(self._named(MISSING)):
                    # the table cannot change its name before the commit
                    await connection.execute(self._named(WHOLE))
                    break
            if not count and not after:
                await asyncio.sleep(held_s)
                held_s = min(2 * held_s, HELD_S_MAX)
            after, filled = last or 0, filled + count
            if (now_s := asyncio.get_running_loop().time()) >= told_s + TELL_S:
                told_s = now_s
                _log.info("chunk_vector is being filled: %d chunks so far", filled)
        self.whole = True
        if filled:
            _log.info(
                "chunk_vector is filled: %d chunks; vectors are searched by pgvector from now on", filled
            )
