"""A model from what the store recorded of real calls: how many there are, how long they take, how many fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from perdure.core.frozen import frozen
from perdure.errors import SettingInvalid
from perdure.operate.simulate.model import Model
from perdure.store.base import Query, Row
from perdure.store.reading import Reading, one

ROWS_MAX = 200_000
READ = (
    "SELECT api_name, retry_count, success, latency_ms, timestamp FROM retry_metrics "
    "WHERE timestamp >= $1 ORDER BY timestamp DESC LIMIT $2"
)
#: What a service can do is not recorded; its busiest minute and a quarter is taken for it.
HEADROOM = 1.25
#: Calls that one process makes per second, to guess how many there are.
CALLS_PER_CLIENT = 4.0


@frozen
class History:
    """What was recorded of one dependency."""

    name: str
    operations: int
    rate: float  # operations per second, in its busiest minute
    failed: float  # share of requests, outside of outages
    latency_s: float  # median of operations that succeeded at once
    slow_s: float  # of these, the slowest in a hundred


async def read(store: Reading, since_s: float, name: str | None = None) -> History:
    """The history of a dependency, by default the one with most calls; SettingInvalid if there is none."""
    since_ms = await store.now_ms() - int(since_s * 1000)
    rows: list[Row] = await store._read(one(Query(READ, (since_ms, ROWS_MAX))))
    return history(rows, name)


def history(rows: Sequence[Row], name: str | None = None) -> History:
    """Sum up rows of `retry_metrics`."""
    names = Counter(row[0] for row in rows)
    if not names or (name is not None and name not in names):
        known = f"; there are calls of {', '.join(sorted(names))}" if names else ""
        raise SettingInvalid(
            f"the store recorded no calls{f' of {name}' if name else ''} in this time{known}"
        )
    chosen = name or names.most_common(1)[0][0]
    mine = [row for row in rows if row[0] == chosen]
    minutes = Counter(row[4] // 60_000 for row in mine)
    at_once = sorted(row[3] for row in mine if row[2] and not row[1]) or sorted(row[3] for row in mine)
    return History(
        chosen,
        operations=len(mine),
        rate=max(minutes.values()) / 60,
        failed=_failed(mine),
        latency_s=median(at_once) / 1000,
        slow_s=at_once[int(len(at_once) * 0.99)] / 1000,
    )


def _failed(rows: Sequence[Row]) -> float:
    """The share of requests that failed, without minutes in which most did: those are faults, not noise."""
    bad, every = Counter[int](), Counter[int]()
    for _, retries, success, _, at_ms in rows:
        bad[at_ms // 60_000] += retries + (not success)
        every[at_ms // 60_000] += retries + 1
    calm = [minute for minute in every if 2 * bad[minute] < every[minute]]
    return sum(bad[minute] for minute in calm) / max(1, sum(every[minute] for minute in calm))


def fitted(model: Model, found: History) -> Model:
    """The model with the numbers of the history in it."""
    return replace(
        model,
        rate=found.rate,
        capacity=HEADROOM * found.rate,
        clients=max(1, min(model.clients, round(found.rate / CALLS_PER_CLIENT))),
        latency_s=found.latency_s,
        timeout_s=max(model.timeout_s, 2 * found.slow_s),
        noise=found.failed,
    )
