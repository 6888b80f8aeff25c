"""Sessions of PostgreSQL: the limits and planner settings that every connection of ours works under.

Without a pooler they belong to the session. A pooler may lend a server connection for one transaction at a time: there,
settings and prepared statements of a session would stay with a server connection that another client gets next. So
behind a pooler each transaction sets its own (SET LOCAL) and no statement is kept (`statement_cache_size` is 0). There
is a pooler if an unpooled address is given beside the store's, or if the server's process is not the one that the
connection was introduced to.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

import asyncpg

from perdure.errors import SettingInvalid, address_shown
from perdure.store.base import DataRefused
from perdure.store.blobs.table import SMALL_MAX, WRITES_MAX
from perdure.store.descriptors import unshare
from perdure.store.postgres_errors import mapped
from perdure.store.postgres_transaction import transaction
from perdure.store.walks import READERS

SETTINGS = {
    "idle_in_transaction_session_timeout": "5s",
    "lock_timeout": "5s",
    "statement_timeout": "30s",
    "client_min_messages": "warning",
    "application_name": "perdure",
}
#: The writing connection repeats a few statements that all reach their rows by key; a planner that looks at young or
#: stale statistics each time would rather read whole tables, and planning costs more than a small flush.
PLANNING = {"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"}
CONNECT_S = 5.0
STATEMENTS_KEPT = 100
#: A link that went silent tells nobody; without this the kernel would wait for a quarter of an hour.
SILENT_S = 40.0  # longer than the server lets a statement take

_log = logging.getLogger("perdure.store")


def setting(settings: dict[str, str], *, local: bool = False) -> str:
    """The statements that set these, for the session or for the transaction."""
    return "; ".join(f"SET {'LOCAL ' if local else ''}{name} = '{value}'" for name, value in settings.items())


#: What has answered must survive a crash of the server. More than that (remote_apply, say) is the server's to ask for.
_DURABLE = "SELECT set_config('synchronous_commit', 'on', {local}) WHERE current_setting('synchronous_commit') = 'off'"
DURABLE, DURABLE_LOCAL = _DURABLE.format(local="false"), _DURABLE.format(local="true")
SESSION = f"{setting(SETTINGS)}; {DURABLE}"
WRITER_SESSION = f"{setting({**SETTINGS, **PLANNING, 'jit': 'off'})}; {DURABLE}"
LOCAL = f"{setting(SETTINGS, local=True)}; {DURABLE_LOCAL}"
#: Without `jit`: the driver turns it off for the session while it looks up a type, and on again only if it was on.
WRITER_LOCAL = f"{setting({**SETTINGS, **PLANNING}, local=True)}; {DURABLE_LOCAL}"


class Heard(Protocol):
    """Reports that the server answered."""

    def __call__(self, more_s: float = 0.0) -> None:
        """The next answer may take `more_s` longer than usual."""


class UnsharedConnection(asyncpg.Connection):
    """A connection whose socket, and with it the locks of its session, no forked process keeps."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        unshare(self)

    def fileno(self) -> int:
        """Return the descriptor of its socket; -1 when it is closed."""
        transport: Any = getattr(self, "_transport", None)
        socket = None if transport is None or transport.is_closing() else transport.get_extra_info("socket")
        return -1 if socket is None else int(socket.fileno())


class Sessions:
    """Makes the connections to the store's address (`url`) and to its unpooled one (`direct_url`)."""

    def __init__(self, url: str, direct_url: str | None) -> None:
        self.url, self.direct_url = url, direct_url or url
        self.pooled = self.direct_url != url
        self._looked = self.pooled
        self._pool_settings = SETTINGS

    async def writer(self) -> asyncpg.Connection:
        """A connection that writes; the first one finds out whether there is a pooler, and what a commit is."""
        if not self._looked:
            connection = await self._connect(self.url)
            with mapped():
                self.pooled = await _is_pooled(connection)
                if await _has(connection, "current_setting('synchronous_commit') = 'off'"):
                    self._pool_settings = {**SETTINGS, "synchronous_commit": "on"}
            self._looked = True
            if not self.pooled:
                return await _set(connection, WRITER_SESSION)
            await connection.close(timeout=CONNECT_S)
            _log.warning(
                "there is a pooler before PostgreSQL: set PERDURE_DIRECT_URL to the unpooled address; until then the "
                "documents of a killed worker are claimed again when their leases expire, and idle workers poll"
            )
        connection = await self._connect(self.url)
        return connection if self.pooled else await _set(connection, WRITER_SESSION)

    async def direct(self) -> asyncpg.Connection:
        """A connection that holds locks and listens."""
        connection = await self._connect(self.direct_url)
        return connection if self.pooled and self.direct_url == self.url else await _set(connection, SESSION)

    async def pool(self) -> asyncpg.Pool:
        """Connections that read, and those that blobs are sent on."""
        with mapped():
            return await asyncpg.create_pool(
                self.url,
                min_size=0,
                max_size=READERS + WRITES_MAX + SMALL_MAX,
                timeout=CONNECT_S,
                connection_class=UnsharedConnection,
                statement_cache_size=self._kept(self.url),
                server_settings=None if self.pooled else self._pool_settings,
                # a read leaves nothing behind in its session, so the reset would only be another round trip
                reset=_leave,
                max_inactive_connection_lifetime=60,
            )

    @asynccontextmanager
    async def transaction(self, connection: Any, local: str = LOCAL, **options: Any) -> AsyncIterator[None]:
        """A transaction under our settings."""
        async with transaction(connection, **options):
            if self.pooled:
                await connection.execute(local)
            yield

    async def _connect(self, url: str) -> asyncpg.Connection:
        try:
            with mapped():
                return await asyncpg.connect(
                    url,
                    timeout=CONNECT_S,
                    connection_class=UnsharedConnection,
                    statement_cache_size=self._kept(url),
                )
        except DataRefused as error:
            # the driver quotes parts of it, and what it takes for the port may be the password
            why = "encode special characters of the password (%2F for /)" if "@" in url else str(error)
            raise SettingInvalid(
                f"the address of PostgreSQL is malformed: {address_shown(url)}; {why}"
            ) from None

    def _kept(self, url: str) -> int:
        return 0 if self.pooled and url == self.url else STATEMENTS_KEPT


async def _is_pooled(connection: asyncpg.Connection) -> bool:
    """Whether another process than the one named at the start of the session answers."""
    return not await _has(connection, f"pg_backend_pid() = {connection.get_server_pid()}")


async def _has(connection: asyncpg.Connection, condition: str) -> bool:
    # a simple query, because it leaves no prepared statement behind; its tag tells how many rows there were
    tag: str = await connection.execute(f"SELECT 1 WHERE {condition}")
    return tag == "SELECT 1"


async def _set(connection: asyncpg.Connection, session: str) -> asyncpg.Connection:
    try:
        with mapped():
            await connection.execute(session)
    except BaseException:
        connection.terminate()
        raise
    return connection


async def _leave(_: object) -> None:
    return


@contextmanager
def watched(connection: Any) -> Iterator[Heard]:
    """Cut the connection when the server is silent for too long; the call that waits on it raises then.

    Gives the function to call at each answer.
    """
    loop = asyncio.get_running_loop()
    cut = loop.call_later(SILENT_S, connection.terminate)

    def heard(more_s: float = 0.0) -> None:
        nonlocal cut
        cut.cancel()
        cut = loop.call_later(SILENT_S + more_s, connection.terminate)

    try:
        yield heard
    finally:
        cut.cancel()
