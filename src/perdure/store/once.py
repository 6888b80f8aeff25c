"""What is asked for twice under one key is done once: the key is kept in the transaction of what it asked for, with the
answer, so that neither a crash nor fifty at a time do it again. Steps used by `apply`, and the store's verbs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from perdure.core.frozen import frozen
from perdure.errors import InputInvalid
from perdure.store.base import Query, Steps
from perdure.store.operations import Add, Added, NewDocument, Once

Numbered = tuple[int, Add]

ADD = (
    "INSERT INTO once (org, key, request, at_ms) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING key"
)
SET = "UPDATE once SET answer = $3, finished = $4 WHERE org = $1 AND key = $2"
FINISH = "UPDATE once SET answer = $3, finished = true WHERE org = $1 AND key = $2 AND NOT finished"
GET = "SELECT request, answer, finished FROM once WHERE org = $1 AND key = $2"
FORGET = (
    "DELETE FROM once WHERE (org, key) IN (SELECT org, key FROM once WHERE at_ms < $1 ORDER BY at_ms LIMIT $2) "
    "RETURNING key"
)


@frozen
class Answer:
    """What an add under a key came to: None where the key was used for something else."""

    added: list[Added] | None
    repeated: bool  # it was done before, and this is what was answered then
    finished: bool = (
        True  # else what was there already may have to be fetched or changed, which is yet to be done
    )


class KeyReused(InputInvalid):
    """The idempotency key was used for another request."""

    code = "idempotency_key_reused"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the idempotency key {key!r} was used for another request; use a new key for each request"
        )


def begin(adds: Sequence[Numbered], now_ms: int) -> Steps[tuple[list[Numbered], list[Numbered]]]:
    """Those that are to be done now, and those that were asked for before, perhaps in this very flush."""
    first: dict[tuple[str, str], int] = {}
    for n, op in adds:
        if op.once is not None:
            first.setdefault((op.once.org, op.once.key), n)
    if not first:
        return list(adds), []
    keyed = sorted(
        ((op.once, n) for n, op in adds if op.once and first[op.once.org, op.once.key] == n), key=_by_key
    )
    fresh: set[int] = set()
    for once, n in keyed:
        if (yield Query(ADD, (once.org, once.key, once.request, now_ms))):
            fresh.add(n)
    new = [(n, op) for n, op in adds if op.once is None or n in fresh]
    return new, [(n, op) for n, op in adds if op.once is not None and n not in fresh]


def _by_key(keyed: tuple[Once, int]) -> tuple[str, str]:
    return keyed[0].org, keyed[0].key


def end(once: Once, documents: Sequence[NewDocument], added: list[Added]) -> Steps[Answer]:
    """Keep what is answered."""
    there = ((new, one) for new, one in zip(documents, added, strict=True) if one.answer == "exists")
    finished = not any(new.may_change or one.state == "dead" for new, one in there)
    yield keep(once, _kept(added), finished)
    return Answer(added, False, finished)


def keep(once: Once, answer: Any, finished: bool = True) -> Query:
    """Keep an answer of any kind."""
    return Query(SET, (once.org, once.key, json.dumps(answer), finished))


def _kept(added: Sequence[Added]) -> list[tuple[str, str, str | None]]:
    return [(one.id, one.answer, one.state) for one in added]


def known(once: Once | None, now_ms: int) -> Steps[Any]:
    """The answer that was kept for this request; None where it is to be done now, in this transaction. KeyReused."""
    if once is None or (yield Query(ADD, (once.org, once.key, once.request, now_ms))):
        return None
    request, answer, _ = (yield Query(GET, (once.org, once.key)))[0]
    if request != once.request:
        raise KeyReused(once.key)
    return json.loads(answer)


def again(once: Once, repeated: bool = True) -> Steps[Answer]:
    """What was answered under this key."""
    request, answer, finished = (yield Query(GET, (once.org, once.key)))[0]
    if request != once.request:
        return Answer(None, True)
    return Answer([Added(*one) for one in json.loads(answer)], repeated, bool(finished))


class Onces:
    """The store's verbs about keys that are used once."""

    sql: Any
    clock: Any
    flusher: Any
    _write: Callable[[Callable[[], Steps[Any]]], Any]
    _forget: Callable[[str, int, int], Any]
    wake_soon: Callable[[], None]

    async def add_once(self, once: Once, documents: Sequence[NewDocument]) -> Answer:
        """Add the documents unless that was asked for before; KeyReused where something else was."""
        answer: Answer = await self.flusher.submit(Add(tuple(documents), once))
        if answer.added is None:
            raise KeyReused(once.key)
        if not answer.repeated:
            self.wake_soon()
        return answer

    async def finish_once(self, once: Once, added: Sequence[Added]) -> list[Added]:
        """Keep the answer to what was not finished; what is kept, which another may have done meanwhile."""

        def steps() -> Steps[Answer]:
            yield Query(FINISH, (once.org, once.key, json.dumps(_kept(added))))
            return (yield from again(once))

        kept: Answer = await self._write(steps)
        return kept.added or []

    async def forget_onces(self, age_ms: int, limit: int) -> int:
        """Delete keys that were used longer ago; how many."""
        forgotten: int = await self._forget(FORGET, age_ms, limit)
        return forgotten
