"""How many there are: counted by whoever changes it, in the same transaction, so that nobody has to look at all rows.

    document   organisation, collection, state: open, done, dead, cancelled
    main       queue, lane, state of documents' own jobs that have not ended
    follow     the same of jobs that follow from them
    accepted   documents that were ever taken in: what an audit holds against what is there

Each client has rows of its own, so nobody waits for anybody; a client that leaves adds its rows to those of client 0.
A lane is named only where it could hold a job up, and a running job of another service is `remote`. Whatever changes a
state and does not say so here makes the counters wrong; an audit compares them with what is there (`miscounted`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.core.frozen import frozen
from perdure.core.lane import like, plain
from perdure.core.model import GATHERING_MS, TERMINAL, Job
from perdure.store.base import Query, Row, Steps

if TYPE_CHECKING:
    from perdure.store.dialect import Dialect

T = TypeVar("T")
Key = tuple[str, str, str, str, str]  # subject, organisation, place, lane, state
#: Whose rows those are that no client owns.
NOBODY = 0
NEW_COUNT = {
    "subject": "text", "org": "text", "place": "text", "lane": "text", "state": "text", "n": "bigint",
}  # fmt: skip
ADDED = "ON CONFLICT (client, subject, org, place, lane, state) DO UPDATE SET n = counter.n + excluded.n"
_COLUMNS = ", ".join(list(NEW_COUNT)[:-1])
_SUBJECT = "CASE WHEN key = 'doc-' || document_id THEN 'main' ELSE 'follow' END"
_HOLDABLE = ("queued", "parked")


class Counting:
    """What a transaction changes, written at its end."""

    def __init__(self) -> None:
        self.changes: Counter[Key] = Counter()

    def accepted(self, n: int = 1) -> None:
        self.changes["accepted", "", "", "", ""] += n

    def document(self, org: str, collection: str, was: str | None, state: str | None) -> None:
        """One that went from a state to another; None: it was, or is, not there."""
        if was is not None:
            self.changes["document", org, collection, "", was] -= 1
        if state is not None:
            self.changes["document", org, collection, "", state] += 1

    def job(self, key: str, queue: str, lane: str, state: str, n: int = 1) -> None:
        """One that came into a state or (-1) left it; those that have ended are not counted."""
        if state not in TERMINAL:
            lane = lane if state in _HOLDABLE else ""
            self.changes["follow" if "/" in key else "main", "", queue, lane, state] += n

    def left(self, row: Row) -> None:
        """A job that leaves the state in which COUNT_JOB found it."""
        key, queue, lane, state = row
        self.job(key, queue, lane, state, -1)

    def running(self, job: Job, n: int = 1) -> None:
        """One that runs, or (-1) does not any more."""
        self.job(job.key, job.queue, "", "remote" if job.handed_over else "running", n)

    def ran(self, job: Job) -> None:
        self.running(job, -1)

    def parked(self, jobs: Iterable[Row]) -> None:
        """Queued ones that wait for room again: key, queue and lane of each."""
        for key, queue, lane in jobs:
            self.job(key, queue, lane, "queued", -1)
            self.job(key, queue, lane, "parked")

    def claimed(self, jobs: Iterable[Job]) -> None:
        changes = self.changes  # of every job there is, so without a call for each
        for job in jobs:
            subject, lane = "follow" if "/" in job.key else "main", job.lane
            if job.probe is not None:  # it was lent
                lane = like("", lane)
            changes[subject, "", job.queue, lane, "queued"] -= 1
            changes[subject, "", job.queue, "", "running"] += 1

    def write(self, sql: Dialect, client: int) -> Steps[None]:
        """The last step of its transaction: whoever waits for these rows waits for nothing else."""
        if rows := [(*key, n) for key, n in sorted(self.changes.items()) if n]:
            yield Query(sql.COUNT_ADD, (client,), rows)


def counted(sql: Dialect, steps: Callable[[Counting], Steps[T]]) -> Callable[[], Steps[T]]:
    """A transaction of its own that counts."""

    def run() -> Steps[T]:
        counting = Counting()
        answer = yield from steps(counting)
        yield from counting.write(sql, NOBODY)
        return answer

    return run


def folded(sql: Dialect, client: int) -> Steps[None]:
    """Add a client's rows to those of nobody; the client's own row is locked or gone."""
    yield Query(sql.COUNT_FOLD, (client,))
    yield Query(sql.COUNT_DROP, (client,))


def compared(sql: Dialect) -> Steps[dict[Key, tuple[int, int]]]:
    """What the counters say, and what is there. To be read at one moment."""
    said: dict[Any, int] = {tuple(key): n for *key, n in (yield Query(sql.COUNTED)) if key[0] != "accepted"}
    there: dict[Any, int] = {}
    for recount in (sql.RECOUNT_DOCUMENTS, sql.RECOUNT_JOBS):
        there |= {tuple(key): n for *key, n in (yield Query(recount))}
    return {key: (said.get(key, 0), there.get(key, 0)) for key in sorted({*said, *there})}


def differing(pairs: dict[Key, tuple[int, int]]) -> dict[Key, tuple[int, int]]:
    """Where the counters are wrong."""
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def miscounted(sql: Dialect) -> Steps[dict[Key, tuple[int, int]]]:
    """Where the counters are wrong. To be read at one moment."""
    return differing((yield from compared(sql)))


def recount(sql: Dialect) -> Steps[None]:
    """Count anew what is there, while everybody who counts waits; accepted documents are not there to be counted."""
    yield Query(sql.COUNT_LOCK)
    yield Query("DELETE FROM counter WHERE subject <> 'accepted'")
    for there in (sql.RECOUNT_DOCUMENTS, sql.RECOUNT_JOBS):
        yield Query(sql.COUNT_ADD, (NOBODY,), (yield Query(there)))


class CountingSql:
    """Statements that both databases take as they are."""

    COUNT_ADD: str
    COUNT_LOCK = "SELECT 1"
    #: What a job is counted as.
    COUNT_JOB = (
        "SELECT key, queue, lane, CASE WHEN worker = 0 THEN 'remote' ELSE state END FROM job "
        "WHERE org = $1 AND id = $2"
    )
    COUNT_FOLD = (
        f"INSERT INTO counter (client, {', '.join(NEW_COUNT)}) SELECT {NOBODY}, {', '.join(NEW_COUNT)} FROM counter "
        f"WHERE client = $1 AND client <> {NOBODY} AND n <> 0 ORDER BY {_COLUMNS} {ADDED}"
    )
    COUNT_DROP = f"DELETE FROM counter WHERE client = $1 AND client <> {NOBODY}"
    COUNTED = f"SELECT {_COLUMNS}, CAST(sum(n) AS bigint) FROM counter GROUP BY {_COLUMNS} HAVING sum(n) <> 0"
    #: All of it at one moment, and with it which lanes are down, which queues paused, and when the first waiting job of
    #: each is due: what moves on meanwhile is seen once, and no due time is missed.
    COUNTS = (
        f"{COUNTED} UNION ALL SELECT 'lane', '', name, '', '', down_ms FROM lane "
        "UNION ALL SELECT 'queue', '', name, '', '', CASE WHEN paused THEN 1 ELSE 0 END FROM queue "
        "UNION ALL SELECT 'due', '', q.name, '', '', (SELECT j.run_at_ms FROM job j WHERE j.state = 'waiting' "
        f"AND j.run_at_ms < {GATHERING_MS} AND j.queue = q.name ORDER BY j.run_at_ms LIMIT 1) FROM queue q "
        "WHERE (SELECT sum(c.n) FROM counter c WHERE c.place = q.name AND c.state = 'waiting' "
        "AND c.subject IN ('main', 'follow')) > 0"
    )
    #: The same by looking at every row.
    RECOUNT_DOCUMENTS = (
        "SELECT 'document', org, collection, '', state, count(*) FROM document "
        "GROUP BY org, collection, state"
    )
    RECOUNT_JOBS = (
        f"SELECT {_SUBJECT}, '', queue, CASE WHEN state IN ('queued', 'parked') THEN lane ELSE '' END, "
        "CASE WHEN state = 'running' AND worker = 0 THEN 'remote' ELSE state END, count(*) "
        "FROM job WHERE finished_ms IS NULL GROUP BY 1, 3, 4, 5"
    )


@frozen
class Counts:
    """How many documents and jobs there are, at one moment."""

    #: By organisation and collection: documents in each state (open, done, dead, cancelled).
    documents: dict[tuple[str, str], dict[str, int]]
    #: By queue: jobs in each state; `held` in lanes that are down, `paused` what waits in a queue that is, `parked`
    #: over a limit, `remote` what of the running ones other services work on.
    queues: dict[str, dict[str, int]]
    #: Documents that have not ended: queued, running, waiting, held.
    live: dict[str, int]
    #: Documents that wait in a lane that is down, by lane; lanes that are up are there with 0.
    held: dict[str, int]
    paused: frozenset[str]  # queues
    due_ms: dict[str, int]  # of the first waiting job of each queue that is not paused
    accepted: int  # documents that were ever taken in

    def states(self, org: str | None = None, collection: str | None = None) -> dict[str, int]:
        """Documents in each state (open, done, dead, cancelled), of an organisation or a collection alone."""
        found: Counter[str] = Counter()
        for (owner, name), states in self.documents.items():
            if org in (None, owner) and collection in (None, name):
                found.update(states)
        return dict(found)

    def collections(self, org: str | None = None) -> dict[str, dict[str, int]]:
        """The same for each collection."""
        names = sorted({name for owner, name in self.documents if org in (None, owner)})
        return {name: self.states(org, name) for name in names}


def told(rows: Iterable[Row]) -> Counts:
    """The answer of COUNTS."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for subject, *rest in rows:
        found.setdefault(subject, []).append(tuple(rest))
    down = {name for _, name, _, _, since_ms in found.get("lane", ()) if since_ms is not None}
    paused = frozenset(name for _, name, _, _, is_paused in found.get("queue", ()) if is_paused)
    documents: dict[tuple[str, str], dict[str, int]] = {}
    for org, collection, _, state, n in found.get("document", ()):
        documents.setdefault((org, collection), {})[state] = n
    queues: dict[str, Counter[str]] = {}
    live: Counter[str] = Counter()
    held: Counter[str] = Counter({plain(name): 0 for _, name, *_ in found.get("lane", ())})
    for subject in ("main", "follow"):
        for _, queue, lane, state, n in found.get(subject, ()):
            queues.setdefault(queue, Counter())[_shown(state, lane in down, queue in paused)] += n
            if subject == "main":
                holds = lane in down and state in _HOLDABLE
                live["held" if holds else {"parked": "queued", "remote": "running"}.get(state, state)] += n
                held[plain(lane)] += n if holds else 0
    return Counts(
        documents,
        {queue: dict(states) for queue, states in queues.items()},
        dict(live),
        dict(held),
        paused,
        {q: due for _, q, _, _, due in found.get("due", ()) if due is not None and q not in paused},
        sum(n for *_, n in found.get("accepted", ())),
    )


def _shown(state: str, down: bool, paused: bool) -> str:
    if down and state in _HOLDABLE:
        return "held"
    return "paused" if paused and state in (*_HOLDABLE, "waiting") else state
