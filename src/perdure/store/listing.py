"""Documents by page, those that came last first, children among them: rare documents make no page cost more.

First the next few thousand documents are looked at, which answers nearly every question. Where too few of them fit, the
index that has those of the wanted state, collection or time of end in it finds the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from heapq import nlargest
from typing import Any

from perdure.errors import InputInvalid
from perdure.store import rows
from perdure.store.base import Query, Steps
from perdure.store.dialect import ORGS
from perdure.store.each import SLICE
from perdure.store.list_statements import (
    ENDED_BADLY,
    LIVE,
    Wanted,
    earlier,
    ended_badly,
    live,
    look,
    looked,
    walk,
    walk_each,
)
from perdure.store.reading import Reading
from perdure.store.records import Place, Status
from perdure.store.walks import Walks

LOOK = 2_000
NAME_PART_MAX = 200
SIZE_LEAST, SIZE_GROWTH = 2, 4  # of what is read of each organisation, where all are listed
Key = tuple[int, str, str]  # created_ms, id, organisation: in the order of the list


class Listing(Reading):
    """See the module."""

    @cached_property
    def walks(self) -> Walks:
        return Walks()

    async def documents(
        self, org: str | None = None, state: str | Sequence[str] | None = None, after: str | None = None,
        limit: int = 100, stage: str | None = None, collection: str | None = None, pipeline: str | None = None,
        name: str | None = None, **times: int | None,
    ) -> list[Status]:  # fmt: skip
        """The next documents after this place, those that came last first. By pipeline, or by a part of the name, all
        are looked at. `times`: `created_from_ms` and the like, see `Wanted`."""
        states = (state,) if isinstance(state, str) else tuple(state or ())
        place = None if after is None else Place.of(after)
        wanted = Wanted(
            org, tuple(map(str, states)), stage, collection, pipeline, _parts(name), self.sql.POSITION,
            after=place, limit=limit, **times,
        )  # fmt: skip
        if name is None and pipeline is None:  # an index leads to the documents
            return await self._read(lambda: _page(self.sql, wanted))
        async with self.walks.turn(org):
            return await self._read(lambda: _page(self.sql, wanted))


def _parts(name: str | None) -> tuple[str, ...]:
    """A part of a name as the database looks for it: databases make small letters of A to Z at least, and some of no
    others. Raises: InputInvalid for one that is long: the time of a look grows with it."""
    if name is None:
        return ()
    if len(name) > NAME_PART_MAX:
        raise InputInvalid(f"a part of a name has at most {NAME_PART_MAX} characters, not {len(name)}")
    cases = (name.lower(), name, name.upper())
    return tuple(dict.fromkeys("".join(c.lower() if c.isascii() else c for c in one) for one in cases))


def _page(sql: Any, w: Wanted) -> Steps[list[Status]]:
    orgs = [w.org] if w.org is not None else [row[0] for row in (yield Query(ORGS))]
    if len(orgs) == 1:
        w = replace(w, org=orgs[0])
    size = LOOK if w.narrow else w.limit
    last: Place | None
    if w.org is not None:
        found = [rows.status(row) for row in (yield look(w, size))]
        reached = (yield looked(w, size)) if w.narrow and len(found) < w.limit else []
        last = Place(*reached[0]) if reached else None
    elif w.pipeline is None and not w.name:
        found, last = yield from _look_at_all(sql, w, orgs, size)
    else:
        found, last = [], w.after or Place.first()
    if last is not None and len(found) < w.limit and w.narrow:
        found += yield from _beyond(sql, replace(w, after=last, limit=w.limit - len(found)), orgs)
    return found


def _look_at_all(
    sql: Any, w: Wanted, orgs: Sequence[str], size: int
) -> Steps[tuple[list[Status], Place | None]]:
    """Those that fit of the next documents of all organisations, and the last one that was looked at."""
    plain = Wanted(created_from_ms=w.created_from_ms, created_to_ms=earlier(w), after=w.after, limit=size)
    keys = yield from _merged(sql, plain, orgs)
    statuses = yield from _statuses(sql, keys)
    return [one for one in statuses if w.fits(one)][: w.limit], (
        Place(*keys[-1][:2]) if len(keys) == size else None
    )


def _statuses(sql: Any, keys: Sequence[Key]) -> Steps[list[Status]]:
    if not keys:
        return []
    which = [(org, id_) for _, id_, org in keys]
    statuses = [rows.status(row) for row in (yield Query(sql.STATUSES, rows=which))]
    return sorted(statuses, key=lambda one: (one.created_ms, one.id), reverse=True)


def _beyond(sql: Any, w: Wanted, orgs: Sequence[str]) -> Steps[list[Status]]:
    """Those that fit and come after what was looked at."""
    found: list[Key] = []
    if w.states and set(w.states) <= set(LIVE):
        for source, condition in (one for state in w.states for one in LIVE[state]):
            found += yield live(w, source, condition)
    elif w.states and set(w.states) <= ENDED_BADLY:
        for state in w.states:
            found += yield ended_badly(w, state)
    elif w.org is not None:
        found = yield walk(w)
    else:
        found = yield from _merged(sql, w, orgs)
    return (yield from _statuses(sql, sorted(found, reverse=True)[: w.limit]))


def _merged(sql: Any, w: Wanted, orgs: Sequence[str]) -> Steps[list[Key]]:
    """The newest of all these organisations. Most have none among them: of each a few are read, then more of those
    that may have more."""
    size = max(SIZE_LEAST, 2 * w.limit // max(1, len(orgs)))
    reached = dict.fromkeys(orgs, w.after or Place.first())  # those that may have more
    unread, found = list(reached.items()), list[Key]()
    while unread:
        pages: dict[str, list[Key]] = {org: [] for org, _ in unread}
        for n in range(0, len(unread), SLICE):
            asked = walk_each(replace(w, limit=size), sql.name, unread[n : n + SLICE])
            for key in (yield asked):
                pages[key[2]].append(key)
        for org, page in pages.items():
            found += page
            if len(page) < size:
                del reached[org]
            else:
                reached[org] = Place(*min(page)[:2])
        found = nlargest(w.limit, found)
        last = found[-1][:2] if len(found) == w.limit else (0, "")
        unread = [(org, place) for org, place in reached.items() if place > last]
        size = min(size * SIZE_GROWTH, max(size, w.limit))
    return found
