"""From an address to a store: `sqlite:///path/file.db` or `postgresql://user@host/database`."""

from __future__ import annotations

from pathlib import Path

from perdure.core.clock import Clock
from perdure.errors import SettingInvalid, address_shown, hide_password
from perdure.store.sql_store import SqlStore

FORMS = "sqlite:///relative.db, sqlite:////absolute.db or postgresql://user:password@host/database"


def open_store(url: str, clock: Clock | None = None, direct_url: str | None = None) -> SqlStore:
    """The store at this address, not yet connected; SettingInvalid names the accepted forms."""
    hide_password(url)
    hide_password(direct_url)
    scheme, found, rest = url.partition("://")
    if found and scheme == "sqlite":
        path = rest.removeprefix("/")
        if path in ("", rest, "/") or path.startswith(":memory:"):
            raise SettingInvalid(
                f"{address_shown(url)!r} names no file; the accepted forms are {FORMS}",
                code="store_url_invalid",
            )
        from perdure.store.sqlite import SqliteDriver

        return SqlStore(SqliteDriver(Path(path).absolute()), "sqlite", clock)
    if found and scheme in ("postgresql", "postgres"):
        from perdure.store.postgres import PostgresDriver

        return SqlStore(PostgresDriver(url, direct_url), "postgres", clock)
    raise SettingInvalid(
        f"{address_shown(url)!r} is not the address of a store; the accepted forms are {FORMS}",
        code="store_url_invalid",
    )
