"""Whether it was as promised: the demo's own ledger against what was wanted.

A stage of a document is wanted once. It may have begun once more for every time that it failed, and once more if it
was in hand, unsaved, when its worker was killed. Everything beyond that was done twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from perdure.demo import library
from perdure.demo.ledger import FAILED
from perdure.demo.play import FINISHED, STAGES, Play
from perdure.demo.shelf import Book

#: How many attempts a document's own trouble costs.
OWN_ATTEMPTS = {"": 1, "busy": 3, "broken": 1, "crash": 2}


@dataclass(frozen=True, slots=True)
class Account:
    """A number, whether it is what was promised, and how it comes about."""

    name: str
    found: int
    kept: bool
    because: str


@dataclass(frozen=True, slots=True)
class Bill:
    """Runs of something that was wanted once: how often it began, failed, and was cut off by the kill."""

    began: int
    failed: int
    in_hand: int

    @property
    def again(self) -> int:
        """Runs that the kill made necessary."""
        return min(max(0, self.began - 1 - self.failed), self.in_hand)

    @property
    def twice(self) -> int:
        """Runs that nothing made necessary."""
        return max(0, self.began - 1 - self.failed - self.in_hand)

    @property
    def missing(self) -> int:
        return max(0, 1 + self.failed - self.began)


async def accounts(play: Play) -> list[Account]:
    """Everything that was promised, with its numbers."""
    stages = list(_stage_bills(play))
    items = list(_item_bills(play))
    twice = sum(bill.twice for bill in (*stages, *items))
    held = len(play.kill.in_hand) if play.kill else 0
    return [
        _lost(play),
        Account("done twice", twice, twice == 0, "nothing that was saved ran again"),
        _paid("stage runs paid for", stages, held, f"{_sound(play)} documents × {len(STAGES)}"),
        _paid("paragraph runs paid for", items, held, "each paragraph once"),
        _charged(play),
        await _index(play),
    ]


def _sound(play: Play) -> int:
    return sum(book.sound for book in play.books)


def _lost(play: Play) -> Account:
    done, dead = play.count_in("done"), play.count_in("dead")
    ended = {name for name, status in play.statuses.items() if status.state in FINISHED}
    lost = sum(book.name not in ended for book in play.books)
    right = done == _sound(play) and dead == len(play.books) - done
    return Account(
        "lost", lost, lost == 0 and right, f"{len(play.books)} taken in = {done} done + {dead} dead"
    )


def _stage_bills(play: Play) -> Iterator[Bill]:
    for book in play.books:
        for stage in STAGES if book.sound else ():
            held = play.kill.in_hand.get(book.name) if play.kill else None
            in_hand = held is not None and stage not in held.saved and _by_victim(play, book, stage)
            yield Bill(len(play.runs(book.name, stage)), _failed(play, book, stage, None), int(in_hand))


def _item_bills(play: Play) -> Iterator[Bill]:
    """Paragraphs are saved in their order: the first one beyond the saved ones is the one in hand."""
    for book in play.books:
        held = play.kill.in_hand.get(book.name) if play.kill else None
        begun = [entry.item for entry in play.runs(book.name, "count", items=True)]
        for part in library.paragraphs(book.data.decode()) if book.sound else ():
            in_hand = held is not None and held.stage == "count" and part.index == held.items
            yield Bill(begun.count(part.index), _failed(play, book, "count", part.index), int(in_hand))


def _by_victim(play: Play, book: Book, stage: str) -> bool:
    return any(play.kill and entry.worker == play.kill.worker for entry in play.runs(book.name, stage))


def _failed(play: Play, book: Book, stage: str, item: int | None) -> int:
    return sum(
        (e.document, e.stage, e.item, e.what) == (book.name, stage, item, FAILED) for e in play.ledger.entries
    )


def _paid(name: str, bills: list[Bill], held: int, wanted: str) -> Account:
    """What began = what was wanted + what failed + what was in hand at the kill, at most one for each document."""
    began, failed, again = (sum(getattr(b, part) for b in bills) for part in ("began", "failed", "again"))
    kept = began == len(bills) + failed + again and again <= held and not any(b.missing for b in bills)
    because = f"{len(bills)} wanted ({wanted})"
    because += f" + {failed} failed" if failed else ""
    because += f" + {again} in hand at the kill"
    return Account(name, began, kept, because)


def _charged(play: Play) -> Account:
    """Attempts that a document was charged beyond those that its own trouble cost."""
    extra = 0
    for book in play.books:
        charged = sum(attempt.charged for attempt in play.attempts.get(book.name, ()))
        extra += abs(charged - OWN_ATTEMPTS[book.trouble])
    return Account("attempts charged to innocents", extra, extra == 0, "the kill cost no document an attempt")


async def _index(play: Play) -> Account:
    """The rows in the store against those that the texts call for."""
    found, right = 0, True
    for book in play.books:
        rows = await play.app.store.rows(play.org, play.ids[book.name], "postings")
        filed = {json.loads(key)["word"]: json.loads(data) for key, data in rows}
        wanted: dict[str, list[int]] = {}
        if book.sound:
            text = book.data.decode()
            wanted = library.postings(library.paragraphs(text), library.word_counts(text))
        found += len(rows)
        right = right and filed == wanted
    return Account("index rows", found, right, "exactly those that the texts call for")
