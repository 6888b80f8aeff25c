"""Numbered migrations, one file per database and step: `0001_start.sqlite.sql`.

A file may begin with `-- needs: N`: a program that knows fewer than N migrations cannot work on the result. Without it,
programs of the previous release keep working, so a fleet can be upgraded while it runs.
"""

from __future__ import annotations

import re
from importlib.resources import files

from perdure.core.frozen import frozen
from perdure.errors import SchemaNewer, SchemaOutdated
from perdure.store.base import Driver, Query, Row, Steps

TABLE = "CREATE TABLE IF NOT EXISTS migration (name text PRIMARY KEY, needs int NOT NULL, applied_ms bigint NOT NULL)"


@frozen
class Migration:
    """One step of the schema."""

    name: str
    needs: int
    text: str


def known(dialect: str) -> list[Migration]:
    """This program's migrations for `sqlite` or `postgres`, in order."""
    found = []
    for file in files("perdure.store").joinpath("migrations").iterdir():
        if file.name.endswith(f".{dialect}.sql"):
            text = file.read_text(encoding="utf-8")
            needs = re.match(r"-- needs: (\d+)", text)
            name = file.name.removesuffix(f".{dialect}.sql")
            found.append(Migration(name, int(needs[1]) if needs else 1, text))
    return sorted(found, key=lambda m: m.name)


async def applied(driver: Driver) -> dict[str, int]:
    """Names and needs of the migrations that this database has seen."""

    def steps() -> Steps[list[Row]]:
        if not (yield Query(driver.dialect.MIGRATED)):
            return []
        return (yield Query("SELECT name, needs FROM migration ORDER BY name"))

    return {row[0]: row[1] for row in await driver.read(steps)}


async def fits(driver: Driver, dialect: str) -> bool:
    """Whether this program can work on the database as it is now."""
    ours, theirs = known(dialect), await applied(driver)
    return all(m.name in theirs for m in ours) and all(needs <= len(ours) for needs in theirs.values())


async def check(driver: Driver, dialect: str) -> bool:
    """An empty database is set up; an older or newer one is refused with what to do. Whether it was empty."""
    ours, theirs = known(dialect), await applied(driver)
    if not theirs:
        return bool(await migrate(driver, dialect))
    while any(m.name not in theirs for m in ours):
        migrating = await driver.locked("migrate", [0])
        theirs = await applied(driver)
        missing = [m.name for m in ours if m.name not in theirs]
        if missing and not migrating:
            raise SchemaOutdated(f"the store lacks {', '.join(missing)}; run `perdure migrate`")
        if missing:  # somebody is at it
            await _pause()
    too_new = [name for name, needs in theirs.items() if needs > len(ours)]
    if too_new:
        raise SchemaNewer(
            f"the store was migrated by a newer release ({', '.join(too_new)}); upgrade this program"
        )
    return False


async def migrate(driver: Driver, dialect: str) -> list[str]:
    """Run what is missing, one process at a time; the names of what ran."""
    while not await driver.lock("migrate", 0):
        await _pause()
    try:
        await driver.script(TABLE)  # under the lock: IF NOT EXISTS does not see another process that is at it
        theirs = await applied(driver)
        ran = []
        for m in known(dialect):
            if m.name not in theirs:
                values = f"('{m.name}', {m.needs}, perdure_now())"
                record = f"INSERT INTO migration (name, needs, applied_ms) VALUES {values}"
                await driver.script(f"{m.text};\n{record};")
                ran.append(m.name)
        return ran
    finally:
        await driver.unlock("migrate", 0)


async def create_tables(driver: Driver, statements: str) -> None:
    """Run a user's own statements, one process at a time."""
    while not await driver.lock("migrate", 0):
        await _pause()
    try:
        await driver.script(statements)
    finally:
        await driver.unlock("migrate", 0)


async def _pause() -> None:
    import asyncio

    await asyncio.sleep(0.1)
