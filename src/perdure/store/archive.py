"""Documents as they leave the store and come back: read whole, deleted with all that is theirs, written as they were.

What is read here is what `operate.export` writes to a file. The content of a blob is not read: only its name is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perdure.core.events import ChunksDeleted, Events
from perdure.core.frozen import frozen
from perdure.core.model import job_key
from perdure.store import indexing
from perdure.store.base import Query, Row, Steps
from perdure.store.counting import Counting
from perdure.store.dead import Key
from perdure.store.dialect import NEW_ATTEMPT, NEW_DEAD, OLD_DOCUMENT, Dialect
from perdure.store.locking import lock_jobs, there
from perdure.store.reading import Reading

Values = dict[str, Any]

DOCUMENT = tuple(OLD_DOCUMENT)
DEAD = (*(name for name in NEW_DEAD if name not in ("job", "message")), "collection", "exhausted")
JOB = (
    "org", "document_id", "key", "pipeline", "queue", "lane", "stage", "state", "priority", "run_at_ms", "lease_ms",
    "generation", "attempts", "attempts_max", "claims", "crashes", "policy", "limit_key", "created_ms", "finished_ms",
)  # fmt: skip
ATTEMPT = tuple(NEW_ATTEMPT)
ACT = ("target", "at_ms", "who", "verb", "org", "reason")

#: What hangs on a document and goes with it, in this order; chunks and connections are left to `_unindexed`.
OWNED = ("outbox", "saved", "item", "emitted", "attempt", "dead", "job")


@frozen
class Archived:
    """A document with its history, each row by its columns; `dead` only of one that is."""

    document: Values
    job: Values | None
    dead: Values | None
    attempts: list[Values]
    acts: list[Values]

    @property
    def key(self) -> Key:
        return self.document["org"], self.document["id"]


class Archive(Reading):
    """See the module."""

    events: Events
    _write: Callable[[Callable[[], Steps[Any]]], Any]
    _count: Callable[[Callable[[Counting], Steps[Any]]], Any]

    async def archived(self, which: Sequence[Key]) -> list[Archived]:
        """These documents, those that are there, in this order."""

        def steps() -> Steps[list[Archived]]:
            found = yield from _read(self.sql, "document", DOCUMENT, which, "id")
            jobs = yield from _read(self.sql, "job", JOB, which)
            dead = yield from _read(self.sql, "dead", (*DEAD, "job"), which)
            attempts = yield from _read(self.sql, "attempt", ATTEMPT, which)
            acts = yield from _read(self.sql, "act", ACT, which, "target")
            return [
                Archived(
                    found[key][0],
                    next((job for job in jobs[key] if job["key"] == job_key(key[1])), None),
                    next((_document(one) for one in dead[key] if not one["job"]), None),
                    sorted(attempts[key], key=lambda a: (a["generation"], a["started_ms"], a["claim"])),
                    sorted(acts[key], key=lambda a: a["at_ms"]),
                )
                for key in which
                if key in found
            ]

        return await self._read(steps)

    async def purge(
        self, which: Sequence[Key], states: tuple[str, ...] = ("dead",), generations: Mapping[Key, int] | None = None,
        act: tuple[str, str] | None = None,
    ) -> dict[Key, str]:  # fmt: skip
        """Delete documents with everything that is theirs, but not their children: `purged` or `refused: why`.

        Blobs that nobody names any more are collected as garbage later. With `generations` (those that somebody has
        seen and exported), one that has gone on since is refused. `act`: who and why, noted for each in the trail.
        """

        clock = self.clock.now_ms()

        def steps(counting: Counting) -> Steps[tuple[dict[Key, str], int]]:
            chunks = 0
            answers = yield from _purgeable(self.sql, sorted(set(which)), states, generations or {}, counting)
            gone = [key for key, answer in answers.items() if answer == "purged"]
            if gone:
                chunks = yield from _purge(self.sql, gone)
                yield Query(self.sql.TALLY_ADD, ("purged", len(gone)))
            if act is not None:
                yield from _noted(self.sql, clock, act[0], "purge", gone, act[1])
            return answers, chunks

        answers: dict[Key, str]
        answers, chunks = await self._count(steps)
        if chunks:
            self.events.publish(ChunksDeleted(chunks, "purged"))
        return answers

    async def restore(self, archived: Sequence[Archived], by: str, reason: str = "") -> list[str]:
        """Write dead documents as they were, and by whom and why into the trail: `imported`, or `exists` where the id
        is taken, or `exists as ID` where another document is what this one was added as."""

        def steps(counting: Counting) -> Steps[list[str]]:
            answers = yield from _restore(self.sql, archived, counting)
            back = [one.key for one, answer in zip(archived, answers, strict=True) if answer == "imported"]
            yield from _noted(self.sql, self.clock.now_ms(), by, "import", back, reason)
            return answers

        answers: list[str] = await self._count(steps)
        return answers

    async def act(self, who: str, verb: str, org: str | None, target: str, reason: str) -> None:
        """Note what an operator did to many documents at once."""

        def steps() -> Steps[None]:
            now_ms = (yield Query(self.sql.NOW, (self.clock.now_ms(),)))[0][0]
            yield Query(self.sql.ACT_ADD, (now_ms, who, verb, org, target, reason))

        await self._write(steps)


def _noted(
    sql: Dialect, clock_ms: int | None, who: str, verb: str, which: Sequence[Key], reason: str
) -> Steps[None]:
    """An act for each, in the transaction that did it: whoever asks where a document went finds who took it away."""
    now_ms = (yield Query(sql.NOW, (clock_ms,)))[0][0]
    yield Query(sql.ACT_ADD, rows=[(now_ms, who, verb, org, id_, reason) for org, id_ in which])


def _read(
    sql: Dialect, table: str, columns: Sequence[str], which: Sequence[Key], id_: str = "document_id"
) -> Steps[dict[Key, list[Values]]]:
    chosen = sql.WHICH.format(t="t", id=id_)
    found: dict[Key, list[Values]] = defaultdict(list)
    statement = f"SELECT {', '.join(f't.{name}' for name in columns)} FROM {table} t WHERE {chosen}"
    for row in (yield Query(statement, rows=which)):
        values = dict(zip(columns, row, strict=True))
        found[values["org"], values[id_]].append(values)
    return found


# --- out -----------------------------------------------------------------------------------------

#: News of its end that nobody has heard yet is still told.
_ONLY = {"outbox": " AND token IS NOT NULL"}
_OPEN_JOB = "SELECT org, document_id, key FROM job WHERE finished_ms IS NULL AND"
_OPEN_PARENT = (
    "SELECT d.org, d.id, p.id FROM document d JOIN document p ON p.org = d.org AND p.id = d.parent_id "
    "WHERE p.state = 'open' AND"
)


def _purgeable(
    sql: Dialect, which: Sequence[Key], states: tuple[str, ...], seen: Mapping[Key, int], counting: Counting
) -> Steps[dict[Key, str]]:
    """Locks the documents and their jobs: nobody requeues them before they are gone."""
    if not which:
        return {}
    yield from lock_jobs(sql, [(*key, None) for key in which])
    found = {row[:2]: row[2:] for row in (yield Query(sql.DOCUMENT_LOCK_PURGE, rows=which))}
    job_open = f"{_OPEN_JOB} {sql.WHICH.format(t='job', id='document_id')}"
    jobs = {(org, id_): key for org, id_, key in (yield Query(job_open, rows=which))}
    parent_open = f"{_OPEN_PARENT} {sql.WHICH.format(t='d', id='id')}"
    parents = {(org, id_): parent for org, id_, parent in (yield Query(parent_open, rows=which))}
    answers: dict[Key, str] = {}
    for key in which:
        state, generation, _, collection = found.get(key, (None, 0, False, ""))
        if state is None:
            answers[key] = "refused: no such document"
        elif state not in states:
            answers[key] = f"refused: the document is {'in progress' if state == 'open' else state}"
        elif seen.get(key, generation) != generation:
            answers[key] = "refused: the document has been run again since it was read"
        elif key in jobs:
            answers[key] = f"refused: its job {jobs[key]} has not ended"
        elif key in parents:
            answers[key] = f"refused: its parent {parents[key]} is in progress and counts it"
        else:
            answers[key] = "purged"
            counting.document(key[0], collection, state, None)
    return answers


def _purge(sql: Dialect, gone: Sequence[Key]) -> Steps[int]:
    """How many chunks went with them."""
    chunks = yield from _unindexed(sql, gone)
    yield Query(sql.STAGED_DROP, rows=gone)
    for table in OWNED:
        which = sql.WHICH.format(t=table, id="document_id")
        yield Query(f"DELETE FROM {table} WHERE {which}{_ONLY.get(table, '')}", rows=gone)
    yield Query(
        f"DELETE FROM feed WHERE {sql.WHICH.format(t='feed', id='document_id')} AND {sql.FEED_HEARD}",
        rows=gone,
    )
    sent = f"{sql.WHICH.format(t='delivery', id='document_id')} AND state = 'sent'"
    yield Query(f"DELETE FROM delivery WHERE {sent}", rows=gone)
    yield Query(f"DELETE FROM document WHERE {sql.WHICH.format(t='document', id='id')}", rows=gone)
    return chunks


def _unindexed(sql: Dialect, gone: Sequence[Key]) -> Steps[int]:
    """No chunks and no connections; the row in `indexed` stays and tells whoever keeps a copy."""
    indexed = yield Query(sql.INDEXED_LOCK_PURGE, rows=gone)
    yield from indexing.expected(sql)
    for org, id_, _ in sorted(indexed):
        ends = [(org, id_, *key) for key in (yield Query(sql.CONNECTION_KEYS, (org, id_)))]
        ends += yield Query(sql.CONNECTION_KEYS_TO, (org, id_))
        yield from indexing.sliced(sql.CONNECTION_DROP, sorted(ends))
        chunks = [(org, id_, chunk) for chunk, _ in (yield Query(sql.CHUNK_IDS, (org, id_)))]
        yield from indexing.sliced(sql.CHUNK_DROP, sorted(chunks))
        yield Query(sql.INDEXED_SET, (org, id_, "", 0, 0, 0))
    yield from indexing.expected(sql, over=True)
    return sum(chunks for *_, chunks in indexed)


def _document(dead: Values) -> Values:
    """What is kept of a dead document; its follow-up jobs are not archived."""
    return {name: dead[name] for name in DEAD}


# --- in ------------------------------------------------------------------------------------------


def _insert(table: str, columns: Sequence[str]) -> str:
    values = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({values})"


_JOB_ADD = _insert("job", JOB)
_DEAD_ADD = _insert("dead", DEAD)


def _row(columns: Sequence[str], values: Values) -> Row:
    return tuple(values[name] for name in columns)


def _by_dedupe(values: Values) -> tuple[str, str, str]:
    """The order in which documents are written; see `apply.Flush.insert`."""
    return values["org"], values["pipeline"], values["dedupe"] or values["id"]


def _restore(sql: Dialect, archived: Sequence[Archived], counting: Counting) -> Steps[list[str]]:
    ordered = sorted((one.document for one in archived), key=_by_dedupe)
    new = set((yield Query(sql.DOCUMENT_RESTORE, rows=[_row(DOCUMENT, values) for values in ordered])))
    back, others = [], []
    for n, one in enumerate(archived):
        if one.key in new:
            back.append(one)
            new.discard(one.key)  # the same one again exists already
        else:
            others.append(n)
    named = ("org", "id", "pipeline", "dedupe")
    same = [(n, *(archived[m].document[name] for name in named)) for n, m in enumerate(others)]
    answers = ["imported"] * len(archived)
    for n, (known, _) in zip(others, (yield from there(sql, same)), strict=True):
        answers[n] = "exists" if known == archived[n].document["id"] else f"exists as {known}"
    for one in back:
        counting.document(one.key[0], one.document["collection"], None, one.document["state"])
    counting.accepted(len(back))
    yield Query(_JOB_ADD, rows=[_row(JOB, one.job or {}) for one in back])
    yield Query(_DEAD_ADD, rows=[_row(DEAD, one.dead or {}) for one in back])
    yield Query(sql.ATTEMPT_ADD, rows=[_row(ATTEMPT, attempt) for one in back for attempt in one.attempts])
    yield from _acts(sql, back)
    return answers


def _acts(sql: Dialect, back: Sequence[Archived]) -> Steps[None]:
    """What was done to them, as far as it is not known here."""
    known = yield from _read(sql, "act", ACT, [one.key for one in back if one.acts], "target")
    new: list[Row] = []
    for one in back:
        there = {(act["at_ms"], act["who"], act["verb"]) for act in known[one.key]}
        for act in one.acts:
            if (what := (act["at_ms"], act["who"], act["verb"])) not in there:
                there.add(what)
                new.append((*what, *one.key, act["reason"]))
    yield Query(sql.ACT_ADD, rows=new)
