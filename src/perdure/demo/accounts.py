"""Whether it was as promised: everything that the demo says is checked here.

A page is wanted once. The one that the killed worker had opened and not saved is read once more; everything beyond that
was done twice. What an attempt is charged for is the document's own trouble, never the kill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perdure.demo.play import FINISHED, Kill, Play
from perdure.demo.shelf import Book
from perdure.pipelines.extract import Summary


@dataclass(frozen=True, slots=True)
class Account:
    """Something that was promised, whether it was kept, and the numbers."""

    name: str
    kept: bool
    because: str


async def accounts(play: Play) -> list[Account]:
    """Everything that was promised, with its numbers."""
    return [
        _ended(play),
        _saved_pages(play),
        _pages(play),
        _charged(play),
        _answered(play),
        await _indexed(play),
    ]


def _ended(play: Play) -> Account:
    done, dead = play.count_in("done"), play.count_in("dead")
    wrong = [book.name for book in play.books if not _as_expected(play, book)]
    because = f"{len(play.books)} taken in = {done} done + {dead} dead"
    if wrong:
        because += f"; not as it should be: {', '.join(wrong)}"
    return Account("nothing lost", not wrong, because)


def _as_expected(play: Play, book: Book) -> bool:
    status = play.statuses.get(book.name)
    if status is None or status.state not in FINISHED:
        return False
    if book.dead:
        return status.state == "dead" and (status.error_code or "").startswith(book.dead)
    return status.state == "done"


def read_twice(play: Play) -> set[int]:
    """Pages of the book that were read more than once."""
    return {page for page, times in Counter(read.page for read in play.reads).items() if times > 1}


def _saved_pages(play: Play) -> Account:
    """What was saved before the kill was read by the killed worker, and by nobody after."""
    name = "saved is saved"
    if play.kill is None:
        return Account(name, False, "no worker was killed")
    saved, read = play.kill.saved, {read.page for read in play.reads}
    again = saved & read_twice(play)
    because = f"{len(saved)} pages were saved at the kill, {len(again)} of them read again"
    if not saved <= read:
        because += f", but only {len(saved & read)} of them were seen being read"
    return Account(name, bool(saved) and saved <= read and not again, because)


def _pages(play: Play) -> Account:
    count, wanted, twice = (
        Counter(read.page for read in play.reads),
        play.book.parts,
        sorted(read_twice(play)),
    )
    in_hand = _in_hand(play, play.kill) if play.kill else set()
    because = f"{len(play.reads)} reads = {wanted} pages"
    if twice:
        because += f" + {len(twice)} in hand at the kill (page {', '.join(map(str, twice))})"
    kept = len(twice) <= 1 and in_hand.issuperset(twice) and len(play.reads) == wanted + len(twice)
    if not kept or set(count) != set(range(1, wanted + 1)):
        because = (
            f"{len(play.reads)} reads of {len(count)} pages, there are {wanted}; twice: {twice or 'none'}"
        )
        return Account("nothing twice", False, because)
    return Account("nothing twice", True, because)


def _in_hand(play: Play, kill: Kill) -> set[int]:
    """Pages that the killed worker had opened and not saved."""
    return {read.page for read in play.reads if read.worker == kill.worker.number} - kill.saved


def _charged(play: Play) -> Account:
    """Attempts that a document was charged beyond those that its own trouble cost."""
    wrong = []
    for book in play.books:
        charged = sum(attempt.charged for attempt in play.attempts.get(book.name, ()))
        least = book.attempts - (
            1 if book.busy and _was_in_hand(play, book) else 0
        )  # an answer that nobody heard
        if not least <= charged <= book.attempts:
            wrong.append(f"{book.name} {charged}, not {book.attempts}")
    because = "the kill cost no document an attempt" if not wrong else f"charged: {', '.join(wrong)}"
    return Account("no blame", not wrong, because)


def _answered(play: Play) -> Account:
    """The server's own list against the history of attempts: no request that nobody knows of."""
    wrong, said = [], []
    for book in play.books:
        if not book.online:
            continue
        answers = play.server.answers.get(book.name, [])
        told = sum(attempt.requests.get("fetch", 0) for attempt in play.attempts.get(book.name, ()))
        unheard = 1 if _was_in_hand(play, book) else 0
        if answers[-1:] != [200] or not told <= len(answers) <= told + unheard:
            wrong.append(book.name)
        if book.busy:
            said.append(f"{book.name} answered {', '.join(map(str, answers))}")
    because = "; ".join(said) if not wrong else f"not as history has it: {', '.join(wrong)}"
    return Account("retries", not wrong, because)


def _was_in_hand(play: Play, book: Book) -> bool:
    return play.kill is not None and book.name in play.kill.in_hand


async def _indexed(play: Play) -> Account:
    """Every chunk of what is done is stored and has its vector; what is dead has none."""
    chunks, wrong = 0, []
    for book in play.books:
        found = await play.app.store.completeness(play.org, play.ids[book.name])
        chunks += found.stored
        if (found.stored > 0) == bool(book.dead) or not found.expected == found.stored == found.embedded:
            wrong.append(book.name)
    because = f"{chunks} chunks, each with its vector" if not wrong else f"incomplete: {', '.join(wrong)}"
    return Account("all indexed", not wrong, because)


def whole(books: Iterable[Book], summaries: Mapping[str, Summary]) -> Account:
    """Every part of what is done was read."""
    wrong = [b.name for b in books if b.name in summaries and summaries[b.name].parts != b.parts]
    parts, words = (sum(getattr(one, field) for one in summaries.values()) for field in ("parts", "words"))
    because = f"{parts} pages, chapters and sections, {words:,} words"
    return Account("all read", not wrong, because if not wrong else f"not whole: {', '.join(wrong)}")
