"""The demo's accounts are honest: whatever is not as promised is found in the ledger."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perdure.demo import library
from perdure.demo.accounts import Account, accounts
from perdure.demo.fleet import Fleet
from perdure.demo.ledger import BEGAN, ENDED, FAILED, Entry, Ledger
from perdure.demo.play import STAGES, InHand, Kill, Play
from perdure.demo.shelf import Book
from perdure.store.records import Attempt, Status

TEXT = b"The tide turns, and the harbour waits.\n\nThe tide turns again.\n\nNobody hurries."
BOOKS = [Book("tide.txt", TEXT), Book("busy.txt", TEXT, "busy"), Book("broken.txt", b"\xff", "broken")]
DONE = Status(
    "id", "demo", "shelf", "library", "", "done", "index", 1, 1, 3, 1, False, False, None, None, 0, 1, None, None
)  # fmt: skip
ATTEMPT = Attempt(
    "id", "key", 1, 1, 1, True, "index", 1, 0, 1, "done", None, None, None, None, None, None, ""
)  # fmt: skip


class Rows:
    """The store's rows, as the stages would have written them."""

    def __init__(self) -> None:
        found = library.postings(library.paragraphs(TEXT.decode()), library.word_counts(TEXT.decode()))
        self.rows_of = {book.name: dict(found) if book.sound else {} for book in BOOKS}

    async def rows(self, org: str, id_: str, name: str) -> list[tuple[str, bytes]]:
        return [(json.dumps({"word": w}), json.dumps(at).encode()) for w, at in self.rows_of[id_].items()]


def runs(
    name: str, stage: str, worker: int = 1, item: int | None = None, end: str | None = ENDED
) -> list[Entry]:
    return [Entry(0, worker, name, stage, item, what) for what in (BEGAN, end) if what]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Everything as promised: worker 1 was killed while counting the second paragraph of tide.txt."""
    ledger = Ledger(tmp_path / "none")
    for book in BOOKS[:2]:
        for stage in STAGES:
            if stage == "summarise" and book.trouble == "busy":
                ledger.entries += runs(book.name, stage, end=FAILED) * 2
            if stage == "count":
                ledger.entries += [e for item in range(3) for e in runs(book.name, stage, item=item)]
            ledger.entries += runs(book.name, stage, 2 if stage in ("summarise", "index") else 1)
    ledger.entries += runs("tide.txt", "count", 2) + runs("tide.txt", "count", 2, item=1)
    ledger.entries += runs("broken.txt", "read", end=FAILED)
    app = cast(Any, SimpleNamespace(store=Rows()))
    made = Play(app, cast(Fleet, None), ledger, "demo", BOOKS, cast(Any, None))
    made.ids = {book.name: book.name for book in BOOKS}
    made.statuses = {b.name: replace(DONE, name=b.name, state="done" if b.sound else "dead") for b in BOOKS}
    made.attempts = {
        "tide.txt": [replace(ATTEMPT, charged=False), ATTEMPT],
        "busy.txt": [ATTEMPT] * 3,
        "broken.txt": [ATTEMPT],
    }
    made.kill = Kill(0, 1, {"tide.txt": InHand(("read", "split"), "count", 1)})
    return made


def judged(play: Play) -> dict[str, Account]:
    return {account.name: account for account in asyncio.run(accounts(play))}


def broken(play: Play) -> set[str]:
    return {name for name, account in judged(play).items() if not account.kept}


def test_what_was_promised_is_kept(play: Play) -> None:
    found = judged(play)
    assert all(account.kept for account in found.values()), found
    assert found["stage runs paid for"].found == 2 * 5 + 2 + 1
    assert found["paragraph runs paid for"].found == 2 * 3 + 1


def test_a_document_without_an_end_is_lost(play: Play) -> None:
    play.statuses["tide.txt"] = replace(DONE, name="tide.txt", state="running")
    assert judged(play)["lost"].found == 1
    assert broken(play) == {"lost"}


def test_a_sound_document_must_not_die(play: Play) -> None:
    play.statuses["tide.txt"] = replace(DONE, name="tide.txt", state="dead")
    assert broken(play) == {"lost"}


@pytest.mark.parametrize(
    ("name", "stage"), [("tide.txt", "read"), ("tide.txt", "index"), ("busy.txt", "count")]
)
def test_a_saved_stage_that_runs_again_is_found(play: Play, name: str, stage: str) -> None:
    play.ledger.entries += runs(name, stage, 2)
    assert judged(play)["done twice"].found == 1
    assert "done twice" in broken(play)


@pytest.mark.parametrize("item", [0, 2])
def test_a_paragraph_that_was_not_in_hand_and_runs_again_is_found(play: Play, item: int) -> None:
    play.ledger.entries += runs("tide.txt", "count", 2, item=item)
    assert judged(play)["done twice"].found == 1


def test_the_stage_in_hand_may_run_again_only_once(play: Play) -> None:
    play.ledger.entries += runs("tide.txt", "count", 2)
    assert judged(play)["done twice"].found == 1


def test_a_stage_that_never_ran_is_found(play: Play) -> None:
    play.ledger.entries = [e for e in play.ledger.entries if (e.document, e.stage) != ("busy.txt", "index")]
    assert broken(play) == {"stage runs paid for"}


def test_an_attempt_charged_for_the_kill_is_found(play: Play) -> None:
    play.attempts["tide.txt"] = [ATTEMPT, ATTEMPT]
    assert judged(play)["attempts charged to innocents"].found == 1
    assert broken(play) == {"attempts charged to innocents"}


def test_a_missing_or_wrong_row_is_found(play: Play) -> None:
    rows: Rows = cast(Any, play.app.store)
    rows.rows_of["tide.txt"].popitem()
    assert broken(play) == {"index rows"}


def test_lines_that_are_still_being_written_are_read_later(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.look() == []
    entry = {"at_ms": 1, "worker": 1, "document": "d", "stage": "s", "item": None, "what": BEGAN}
    line = json.dumps(entry) + "\n"
    ledger.path.write_text(line + line[:10])
    assert ledger.look() == [Entry(**entry)]  # type: ignore[arg-type]
    ledger.path.write_text(line + line)
    assert len(ledger.look()) == 2
