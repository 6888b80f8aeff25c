"""The audit: everything that was accepted is done, in progress, dead, cancelled or purged; and rows belong together.

It looks at every document and every row, a page at a time and beside whoever works, and changes nothing. What it finds
is told with examples and what to do. Workers look at the balance alone each minute (`store.look`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import field

from perdure.core.frozen import frozen
from perdure.operate.desk import Desk
from perdure.store.auditing import NAMING, OWNED, START, Balance
from perdure.store.blobs import CheckedBlobs
from perdure.store.text import reason_kept

EXAMPLES = 5
DAY_MS = 86_400_000
RESTORE = "rows were changed past Perdure: restore them from a backup, or see docs/audit.md"

#: Each check: what it is called and what to do about it. Those of LEFTOVERS are no difference: they only take up room.
ADVICE = {
    "accepted and not there": f"documents are lost; {RESTORE}",
    "there and never accepted": f"documents came in past Perdure; {RESTORE}",
    "in progress without a job": "perdure cancel ID, then perdure requeue ID",
    "ended with a job that goes on": "perdure cancel ID ends the job where it is in progress; see perdure timeline ID",
    "dead and not listed": "perdure cancel does not help; perdure requeue ID starts it again",
    "listed as dead and is not": "perdure requeue ID, once it has ended",
    "running in no worker": "a worker or `perdure sweep --once` takes it back; if it stays, see perdure why ID",
    "rows without their document": f"they do no harm and nobody sees them; {RESTORE}",
    "named blobs that are missing": "restore the directory or bucket of blobs from a backup",
    "counters that are wrong": "perdure audit --recount",
    "blobs that nobody names": "older than a day: they take up room and do no harm",
}
LEFTOVERS = frozenset({"blobs that nobody names"})


@frozen
class Check:
    """What was looked for, how often it was found, and where; `examples` are ids, or say what."""

    name: str
    found: int
    examples: tuple[str, ...]
    advice: str


@frozen
class Audit:
    """What an audit found. `clean`: nothing that anybody has to do something about."""

    balance: Balance
    states: dict[str, int]  # documents that are there, by state
    checks: tuple[Check, ...]
    looked_at: int  # rows
    recounted: bool = False

    @property
    def difference(self) -> int:
        return self.balance.difference

    @property
    def clean(self) -> bool:
        return not any(check.found for check in self.checks if check.name not in LEFTOVERS)


@frozen
class Progress:
    """What is being looked at, and how many rows of it so far."""

    what: str
    rows: int


@frozen
class _Findings:
    found: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ADVICE, 0))
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, example: str, n: int = 1) -> None:
        self.found[name] += n
        examples = self.examples.setdefault(name, [])
        if len(examples) < EXAMPLES:
            examples.append(example)

    def checks(self) -> tuple[Check, ...]:
        return tuple(
            Check(name, n, tuple(self.examples.get(name, ())), ADVICE[name]) for name, n in self.found.items()
        )


class Auditing(Desk):
    """The verb of an app; see `app.Perdure`."""

    blobs: CheckedBlobs

    async def audit(
        self,
        *,
        recount: bool = False,
        progress: Callable[[Progress], None] | None = None,
        who: str | None = None,
        reason: str = "",
    ) -> Audit:
        tell = progress or (lambda _: None)
        findings, looked_at = _Findings(), 0
        if recount:
            tell(Progress("counting anew", 0))
            await self.store.recount(self._who(who), reason_kept(reason))
        for part in (self._documents(findings), self._owned(findings), self._blobs(findings)):
            async for one in part:
                looked_at += one.rows
                tell(one)
        for id_ in await self.store.lost_jobs():
            findings.add("running in no worker", id_)
        tell(Progress("counters", 0))
        reckoned = await self.store.reckoned()
        for key, (said, there) in reckoned.miscounted.items():
            findings.add("counters that are wrong", f"{' '.join(filter(None, key))}: {said}, not {there}")
        if difference := reckoned.balance.difference:
            name = "accepted and not there" if difference > 0 else "there and never accepted"
            findings.add(name, "", abs(difference))
        checks = findings.checks()
        audit = Audit(reckoned.balance, reckoned.states, checks, looked_at, recount)
        await self.store.remember_audit(sum(c.found for c in checks if c.name not in LEFTOVERS))
        return audit

    async def _documents(self, findings: _Findings) -> AsyncIterator[Progress]:
        after = START
        while page := await self.store.audited_documents(after):
            for _, id_, state, goes_on, listed in page:
                if state == "open" and not goes_on:
                    findings.add("in progress without a job", id_)
                if state != "open" and goes_on:
                    findings.add("ended with a job that goes on", id_)
                if (state == "dead") != bool(listed):
                    findings.add(
                        "dead and not listed" if state == "dead" else "listed as dead and is not", id_
                    )
            after = (page[-1][0], page[-1][1])
            yield Progress("documents", len(page))

    async def _owned(self, findings: _Findings) -> AsyncIterator[Progress]:
        for table in OWNED:
            after = START
            while page := await self.store.owned(table, after):
                for _, id_, there in page:
                    if not there:
                        findings.add("rows without their document", f"{table} of {id_}")
                after = (page[-1][0], page[-1][1])
                yield Progress(f"rows of {table}", len(page))

    async def _blobs(self, findings: _Findings) -> AsyncIterator[Progress]:
        for table in NAMING:
            after = ""
            while page := await self.store.blobs_named(table, after):
                for digest in page:
                    if not await self.blobs.exists(digest):
                        findings.add("named blobs that are missing", f"{digest} of {table}")
                after = page[-1]
                yield Progress("blobs", len(page))
        async for digest, _ in self.blobs.list(DAY_MS):
            if not await self.store.blob_named(digest):
                findings.add("blobs that nobody names", digest)
            yield Progress("blobs", 1)
