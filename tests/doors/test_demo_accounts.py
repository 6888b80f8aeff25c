"""The demo's accounts are honest: whatever is not as promised is found."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from perdure.core.chunk import Completeness
from perdure.demo.accounts import accounts, whole
from perdure.demo.fleet import DemoWorker, Fleet
from perdure.demo.play import Kill, Play
from perdure.demo.server import Server
from perdure.demo.shelf import BOOK, Book
from perdure.demo.turnstile import FILE_VARIABLE, WORKER_VARIABLE, Read, counted, reads
from perdure.pipelines.extract import Summary
from perdure.store.records import Attempt, Status

BOOKS = (
    Book(BOOK, b"", 5, "page"),
    Book("busy.html", b"", online=True, busy=2, attempts=3),
    Book("bomb.pdf", b"", dead="crashed:", attempts=2),
)
DONE = Status(
    "id", "demo", "documents", "document", "", "done", "index", 1, 1, 3, 1, False, False, None, None, 0, 1, None, None
)  # fmt: skip
ATTEMPT = Attempt(
    "id", "key", 1, 1, 1, True, "index", 1, 0, 1, "done", None, None, None, None, None, None, ""
)  # fmt: skip
WORKER = DemoWorker(1, cast(Any, None), Path())


class Store:
    """The store's word on chunks."""

    def __init__(self) -> None:
        self.chunks = {b.name: Completeness(0, 0, 0) if b.dead else Completeness(3, 3, 3) for b in BOOKS}

    async def completeness(self, org: str, id_: str) -> Completeness:
        return self.chunks[id_]


@pytest.fixture
def play() -> Play:
    """Everything as promised: worker 1 was killed while it read page 3, and pages 1 and 2 were saved."""
    server = SimpleNamespace(answers={"busy.html": [503, 503, 200]})
    app = SimpleNamespace(store=Store())
    made = Play(cast(Any, app), cast(Fleet, None), cast(Server, server), "demo", BOOKS, cast(Any, None))
    made.ids = {book.name: book.name for book in BOOKS}
    made.statuses = {book.name: replace(DONE, name=book.name) for book in BOOKS}
    made.statuses["bomb.pdf"] = replace(DONE, name="bomb.pdf", state="dead", error_code="crashed:SIGABRT")
    asked = replace(ATTEMPT, requests={"fetch": 1})
    made.attempts = {
        BOOK: [replace(ATTEMPT, charged=False), ATTEMPT],
        "busy.html": [asked] * 3,
        "bomb.pdf": [ATTEMPT] * 2,
    }
    made.kill = Kill(0.0, WORKER, (BOOK,), frozenset({1, 2}))
    made.reads = [Read(1, BOOK, page) for page in (1, 2, 3)] + [Read(2, BOOK, page) for page in (3, 4, 5)]
    return made


def broken(play: Play) -> set[str]:
    return {account.name for account in asyncio.run(accounts(play)) if not account.kept}


def test_what_was_promised_is_kept(play: Play) -> None:
    assert broken(play) == set()
    said = {account.name: account.because for account in asyncio.run(accounts(play))}
    assert said["nothing twice"] == "6 reads = 5 pages + 1 in hand at the kill (page 3)"


def test_no_page_need_have_been_in_hand(play: Play) -> None:
    del play.reads[2]
    assert broken(play) == set()


@pytest.mark.parametrize(
    ("name", "state", "code"),
    [
        (BOOK, "running", None),
        (BOOK, "dead", "document_corrupt"),
        ("bomb.pdf", "done", None),
        ("bomb.pdf", "dead", "stage_timeout"),
    ],
)
def test_another_end_than_the_expected_one_is_found(
    play: Play, name: str, state: str, code: str | None
) -> None:
    play.statuses[name] = replace(play.statuses[name], state=state, error_code=code)
    assert broken(play) == {"nothing lost"}


def test_a_document_that_nobody_knows_is_lost(play: Play) -> None:
    del play.statuses[BOOK]
    assert broken(play) == {"nothing lost"}


def test_a_saved_page_that_is_read_again_is_found(play: Play) -> None:
    play.reads.append(Read(2, BOOK, 1))
    assert broken(play) == {"saved is saved", "nothing twice"}


@pytest.mark.parametrize("page", [3, 4])
def test_a_page_may_be_read_again_only_if_it_was_in_hand_and_only_once(play: Play, page: int) -> None:
    play.reads.append(Read(2, BOOK, page))
    assert broken(play) == {"nothing twice"}


def test_a_page_that_was_never_read_is_found(play: Play) -> None:
    play.reads.pop()
    assert broken(play) == {"nothing twice"}


def test_without_a_turnstile_nothing_is_proven(play: Play) -> None:
    play.reads = []
    assert broken(play) == {"saved is saved", "nothing twice"}


def test_without_a_kill_nothing_is_proven(play: Play) -> None:
    play.kill = None
    assert "saved is saved" in broken(play)


@pytest.mark.parametrize(("name", "charged"), [(BOOK, 2), ("bomb.pdf", 1), ("busy.html", 2)])
def test_an_attempt_too_many_or_too_few_is_found(play: Play, name: str, charged: int) -> None:
    play.attempts[name] = [replace(play.attempts[name][-1], requests={"fetch": 3})] + [ATTEMPT] * (
        charged - 1
    )
    assert broken(play) == {"no blame"}


def test_an_answer_that_the_killed_worker_did_not_hear_is_no_broken_promise(play: Play) -> None:
    play.kill = Kill(0.0, WORKER, (BOOK, "busy.html"), frozenset({1, 2}))
    play.attempts["busy.html"].pop()
    assert broken(play) == set()


def test_a_request_that_history_does_not_know_is_found(play: Play) -> None:
    play.server.answers["busy.html"].insert(0, 503)
    assert broken(play) == {"retries"}


def test_a_document_that_was_not_read_to_its_end_is_found() -> None:
    read = {BOOK: Summary("", (), 9, "en", 5, 5, 0)}
    assert whole(BOOKS, read).kept
    assert not whole(BOOKS, {BOOK: Summary("", (), 9, "en", 4, 4, 0)}).kept


@pytest.mark.parametrize("chunks", [Completeness(3, 2, 2), Completeness(3, 3, 2), Completeness(0, 0, 0)])
def test_a_missing_chunk_or_vector_is_found(play: Play, chunks: Completeness) -> None:
    store: Store = cast(Any, play.app.store)
    store.chunks[BOOK] = chunks
    assert broken(play) == {"all indexed"}


def test_the_turnstile_counts_before_the_page_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "reads"))
    monkeypatch.setenv(WORKER_VARIABLE, "2")

    def read(reader: object, page: int) -> str:
        if page == 8:
            raise ValueError("torn")
        return f"page {page}"

    turnstile = counted(read, lambda: "d1")
    assert reads(tmp_path / "reads") == []
    assert turnstile(None, 7) == "page 7"
    with pytest.raises(ValueError, match="torn"):
        turnstile(None, 8)
    with (tmp_path / "reads").open("a") as file:
        file.write("2 d1 9")  # still being written
    assert reads(tmp_path / "reads") == [Read(2, "d1", 7), Read(2, "d1", 8)]
