"""What a client gives up when the store's history ends before its last acknowledged flush. Steps used by `flusher`.

A standby that replicated asynchronously lacks the last commits of the primary that it replaces. A job that was claimed
before and saved within the lost moments is still running under the same token: its worker would save the next stage
and leave out what is lost. So the leases of all that the client claimed are ended; others run it from what is there.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.token import new_token
from perdure.store.base import Query, Steps
from perdure.store.dialect import Dialect

#: In the order in which jobs are locked.
IN_HAND = "SELECT org, id FROM job WHERE state = 'running' AND worker = $1 ORDER BY org, document_id, key"
#: A lease that ended long ago is one that a wrong clock may have ended, see `Sweeper`.
LET_GO = (
    "UPDATE job SET token = $3, lease_until_ms = $4 "
    "WHERE org = $1 AND id = $2 AND state = 'running' AND worker = $5"
)


def let_go(sql: Dialect, client: int, number: int, workers: Iterable[int], now_ms: int | None) -> Steps[bool]:
    """End the leases of these workers if the client's row is missing or behind this number; whether it is."""
    found = yield Query(sql.FLUSH_NUMBER, (client,))
    if found and found[0][0] >= number:
        return False
    (now,) = (yield Query(sql.NOW, (now_ms,)))[0]
    for worker in sorted(workers):
        for org, id_ in (yield Query(IN_HAND, (worker,))):
            yield Query(LET_GO, (org, id_, new_token(), now - 1, worker))
    return True
