"""What operators do about dead and stuck documents, and all that they look at."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perdure.errors import DocumentUnknown, MoveForbidden
from perdure.operate.requeue import RequeueOptions
from tests.sim.book import Book
from tests.sim.fleet import SimApp
from tests.sim.world import Process

#: What an audit may find while faults last: a worker that is gone, and a clock that went on by a minute.
PASSING = {"running in no worker"}


class Operator:
    """A client's other half."""

    app: SimApp
    eager = False  # it looks for documents with much behind them

    def __init__(self, process: Process, book: Book) -> None:
        self.process, self.book = process, book
        self.world, self.ledger, self.rng = process.world, book.ledger, process.world.rng

    # --- the dead --------------------------------------------------------------------------------

    async def requeue_dead(self) -> None:
        how: RequeueOptions = {"reason": "simulated", "fresh": self.rng.random() < 0.3}
        if dry := self.rng.random() < 0.3:
            how["dry_run"] = True
        elif self.rng.random() < 0.3:
            how |= {"canary": 1, "canary_wait_s": 5.0, "canary_ok": 0.5}
        ids, which = await self._chosen()
        how["limit"] = self.rng.choice((1, 3, None))
        before = self._acts()
        told = await self.app.requeue_dead(ids, how=how, **which)
        self.world.happened(
            "requeue_dead: dry" if dry else "requeue_dead", f"{told.requeued} of {told.found}"
        )
        self._check_dry(dry, before, told.requeued)
        for id_, answer in told.answers:
            if answer == "requeued":
                self.ledger.act_answered("requeue", id_, self.process.name)

    async def purge(self) -> None:
        ids, which = await self._chosen()
        dry, target = self.rng.random() < 0.2, self._file() if self.rng.random() < 0.7 else None
        before = self._acts()
        with self.book.leaving.asked_by(self.process, "dead"):
            told = await self.app.purge(ids, export=target, reason="simulated", dry_run=dry, **which)
        self.world.happened("purge: dry" if dry else "purge", f"{told.purged} of {told.found}")
        self._check_dry(dry, before, told.purged)
        for id_, answer in told.answers:
            if answer == "purged" and id_ not in self.book.leaving.ever:
                self.world.violated("acknowledged", f"{id_} was answered as purged, and never went")

    async def delete(self) -> None:
        if (document_id := self._one(ended=self.rng.random() < 0.8)) is not None:
            with self.book.leaving.asked_by(self.process, "done", "dead", "cancelled"):
                answer = await self._known(self.app.delete(document_id, cancel=self.rng.random() < 0.3))
            self.world.happened(f"delete answered {answer.partition(':')[0]}", document_id)
            if answer == "purged" and document_id not in self.book.leaving.ever:
                self.world.violated("acknowledged", f"{document_id} was answered as deleted, and never went")

    async def retain(self) -> None:
        """Delete what ended long ago."""
        with self.book.leaving.retained_by(self.process, self.app.keeping):
            told = await self.app.retain()
        self.world.happened("retained", f"{told.dead} dead, {told.done} done")

    async def export(self) -> None:
        ids, which = await self._chosen()
        await self.app.export(self._file(), ids, **which)

    async def import_(self) -> None:
        """A file that has documents as they went, or some that are there."""
        if files := [path for path in sorted(self.world.room.glob("*.jsonl")) if self._fits(path)]:
            told = await self.app.import_(files[-1] if self.rng.random() < 0.5 else self.rng.choice(files))
            for one in told.answers:
                self.world.happened(f"import answered {one.answer.partition(' ')[0]}", one.id)
                if one.answer == "imported" and one.id not in self.book.leaving.ever:
                    self.world.violated("acknowledged", f"{one.id} was imported, and had never gone")
                if one.answer.startswith("refused"):
                    self.world.violated("acknowledged", f"the import of {one.id} was {one.answer}")

    async def _chosen(self) -> tuple[list[str], Any]:
        """Some by name, one that is not dead among them; a group; or what died of something or long ago."""
        kind = self.rng.choice(("ids", "ids", "ids", "group", "org"))
        if kind == "ids":
            dead, other = self._dead(), sorted(self.ledger.acknowledged)
            found = [id_ for id_ in dead if self.book.shelf.chunks[id_]][:1]
            some = [
                *found,
                *self.rng.sample(dead, min(len(dead), 2)),
                *self.rng.sample(other, min(len(other), 1)),
            ]
            return some or ["nothing"], {}
        if kind == "group" and (groups := await self.app.groups(limit=5)):
            return [], {"group": self.rng.choice(groups).fingerprint}
        return [], {"org": self.rng.choice(("a", "b", "c")), "older_than": self.rng.choice((0, 5))}

    def _dead(self) -> list[str]:
        return sorted(id_ for id_, document in self.book.documents.items() if document.state == "dead")

    def _file(self) -> Path:
        return self.world.room / f"{self.process.name}-{self.world.seen['file']}-{self._acts()}.jsonl"

    def _fits(self, path: Path) -> bool:
        gone = self.book.leaving.gone
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return all(
            line["id"] not in gone or gone[line["id"]].generation == line["document"]["generation"]
            for line in lines
        )

    def _acts(self) -> int:
        return sum(n for (_, _, who), n in self.book.acts.items() if who == self.process.name)

    def _check_dry(self, dry: bool, before: int, done: int) -> None:
        if dry and (done or self._acts() != before):
            self.world.violated("history", f"a dry run of {self.process.name} changed something")

    # --- those that wait -------------------------------------------------------------------------

    async def priority(self) -> None:
        if (document_id := self._one()) is not None:
            answer = await self.app.priority(document_id, self.rng.choice((-5, 0, 5)), reason="simulated")
            self._answered("priority", document_id, answer)

    async def put_off(self) -> None:
        """A requeue that waits; the act says for how long, so that the job's own word is not needed."""
        if (document_id := self._one(ended=True)) is not None:
            at_ms = self.world.now_ms() + self.rng.choice((2_000, 8_000))
            at = datetime.fromtimestamp(at_ms / 1000, UTC)
            answer = await self._known(self.app.requeue(document_id, at=at, reason=f"not before {at_ms}"))
            self._answered("requeue", document_id, answer)

    async def sweep(self) -> None:
        with self.book.leaving.retained_by(self.process, self.app.keeping):
            swept = await self.app.sweep()
        self.world.happened("busy sweep" if swept.busy else f"sweep {swept.status}", swept)

    # --- looking ---------------------------------------------------------------------------------

    async def see(self) -> None:
        """Everything that can be asked; nothing of it fails while its document is there."""
        document_id = self._one()
        if document_id is not None:
            await self._see_one(document_id)
        overview = await self.app.overview()
        assert overview, "an overview says something"
        for page in (await self.app.groups(limit=3), (await self.app.dead(limit=3)).documents):
            assert len(page) <= 3
        assert len(await self.app.acts(limit=5)) <= 5
        assert 1 <= (await self.app.escalation()).tier <= 4
        await self.app.summary({})
        assert (await self.app.readiness()).schema_fits or self.process.outdated
        await self.app.limits()

    async def audit(self) -> None:
        found = await self.app.audit()
        wrong = [check for check in found.checks if check.found and check.name not in PASSING]
        if wrong:
            self.world.violated("counters", f"an audit found {wrong}")

    async def _see_one(self, document_id: str) -> None:
        since = self.book.transactions
        why = await self._known(self.app.why(document_id))
        status = await self._known(self.app.status(document_id))
        if not why.sentence or (self.book.transactions == since and why.state != status.state):
            self.world.violated("history", f"{document_id} is {status.state}, and why says {why}")
        await self._known(self.app.standing(document_id, status.org))
        happened = await self._known(self.app.timeline(document_id))
        assert happened, "at least it was added"
        try:
            await self.app.inspect(document_id)
        except MoveForbidden:
            if self.book.transactions == since and status.state == "dead":
                self.world.violated("history", f"{document_id} is dead and cannot be inspected")

    # --- documents -------------------------------------------------------------------------------

    def _one(self, ended: bool = False) -> str | None:
        """A document that was acknowledged; nobody knows of others. If it has ended, a map is likelier."""
        known = sorted(self.ledger.acknowledged.keys() & self.book.documents.keys())
        if ended:
            known = [id_ for id_ in known if self.book.documents[id_].state != "open"]
            maps = [id_ for id_ in known if self.book.documents[id_].pipeline == "maps"]
            known = maps if maps and self.rng.random() < 0.6 else known
            if self.eager:
                known.sort(key=lambda id_: len(self.book.touched.features[id_]))
                known = known[-2:]
        return self.rng.choice(known) if known else None

    def _answered(self, verb: str, document_id: str, answer: str) -> None:
        refused = answer.startswith("refused")
        self.world.happened(f"{verb} refused" if refused else f"{verb} answered", f"{document_id}: {answer}")
        if not refused:
            self.ledger.act_answered(verb, document_id, self.process.name)

    async def _known(self, asking: Any) -> Any:
        try:
            return await asking
        except DocumentUnknown as error:
            if self.book.leaving.ever.isdisjoint(re.findall(r"[\w-]+", str(error))):
                self.world.violated("acknowledged", str(error))
            raise
