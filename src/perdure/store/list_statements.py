"""The statements of lists of documents: each is made of the conditions that are asked for, and goes by one index."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from perdure.core.frozen import frozen
from perdure.store.base import Query
from perdure.store.dialect import STATUS_COLUMNS, STATUS_FROM
from perdure.store.records import Place, Status

ORDER = "ORDER BY {t}created_ms DESC, {t}id DESC LIMIT"
ENDED_BADLY = frozenset({"dead", "cancelled"})
_READY = "j.state = 'queued' AND j.queue = q.name AND j.lane = l.name AND l.down_ms IS {down}"
_PARKED = (
    "j.limit_key IS NOT NULL AND j.finished_ms IS NULL AND j.state = 'parked' AND j.lane = l.name "
    "AND l.down_ms IS {down}"
)
_LIMITED = "lane l CROSS JOIN job j"
_QUEUED = "lane l CROSS JOIN queue q CROSS JOIN job j"
#: Of each state of live documents: where their jobs are found.
LIVE = {
    "running": (("job j", "j.state = 'running'"),),
    "waiting": (("job j", "j.state = 'waiting'"),),
    "queued": ((_QUEUED, _READY.format(down="NULL")), (_LIMITED, _PARKED.format(down="NULL"))),
    "held": ((_QUEUED, _READY.format(down="NOT NULL")), (_LIMITED, _PARKED.format(down="NOT NULL"))),
}


@frozen
class Wanted:
    """Which documents; times from (included) and to (excluded)."""

    org: str | None = None
    states: tuple[str, ...] = ()
    stage: str | None = None
    collection: str | None = None
    pipeline: str | None = None
    name: tuple[str, ...] = ()  # parts of it in lower case, one of which must be there
    position: str = "instr"  # the function that finds a text in another one
    created_from_ms: int | None = None
    created_to_ms: int | None = None
    finished_from_ms: int | None = None
    finished_to_ms: int | None = None
    after: Place | None = None
    limit: int = 100

    @property
    def narrow(self) -> bool:
        """Whether some of the documents that are looked at may not fit."""
        more = (self.stage, self.pipeline, self.name or None, self.finished_from_ms, self.finished_to_ms)
        alone = self.collection is not None and self.org is None
        return bool(self.states) or alone or any(value is not None for value in more)

    def fits(self, one: Status) -> bool:
        """Whether the document is wanted; by its name and pipeline the database says so."""
        ended_ms = one.finished_ms
        return (
            (not self.states or one.state in self.states)
            and self.stage in (None, one.stage)
            and self.collection in (None, one.collection)
            and (
                self.finished_from_ms is None or (ended_ms is not None and ended_ms >= self.finished_from_ms)
            )
            and (self.finished_to_ms is None or (ended_ms is not None and ended_ms < self.finished_to_ms))
        )


class Conditions:
    """The conditions of a statement and their parameters."""

    def __init__(self) -> None:
        self.conditions: list[str] = []
        self.params: list[Any] = []

    def put(self, value: Any) -> str:
        self.params.append(value)
        return f"${len(self.params)}"

    def where(self, condition: str, *values: Any) -> None:
        """A condition with `{}` for each value; left out where the first one is None."""
        if values and values[0] is None:
            return
        self.conditions.append(condition.format(*(self.put(value) for value in values)))

    def query(self, sql: str, limit: int) -> Query:
        return Query(
            f"{sql.format(' AND '.join(self.conditions) or '1 = 1')} {self.put(limit)}", tuple(self.params)
        )


def look(w: Wanted, size: int) -> Query:
    """Those that fit of the next documents."""
    asked = Conditions()
    _along(asked, w)
    inner = f"SELECT * FROM document d WHERE {' AND '.join(asked.conditions) or '1 = 1'} {ORDER.format(t='d.')} {size}"
    asked.conditions = []
    _states(asked, w.states, "s.live")
    asked.where("s.stage = {}", w.stage)
    _narrower(asked, w, "s.")
    joined = STATUS_FROM.removeprefix("document d ")
    outer = f"SELECT s.* FROM (SELECT {STATUS_COLUMNS} FROM ({inner}) AS d {joined}) AS s WHERE {{}}"
    return asked.query(f"{outer} {ORDER.format(t='s.')}", w.limit)


def looked(w: Wanted, size: int) -> Query:
    """The last document that was looked at."""
    asked = Conditions()
    _along(asked, w)
    where = " AND ".join(asked.conditions) or "1 = 1"
    order = ORDER.format(t="d.")
    return Query(
        f"SELECT d.created_ms, d.id FROM document d WHERE {where} {order} 1 OFFSET {size - 1}",
        tuple(asked.params),
    )


def _along(asked: Conditions, w: Wanted, created: str = "d.created_ms") -> None:
    """What an index on the time of coming in leads along."""
    asked.where("d.org = {}", w.org)
    if w.org is not None:
        asked.where("d.collection = {}", w.collection)
    asked.where(f"{created} >= {{}}", w.created_from_ms)
    asked.where(f"{created} < {{}}", earlier(w))
    if w.after is not None:
        asked.where(f"({created}, d.id) < ({{}}, {{}})", *w.after)


def _narrower(asked: Conditions, w: Wanted, t: str = "d.") -> None:
    """What no index on the time of coming in has."""
    if w.org is None:
        asked.where(f"{t}collection = {{}}", w.collection)
    asked.where(f"{t}pipeline = {{}}", w.pipeline)
    if w.name:
        found = (f"{w.position}(lower({t}name), {asked.put(part)}) > 0" for part in w.name)
        asked.conditions.append(f"({' OR '.join(found)})")
    asked.where(f"{t}finished_ms >= {{}}", w.finished_from_ms)
    asked.where(f"{t}finished_ms < {{}}", w.finished_to_ms)


def _states(asked: Conditions, states: Sequence[str], column: str) -> None:
    if states:
        asked.conditions.append(f"{column} IN ({', '.join(map(asked.put, states))})")


def live(w: Wanted, source: str, condition: str) -> Query:
    """Documents whose main job is found there."""
    asked = Conditions()
    asked.conditions.append(f"{condition} AND j.key = 'doc-' || j.document_id")
    asked.conditions.append("d.org = j.org AND d.id = j.document_id")
    asked.where("j.stage = {}", w.stage)
    _along(asked, w, "+d.created_ms")
    _narrower(asked, w)
    return asked.query(
        f"SELECT d.created_ms, d.id, d.org FROM {source} CROSS JOIN document d WHERE {{}} {ORDER.format(t='d.')}",
        w.limit,
    )


def ended_badly(w: Wanted, state: str) -> Query:
    """Dead or cancelled documents, by the index that has only those."""
    asked = Conditions()
    asked.where("d.error_code IS NOT NULL AND d.state = {}", state)
    asked.where("d.org || '' = {}", w.org)  # no other index
    _along(asked, replace(w, org=None))
    _narrower(asked, replace(w, org=None))
    return asked.query(
        f"SELECT d.created_ms, d.id, d.org FROM document d WHERE {{}} {ORDER.format(t='d.')}", w.limit
    )


def walk_each(w: Wanted, dialect_name: str, places: Sequence[tuple[str, Place]]) -> Query:
    """As `walk`, for each of these organisations from its place on."""
    one = walk(replace(w, org=None, after=None), each=True)
    names, before = ("org", "created_ms", "id"), len(one.params)
    if dialect_name == "sqlite":
        numbers = {name: n for n, name in enumerate(names, before + 1)}
        text = re.sub(r"\{r\}(\w+)", lambda found: f"${numbers[found[1]]}", one.sql)
    else:
        given = ", ".join(f"${before + n}::{kind}[]" for n, kind in enumerate(("text", "bigint", "text"), 1))
        own = one.sql.replace("{r}", "r.")
        text = f"SELECT x.* FROM unnest({given}) AS r({', '.join(names)}) CROSS JOIN LATERAL ({own}) x"
    return Query(text, one.params, [(org, *place) for org, place in places])


def walk(w: Wanted, each: bool = False) -> Query:
    """Documents of an organisation one after the other; those that ended since a time, by the time of their end. With
    `each`, of the organisation and from the place that a row {r} names."""
    asked, ended = Conditions(), w.finished_from_ms is not None
    created = "+d.created_ms" if ended else "d.created_ms"
    _along(asked, w, created)
    if each:
        asked.conditions.append(f"d.org = {{r}}org AND ({created}, d.id) < ({{r}}created_ms, {{r}}id)")
    _narrower(asked, w)
    if w.states:
        _states(asked, w.states, "d.state")
    if not ended:
        return asked.query(
            f"SELECT d.created_ms, d.id, d.org FROM document d WHERE {{}} {ORDER.format(t='d.')}", w.limit
        )
    # on its own, because an index in the order of the list would be walked to its end
    which = "WITH e AS MATERIALIZED (SELECT d.created_ms, d.id, d.org FROM document d WHERE {})"
    return asked.query(f"{which} SELECT * FROM e {ORDER.format(t='')}", w.limit)


def earlier(w: Wanted) -> int | None:
    """Before when it must have come in: nothing ends before that."""
    return min((ms for ms in (w.created_to_ms, w.finished_to_ms) if ms is not None), default=None)
