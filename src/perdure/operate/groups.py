"""Dead documents and follow-up jobs by cause: one line for a thousand of them, and what to do about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from perdure.core.frozen import frozen
from perdure.core.lane import needs_of
from perdure.operate.advice import Facts, advise
from perdure.store.dead import Where
from perdure.store.records import Cause, DeadRecord
from perdure.store.sql_store import SqlStore


@frozen
class Group:
    """Dead documents (or follow-up jobs of one name) with one fingerprint: stage, type of error and message without
    what differs."""

    fingerprint: str
    count: int
    first_ms: int
    last_ms: int
    stages: list[str]
    collections: list[str]
    error_type: str
    code: str
    status_code: int | None
    example: str  # the id of the one that died last
    org: str  # of the example
    message: str  # of the example
    action: str
    advice: str
    job: str = ""  # the name of the follow-up jobs; "": documents


async def groups(store: SqlStore, where: Where, limit: int) -> list[Group]:
    """The largest groups first."""
    now_ms, down = await store.now_ms(), await store.down()
    found = by_fingerprint(await store.dead_causes(where))
    told = []
    for causes in found[:limit]:
        last_ms = max(cause.last_ms for cause in causes)
        one = replace(
            where, group=causes[0].fingerprint, job=causes[0].job, since_ms=last_ms, before_ms=last_ms + 1
        )
        if examples := await store.dead(one, limit=1):  # requeued since, maybe
            told.append(_group(causes, examples[0], down, now_ms))
    return told


def by_fingerprint(causes: Iterable[Cause]) -> list[list[Cause]]:
    """Causes that are one group, the largest group first."""
    found: dict[tuple[str, str], list[Cause]] = defaultdict(list)
    for cause in causes:
        found[cause.fingerprint, cause.job].append(cause)
    return sorted(found.values(), key=lambda one: (-sum(c.count for c in one), one[0].fingerprint))


def _group(causes: Sequence[Cause], example: DeadRecord, down: frozenset[str], now_ms: int) -> Group:
    last_ms, one = max(cause.last_ms for cause in causes), example
    advice = advise(facts(one, down, now_ms))
    return Group(
        one.fingerprint, sum(cause.count for cause in causes), min(cause.first_ms for cause in causes), last_ms,
        [one.stage], sorted(cause.collection for cause in causes), one.error_type, one.error_code, one.status_code,
        one.id, one.org, one.message, str(advice.action), advice.text, one.job,
    )  # fmt: skip


def facts(one: DeadRecord, down: frozenset[str], now_ms: int) -> Facts:
    """What advice goes by."""
    needs = needs_of(one.lane)
    return Facts(
        one.error_code, one.error_type, one.status_code, tuple(sorted(needs & down)), tuple(sorted(needs)),
        max(0, now_ms - one.died_ms), one.stage,
    )  # fmt: skip
