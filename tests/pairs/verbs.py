"""What is done beside each other: each verb of the store as its callers call it, and what its answer promises.

A verb takes the documents that it is about, all of them in one transaction where the store can do that. Its promise is
looked at in the moment in which it has answered, before the other operation gets on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.core.model import Job
from perdure.core.outcome import Later, Outcome
from perdure.core.token import new_token
from perdure.engine.pipeline import Pipeline
from perdure.operate.audit import Auditing, Progress
from perdure.operate.rerun import Conditions, rerun
from perdure.operate.retention import Retaining
from perdure.service import AsyncPerdure
from perdure.store.operations import (
    Added,
    Beat,
    Cancel,
    Claim,
    EmittedRow,
    NewJob,
    Promote,
    Raise,
    Requeue,
    Save,
    Settle,
)
from perdure.store.sql_store import SqlStore
from perdure.store.webhooks import Ended
from tests.pairs.kit import LANE, LIMIT, SERVED, UNSERVED, Stepped, Subject, handing, taken_back
from tests.store.making import DONE, ORG, QUEUE, dead, document, hold, later, output, retry, save

#: What is wrong with an answer; nothing if it is true.
Wrong = list[str]


@dataclass(frozen=True)
class Call:
    """A verb on its way: the store that it is asked of, and the documents with the jobs that it brings along."""

    world: Stepped
    store: SqlStore
    subjects: Sequence[Subject]
    jobs: dict[str, Job]

    def with_job(self) -> list[tuple[Subject, Job]]:
        return [(s, self.jobs[s.id]) for s in self.subjects if s.id in self.jobs]

    async def row(self, table: str, columns: str, document_id: str, more: str = "") -> tuple[Any, ...] | None:
        name = "id" if table == "document" else "document_id"
        found = await self.world.look(
            f"SELECT {columns} FROM {table} WHERE org = $1 AND {name} = $2 {more} LIMIT 1", ORG, document_id
        )
        return found[0] if found else None

    async def state(self, document_id: str) -> str | None:
        found = await self.row("document", "state", document_id)
        return None if found is None else found[0]

    async def token(self, job: Job) -> int | None:
        found = await self.row("job", "token", job.document_id, f"AND id = {job.id}")
        return None if found is None else found[0]


@dataclass(frozen=True)
class Verb:
    """A verb, the state of a document in which it has the most to do, and whether its answer is true."""

    name: str
    state: str
    call: Callable[[Call], Awaitable[Any]]
    wrong: Callable[[Call, Any], Awaitable[Wrong]]


async def nothing(_: Call, __: Any) -> Wrong:
    return []


# --- the path of a document ----------------------------------------------------------------------


async def add(c: Call) -> list[Added]:
    """The same content again, under a new id."""
    return await c.store.add([replace(document(), dedupe=s.new.dedupe) for s in c.subjects])


async def add_fresh(c: Call) -> list[Added]:
    """New documents, in a lane that nobody knows yet and under a limit."""
    lane = f"lane{new_token() % 10_000}"
    return await c.store.add(
        [document(lane=lane, limit_key="k", limit_each=1), document(lane=lane, limit_key="k", limit_each=1)]
    )


async def added(c: Call, answers: Sequence[Added]) -> Wrong:
    return [
        f"answered {one.answer} with {one.id}, which is not there"
        for one in answers
        if await c.state(one.id) is None
    ]


async def claim(c: Call) -> list[Any]:
    return await c.store.claim(Claim(c.world.worker, (QUEUE,), new_token(), 3, 3))


async def serve(c: Call) -> list[Any]:
    """A claim of a worker that has all pipelines."""
    return await c.store.claim(Claim(c.world.worker, (QUEUE,), new_token(), 3, pipelines=(SERVED, *UNSERVED)))


async def claimed(c: Call, answers: list[Any]) -> Wrong:
    return [
        f"claimed {one.job.key} and has it not" for one in answers if await c.token(one.job) != one.job.token
    ]


def _each(make: Callable[[Subject, Job], Any], verb: str) -> Callable[[Call], Awaitable[dict[str, bool]]]:
    """One operation for each document, all in one flush."""

    async def call(c: Call) -> dict[str, bool]:
        asked = c.with_job()
        answers = await asyncio.gather(*(getattr(c.store, verb)(make(s, job)) for s, job in asked))
        return dict(zip((s.id for s, _ in asked), answers, strict=True))

    return call


def _settle(outcome: Callable[[], Outcome], lane: str = "", **more: Any) -> Callable[[Subject, Job], Settle]:
    return lambda _, job: Settle(job, outcome(), job.stage, lane or job.lane, **more)


def _save(_: Subject, job: Job) -> Save:
    follow = NewJob("connect", QUEUE, "connect", name="connect")
    return save(job, output=output(), rows=(EmittedRow("v", "1", b"1"),), jobs=(follow,))


def _degraded(_: Subject, job: Job) -> Save:
    return save(job, output=output(degraded=True))


async def saved(c: Call, answers: dict[str, bool]) -> Wrong:
    return [
        f"saved {s.id}: {answers[s.id]}, but the job's token says otherwise"
        for s, job in c.with_job()
        if answers[s.id] != (await c.token(job) == job.token)
    ]


async def settled(c: Call, answers: dict[str, bool]) -> Wrong:
    wrong = []
    for s, job in c.with_job():
        if answers[s.id]:
            ended = await c.row("attempt", "1", s.id, f"AND token = {job.token}")
            if ended is None or await c.token(job) == job.token:
                wrong.append(f"settled {s.id}, which is not in its history")
    return wrong


def _renewing(s: Subject, job: Job) -> Save:
    """A parent's stage has other content for its child."""
    child = replace(s.new, content_hash=f"h{new_token()}", inline=b"other", refresh=True, parent_id="p")
    return save(job, documents=(child,))


async def beat(c: Call) -> Any:
    held = tuple((job.id, job.token) for _, job in c.with_job())
    return await c.store.beat(Beat(c.world.worker, held))


async def beaten(c: Call, lost: set[tuple[int, int]]) -> Wrong:
    return [
        f"{s.id} was told to be lost and is not"
        for s, job in c.with_job()
        if (job.id, job.token) in lost and await c.token(job) == job.token
    ]


async def promote(c: Call) -> int:
    return await c.store.promote(Promote())


# --- other services ------------------------------------------------------------------------------


async def hand_over(c: Call) -> dict[str, bool]:
    asked = c.with_job()
    answers = await asyncio.gather(*(c.store.hand_over(handing(job, job.token + 1)) for _, job in asked))
    return dict(zip((s.id for s, _ in asked), answers, strict=True))


async def handed_over(c: Call, answers: dict[str, bool]) -> Wrong:
    return [
        f"handed {s.id} over and it is not"
        for s, job in c.with_job()
        if answers[s.id] and await c.token(job) != job.token + 1
    ]


def _answer(_: Subject, job: Job) -> Settle:
    """As `engine.answering` does where more stages follow."""
    ended = Later(0, "Extracted came", counted=False, word="answered")
    return Settle(job, ended, "chunk", "", save=save(job, ran="extract", output=output()))


async def sent(c: Call) -> None:
    await c.store.outbox_sent(await c.store.outbox(10))


# --- operators -----------------------------------------------------------------------------------


def _main() -> NewJob:
    return NewJob("books", QUEUE, "extract")


async def cancel(c: Call) -> list[str]:
    return await asyncio.gather(*(c.store.cancel(Cancel(ORG, s.id, "op", "why")) for s in c.subjects))


async def cancelled(c: Call, answers: list[str]) -> Wrong:
    wrong = []
    for s, answer in zip(c.subjects, answers, strict=True):
        state = await c.state(s.id)
        if (answer == "cancelled") != (state == "cancelled" and not answer.startswith("refused")):
            wrong.append(f"cancel of {s.id}: {answer}, but it is {state}")
        if answer.startswith("refused") and "no such" not in answer and state == "open":
            wrong.append(f"cancel of {s.id}: {answer}, but it is open")
    return wrong


async def requeue(c: Call) -> list[str]:
    return await asyncio.gather(*(c.store.requeue(Requeue(ORG, s.id, _main(), by="op")) for s in c.subjects))


async def requeued(c: Call, answers: list[str]) -> Wrong:
    wrong = []
    for s, answer in zip(c.subjects, answers, strict=True):
        state = await c.state(s.id)
        if answer == "requeued" and state != "open":
            wrong.append(f"requeued {s.id}, but it is {state}")
        # one that was not there may have been imported since
        if answer.startswith("refused") and "no such" not in answer and state not in ("open", None):
            wrong.append(f"requeue of {s.id}: {answer}, but it is {state}")
    return wrong


async def raise_(c: Call) -> list[str]:
    return await asyncio.gather(*(c.store.raise_(Raise(ORG, s.id, "op")) for s in c.subjects))


async def reprioritise(c: Call) -> list[str]:
    return await asyncio.gather(*(c.store.raise_(Raise(ORG, s.id, "op", priority=5)) for s in c.subjects))


async def raised(c: Call, answers: list[str]) -> Wrong:
    wrong = []
    for s, answer in zip(c.subjects, answers, strict=True):
        found = await c.row("job", "priority, state", s.id, "AND key = 'doc-' || document_id")
        if not answer.startswith("refused") and (found is None or found[0] not in (5, 100)):
            wrong.append(f"{answer} {s.id}, but its job is {found}")
    return wrong


async def purge(c: Call) -> dict[Any, str]:
    return await c.store.purge([(ORG, s.id) for s in c.subjects], ("dead", "done"), act=("op", "why"))


async def purged(c: Call, answers: dict[Any, str]) -> Wrong:
    return [
        f"purge of {id_}: {answer}, but it is {state}"
        for (_, id_), answer in answers.items()
        if (answer == "purged") != ((state := await c.state(id_)) is None) and "no such" not in answer
    ]


async def deliver(c: Call) -> None:
    for s in c.subjects:
        if "delivery" in s.extra:
            await c.store.end_deliveries([Ended(s.extra["delivery"], "sent", status=200)])


async def restore(c: Call) -> list[str]:
    return await c.store.restore([s.archived for s in c.subjects if s.archived], "op")


async def restored(c: Call, answers: list[str]) -> Wrong:
    wrong = []
    for s, answer in zip([s for s in c.subjects if s.archived], answers, strict=True):
        id_ = answer.removeprefix("exists as ") if answer.startswith("exists as ") else s.id
        if await c.state(id_) is None:
            wrong.append(f"import of {s.id}: {answer}, but it is not there")
    return wrong


async def hold_lane(c: Call) -> None:
    await c.store.hold(LANE, "away", "op")


async def release_lane(c: Call) -> None:
    await c.store.release(LANE, "op")


async def lend(c: Call) -> int:
    return await c.store.lend()


async def attend(c: Call) -> None:
    await c.store.attend()


async def failed_probe(c: Call) -> None:
    await c.store.probed(LANE, False)


async def limit(c: Call) -> None:
    await c.store.limit(LIMIT, 3, None, "op")


async def weigh(c: Call) -> None:
    await c.store.weigh(ORG, 2.0, "op")


async def pause(c: Call) -> None:
    await c.store.pause(QUEUE, True, "op")


async def resume(c: Call) -> None:
    await c.store.pause(QUEUE, False, "op")


async def reprioritise_and_claim(c: Call) -> list[str]:
    """Both in one flush."""
    claiming = asyncio.ensure_future(claim(c))
    changed = await reprioritise(c)
    await claiming
    return changed


# --- sweeps and desks ----------------------------------------------------------------------------


class Keeper(Retaining):
    """The verb of an app, with the store alone."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store


async def retain(c: Call) -> int:
    return await Keeper(c.store)._retain_done(c.world.clock.ms + 1)


async def prune(c: Call) -> int:
    return await c.store.prune(0, 1_000)


class Door(AsyncPerdure):
    """The verb of an app, with the store alone."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store

    def _who(self, given: str | None = None) -> str:
        return given or "op"


async def refresh(c: Call) -> list[tuple[str, Added]]:
    """Other content under the keys of the documents."""
    new = [replace(document(), dedupe=s.new.dedupe) for s in c.subjects]
    answers = await Door(c.store)._add(new)
    return [(one.content_hash, answer) for one, answer in zip(new, answers, strict=True)]


async def refreshed(c: Call, answers: list[tuple[str, Added]]) -> Wrong:
    wrong = []
    for content_hash, answer in answers:
        found = await c.row("document", "content_hash", answer.id)
        if found != (content_hash,) and len(answers) == 1:
            wrong.append(f"{answer.answer} {answer.id}, which has the content {found}")
        if found is None and len(answers) == 1:
            wrong.append(f"{answer.answer} {answer.id}, which is not there")
    return wrong


BOOKS = Pipeline("books")


@BOOKS.stage
def extract(doc: str) -> str:
    return doc


async def run_again(c: Call) -> int:
    """All that was made by version 1 of the stage."""
    again = 0

    async def one(found: Any) -> str:
        return await c.store.requeue(Requeue(found.org, found.document_id, _main(), "extract", "op"))

    async for told in rerun(c.store, BOOKS, BOOKS.stages[0], Conditions({"version": 1}), None, None, one):
        again = told.requeued
    return again


class Auditor(Auditing):
    """The verb of an app, with the store alone."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store

    async def _blobs(self, findings: Any) -> AsyncIterator[Progress]:
        for _ in ():
            yield Progress("", 0)


async def audit(c: Call) -> Wrong:
    told = await Auditor(c.store).audit(who="op")
    return [f"the audit says: {check.name} ({check.examples})" for check in told.checks if check.found]


async def told_by_audit(_: Call, wrong: Wrong) -> Wrong:
    return wrong


VERBS = {
    verb.name: verb
    for verb in (
        Verb("add", "done", add, added),
        Verb("add fresh", "queued", add_fresh, added),
        Verb("claim", "queued", claim, claimed),
        Verb("save", "running", _each(_save, "save"), saved),
        Verb("save degraded", "running", _each(_degraded, "save"), saved),
        Verb("done", "running", _each(_settle(lambda: DONE), "settle"), settled),
        Verb("retry", "running", _each(_settle(retry), "settle"), settled),
        Verb("later", "running", _each(_settle(lambda: later(1_000)), "settle"), settled),
        Verb("hold job", "running", _each(_settle(hold, LANE), "settle"), settled),
        Verb("dead", "running", _each(_settle(dead), "settle"), settled),
        Verb("take back", "expired", _each(lambda _, job: taken_back(job), "settle"), settled),
        Verb("beat", "running", beat, beaten),
        Verb("promote", "waiting", promote, nothing),
        Verb("hand over", "running", hand_over, handed_over),
        Verb("answer", "remote", _each(_answer, "settle"), settled),
        Verb("publish", "remote", sent, nothing),
        Verb("cancel", "running", cancel, cancelled),
        Verb("requeue", "dead", requeue, requeued),
        Verb("raise", "queued", raise_, raised),
        Verb("priority", "queued", reprioritise, raised),
        Verb("purge", "dead", purge, purged),
        Verb("import", "exported", restore, restored),
        Verb("hold", "held", hold_lane, nothing),
        Verb("release", "held", release_lane, nothing),
        Verb("release limited", "limited", release_lane, nothing),
        Verb("lend", "ramping", lend, nothing),
        Verb("probe", "probing", lend, nothing),
        Verb("failed probe", "ramping", failed_probe, nothing),
        Verb("recall", "lent", hold_lane, nothing),
        Verb("limit", "limited", limit, nothing),
        Verb("weigh", "queued", weigh, nothing),
        Verb("pause", "queued", pause, nothing),
        Verb("resume", "limited", resume, nothing),
        Verb("priority and claim", "limited", reprioritise_and_claim, raised),
        Verb("deliver", "told", deliver, nothing),
        Verb("serve", "unserved", serve, claimed),
        Verb("attend", "unserved", attend, nothing),
        Verb("retention", "done", retain, nothing),
        Verb("prune", "done", prune, nothing),
        Verb("refresh", "done", refresh, refreshed),
        Verb("rerun", "done", run_again, nothing),
        Verb("audit", "done", audit, told_by_audit),
    )
}
