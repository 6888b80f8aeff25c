"""Large messages over slow links: the server is told to wait for them.

PostgreSQL ends a transaction whose client is idle, and a message that has not arrived whole counts as idleness. The
limit is short, because a frozen client keeps its locks that long; a message of several MB gets the time that a link of
`BYTES_PER_S_MIN` needs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from perdure.store.postgres_session import SETTINGS, Heard

Allow: TypeAlias = Callable[[Any, int, Heard], Awaitable[None]]

#: Arrives within the usual limit at 210 kB/s.
LARGE_BYTES = 1 << 20
BYTES_PER_S_MIN = 200_000
#: Under another name the session is not taken for one whose client is frozen.
SENDING = "perdure sending"
_IDLE_S, _STATEMENT_S = (
    int(SETTINGS[name].removesuffix("s")) for name in ("idle_in_transaction_session_timeout", "statement_timeout")
)  # fmt: skip


def weight(values: Sequence[Any]) -> int:
    """About how many bytes these have, or, of columns, what is in them; numbers do not count."""
    total = 0
    for value in values:
        kind = type(value)
        if kind is str or kind is bytes:
            total += len(value)
        elif kind is list and value and type(value[0]) is not int:
            total += sum([len(each) for each in value if type(each) is str or type(each) is bytes])
    return total


async def allow(connection: Any, size: int, heard: Heard) -> None:
    """Let the message of this size that follows take its time, within the open transaction."""
    more_s = -(-size // BYTES_PER_S_MIN)
    await connection.execute(
        f"SET LOCAL idle_in_transaction_session_timeout = '{_IDLE_S + more_s}s'; "
        f"SET LOCAL statement_timeout = '{_STATEMENT_S + more_s}s'; SET LOCAL application_name = '{SENDING}'"
    )
    heard(more_s)
