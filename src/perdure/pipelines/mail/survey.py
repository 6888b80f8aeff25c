"""What is in an archive, told before anything is made of it: its messages, where they lie, and their threads.

All that ever was in it stays known: `gone` and `members` name what later forms of the archive have no more. So whoever
makes documents of it knows of each that there is, whatever was interrupted in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from perdure.core.fingerprint import digest
from perdure.core.frozen import frozen
from perdure.errors import Permanent
from perdure.pipelines.mail.archive import Entry, Mark, open_archive
from perdure.pipelines.mail.message import decode_head
from perdure.pipelines.mail.threads import Letter, Thread, letter_of, threads

T = TypeVar("T")

BATCH = 50  # messages or threads that are saved at a time
BATCH_BYTES = 8 << 20  # of them, unless one alone has more
TOLD_EVERY = 200


@frozen
class Listed:
    """A message and where it lies in the archive."""

    letter: Letter
    offset: int
    length: int


@frozen
class Bad:
    """Something in the archive that is no message, or one that cannot be taken."""

    offset: int
    length: int
    code: str
    problem: str


@frozen
class Survey:
    """An archive as it is now. `number` counts its forms: each time it is added with other content it has a new one.

    `gone`: identities of messages that earlier forms had. `members`: each thread that ever was, and its messages when
    it last had any; those that `threads()` does not give are superseded.
    """

    number: int
    letters: tuple[Listed, ...]
    bad: tuple[Bad, ...]
    duplicates: int
    gone: tuple[str, ...]
    members: dict[str, tuple[str, ...]]
    mark: Mark | None

    def threads(self) -> tuple[Thread, ...]:
        """Its threads now."""
        return threads(one.letter for one in self.letters)

    def superseded(self, now: Iterable[Thread]) -> dict[str, tuple[str, ...]]:
        """Threads that are no more, and those in which their messages are `now`."""
        place = {identity: thread.id for thread in now for identity in thread.messages}
        gone = self.members.keys() - {*place.values()}
        return {
            id_: tuple(dict.fromkeys(place[one] for one in self.members[id_] if one in place))
            for id_ in sorted(gone)
        }


def survey(path: Path, before: Survey | None, told: Callable[[int], None]) -> Survey:
    """List the archive; if it only grew since `before`, no more than its new end. `told` hears how far it is."""
    known = before.mark if before else None
    with open_archive(path, known) as archive:
        letters: dict[str, Listed] = {}
        bad: list[Bad] = []
        duplicates = 0
        for number, entry in enumerate(archive):
            if not number and before is not None and known is not None and archive.resumed:
                letters = {one.letter.identity: one for one in before.letters if one.offset < known.offset}
                bad = [one for one in before.bad if one.offset < known.offset]
                duplicates = _duplicates_before(before, known)
            if number % TOLD_EVERY == 0:
                told(entry.offset)
            if entry.identity in letters:
                duplicates += 1
            elif isinstance(found := _listed(entry), Bad):
                bad.append(found)
            else:
                letters[entry.identity] = found
        duplicates += archive.duplicates
        mark = archive.mark
    once = {*before.gone, *(one.letter.identity for one in before.letters)} if before else set()
    members = dict(before.members) if before else {}
    made = threads(one.letter for one in letters.values())
    members |= {thread.id: thread.messages for thread in made}
    return Survey(
        before.number + 1 if before else 1,
        tuple(letters.values()),
        tuple(bad),
        duplicates,
        tuple(sorted(once - letters.keys())),
        members,
        mark,
    )


def _duplicates_before(before: Survey, mark: Mark) -> int:
    """How many there were before its last message, which may have been one itself."""
    others = {*(one.offset for one in before.letters), *(one.offset for one in before.bad)}
    return before.duplicates - (mark.offset not in others)


def _listed(entry: Entry) -> Listed | Bad:
    if entry.problem:
        return Bad(entry.offset, entry.length, entry.problem, f"the message has {entry.length} bytes")
    try:
        head = decode_head(entry.data)
    except Permanent as problem:
        return Bad(entry.offset, entry.length, str(problem.code), str(problem))
    return Listed(letter_of(entry.identity, head), entry.offset, entry.length)


def shape(thread: Thread) -> str:
    """What of a thread is another if it grows, or if it is told apart otherwise."""
    return digest(thread.subject, repr([(node.id, node.parent, node.messages) for node in thread.nodes]))


def batches(things: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """As many at a time as are worth a transaction; the same things give the same batches."""
    batch: list[T] = []
    total = 0
    for thing in things:
        if batch and (len(batch) == BATCH or total + size(thing) > BATCH_BYTES):
            yield batch
            batch, total = [], 0
        batch.append(thing)
        total += size(thing)
    if batch:
        yield batch
