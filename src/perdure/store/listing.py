"""Documents by page, newest first: what they are is looked at where they stand, and no page costs more for being rare.

First the next few thousand documents are looked at, which answers nearly every question. Where too few of them fit, the
index that has those of the wanted state (or collection) in it finds the rest: dead ones, ended attempts, live jobs.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from heapq import nlargest
from typing import Any

from perdure.core.frozen import frozen
from perdure.store import rows
from perdure.store.base import Query, Row, Steps
from perdure.store.dialect import STATUS_COLUMNS, STATUS_FROM
from perdure.store.reading import Reading
from perdure.store.records import Status

LOOK = 2_000
_FITS = (
    "(CAST($2 AS text) IS NULL OR s.live = $2) AND (CAST($4 AS text) IS NULL OR s.stage = $4) "
    "AND (CAST($6 AS text) IS NULL OR s.collection = $6)"
)
#: $1 organisation, $2 state, $3 the id after which, $4 stage, $5 limit, $6 collection
_LOOK = (
    f"SELECT s.* FROM (SELECT {STATUS_COLUMNS} FROM (SELECT * FROM document WHERE {{where}} "
    f"LIMIT {LOOK}) AS d {STATUS_FROM.removeprefix('document d ')}) AS s "
    f"WHERE {_FITS} AND (CAST($1 AS text) IS NULL OR s.org = $1) ORDER BY s.id DESC LIMIT $5"
)
#: The last document that was looked at.
_LOOKED = f"SELECT id FROM document WHERE {{where}} LIMIT 1 OFFSET {LOOK - 1}"
#: Of an organisation as a range of the key: where it has few documents, the index by id alone would be walked for long.
_ALL = "id < $3 ORDER BY id DESC"
_OWN = "(org, id) < ($1, $3) AND org >= $1 ORDER BY org DESC, id DESC"
LOOK_ALL, LOOK_ORG = _LOOK.format(where=_ALL), _LOOK.format(where=_OWN)
LOOKED_ALL = _LOOKED.format(where="CAST($1 AS text) IS NULL AND " + _ALL.replace("$3", "$2"))
LOOKED_ORG = _LOOKED.format(where=_OWN.replace("$3", "$2"))
#: Comes after every id.
END = "\U0010ffff"

# of an organisation: $1, those after the id $2, $3 at most; id, state and collection of each
_DONE = (
    "SELECT a.document_id, d.state, d.collection FROM (SELECT document_id FROM attempt WHERE org = $1 "
    "AND document_id < $2 AND outcome = 'done' AND job_key = 'doc-' || document_id ORDER BY document_id DESC LIMIT $3) "
    "AS a LEFT JOIN document d ON d.org = $1 AND d.id = a.document_id ORDER BY a.document_id DESC"
)
_ANY = (
    "SELECT id, state, collection FROM document WHERE (org, id) < ($1, $2) AND org >= $1 "
    "ORDER BY org DESC, id DESC LIMIT $3"
)
_COLLECTION = (
    "SELECT id, state, collection FROM document WHERE org = $1 AND collection = $4 AND id < $2 "
    "ORDER BY id DESC LIMIT $3"
)
#: Those that ended badly, of all organisations: $1 organisation, $2 the id after which, $3 limit, $4 collection
_ENDED_BADLY = {
    "dead": (
        "SELECT org, document_id FROM dead WHERE (CAST($1 AS text) IS NULL OR org = $1) AND document_id < $2 "
        "AND (CAST($4 AS text) IS NULL OR collection = $4) ORDER BY document_id DESC LIMIT $3"
    ),
    "cancelled": (
        "SELECT d.org, d.id FROM document d WHERE d.error_code IS NOT NULL AND d.state = 'cancelled' AND d.id < $2 "
        "AND (CAST($1 AS text) IS NULL OR d.org = $1) AND (CAST($4 AS text) IS NULL OR d.collection = $4) "
        "ORDER BY d.id DESC LIMIT $3"
    ),
}
ORGS = (
    "SELECT DISTINCT org FROM counter WHERE subject = 'document' AND (CAST($1 AS text) IS NULL OR org = $1) "
    "AND (CAST($2 AS text) IS NULL OR place = $2)"
)
#: Live ones of all organisations: $1 organisation, $2 the id after which, $3 limit, $4 collection, $5 stage
_LIVE = (
    "SELECT j.org, j.document_id FROM {source} WHERE {state} "
    "AND j.key = 'doc-' || j.document_id AND j.document_id < $2 AND (CAST($1 AS text) IS NULL OR j.org = $1) "
    "AND (CAST($5 AS text) IS NULL OR j.stage = $5) AND (CAST($4 AS text) IS NULL OR EXISTS (SELECT 1 FROM document d "
    "WHERE d.org = j.org AND d.id = j.document_id AND d.collection = $4)) ORDER BY j.document_id DESC LIMIT $3"
)
_QUEUED = "lane l CROSS JOIN queue q CROSS JOIN job j"
_READY = "j.state = 'queued' AND j.queue = q.name AND j.lane = l.name AND l.down_ms IS {down}"
_PARKED = (
    "j.limit_key IS NOT NULL AND j.finished_ms IS NULL AND j.state = 'parked' AND j.lane = l.name "
    "AND l.down_ms IS {down}"
)


def _queued(down: str) -> tuple[str, str]:
    return (
        _LIVE.format(source=_QUEUED, state=_READY.format(down=down)),
        _LIVE.format(source="lane l CROSS JOIN job j", state=_PARKED.format(down=down)),
    )


LIVE = {
    "running": (_LIVE.format(source="job j", state="j.state = 'running'"),),
    "waiting": (_LIVE.format(source="job j", state="j.state = 'waiting'"),),
    "queued": _queued("NULL"),
    "held": _queued("NOT NULL"),
}


@frozen
class Wanted:
    """Which documents."""

    org: str | None
    state: str | None
    after: str
    stage: str | None
    collection: str | None
    limit: int


class Listing(Reading):
    """See the module."""

    async def documents(
        self, org: str | None = None, state: str | None = None, after: str | None = None, limit: int = 100,
        stage: str | None = None, collection: str | None = None, pipeline: str | None = None, name: str | None = None,
    ) -> list[Status]:  # fmt: skip
        """The next documents after this id, newest first. By pipeline, or by a part of the name, all are looked at."""
        if pipeline is not None or name is not None:
            like = None if name is None else "%" + re.sub(r"([!%_])", r"!\1", name.lower()) + "%"
            asked = (org, state, after, stage, limit, collection, pipeline, like)
            return [rows.status(row) for row in await self._rows(self.sql.DOCUMENTS_ANY, *asked)]
        wanted = Wanted(org, state and str(state), END if after is None else after, stage, collection, limit)
        return await self._read(lambda: _page(self.sql, wanted))


def _page(sql: Any, w: Wanted) -> Steps[list[Status]]:
    asked = (w.org, w.state, w.after, w.stage, w.limit, w.collection)
    found = yield Query(LOOK_ALL if w.org is None else LOOK_ORG, asked)
    if len(found) < w.limit:
        looked = yield Query(LOOKED_ALL if w.org is None else LOOKED_ORG, (w.org, w.after))
        if looked and (w.state or w.collection or w.limit > LOOK):
            found += yield from _beyond(sql, w, looked[0][0], w.limit - len(found))
    return [rows.status(row) for row in found]


def _beyond(sql: Any, w: Wanted, after: str, limit: int) -> Steps[list[Row]]:
    """Those that fit and are older than what was looked at."""
    which: list[tuple[str, str]] = []
    if w.state in LIVE:
        for statement in LIVE[w.state]:
            found = yield Query(statement, (w.org, after, limit, w.collection, w.stage))
            which += [(id_, org) for org, id_ in found]
    elif w.state in _ENDED_BADLY:
        found = yield Query(_ENDED_BADLY[w.state], (w.org, after, limit, w.collection))
        which = [(id_, org) for org, id_ in found]
    else:
        orgs = [row[0] for row in (yield Query(ORGS, (w.org, w.collection)))]
        which = yield from _merged(w, orgs, after, limit)
    newest = nlargest(limit, which)
    statuses: Sequence[Row] = []
    if newest:
        statuses = yield Query(sql.STATUSES, rows=[(org, id_) for id_, org in newest])
    return sorted(statuses, key=lambda row: str(row[0]), reverse=True)


def _merged(w: Wanted, orgs: Sequence[str], after: str, limit: int) -> Steps[list[tuple[str, str]]]:
    """The newest of all these organisations; of each only as many are read as are needed."""
    size = max(20, 2 * limit // max(1, len(orgs)))
    statement = _DONE if w.state == "done" else _COLLECTION if w.collection else _ANY
    more = (w.collection,) if statement is _COLLECTION else ()
    last = dict.fromkeys(orgs, after)  # of those that have more: how far they were read
    streams: dict[str, deque[str]] = {org: deque() for org in orgs}
    found: list[tuple[str, str]] = []
    while len(found) < limit:
        for org in [org for org in last if not streams[org]]:
            page = yield Query(statement, (org, last[org], size, *more))
            streams[org].extend(dict.fromkeys(row[0] for row in page if _fits(w, *row[1:])))
            last[org] = page[-1][0] if page else ""
            if len(page) < size:
                del last[org]
        heads = [(stream[0], org) for org, stream in streams.items() if stream]
        if not heads and not last:
            break
        if all(streams[org] for org in last):
            found.append(max(heads))
            streams[found[-1][1]].popleft()
    return found


def _fits(w: Wanted, state: str | None, collection: str | None) -> bool:
    return w.state in (None, state) and w.collection in (None, collection)
