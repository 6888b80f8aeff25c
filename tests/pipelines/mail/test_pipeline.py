"""The mail pipeline from end to end: an archive, its messages, its threads, and an account that agrees."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import Any

import pytest

from perdure import Permanent, Transient
from perdure.core.gathered import Gathered
from perdure.pipelines.mail import pipeline
from perdure.pipelines.mail import survey as surveying
from perdure.pipelines.mail.archive import open_archive, read_entry
from perdure.pipelines.mail.message_pipeline import messages, read
from perdure.pipelines.mail.pipeline import a_document_for_each, close, mails, split, thread
from perdure.pipelines.mail.survey import BATCH
from perdure.pipelines.mail.thread_pipeline import summarise, threads
from perdure.store.records import Status
from perdure.testing import Runs, Trial, drain, failing, tick, trial
from tests.pipelines.extract.hostile import good_pdf, nested_mail
from tests.pipelines.image.making import corners
from tests.pipelines.image.making import stored as picture_of
from tests.pipelines.mail.boxes import letter, mbox
from tests.pipelines.mail.corpus import corpus

KEY = "mbox:/var/mail/list.mbox"


@pytest.fixture(autouse=True)
def nearby(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_EMBEDDER", "hashing")


def add(app: Trial, content: bytes) -> str:
    return app.add(data=content, key=KEY, name="list.mbox", collection="archives", pipeline=mails).id


def process(app: Trial, content: bytes) -> tuple[str, dict[str, Any]]:
    """Add it, run everything; its id and its account."""
    id_ = add(app, content)
    drain(app, max_rounds=10_000)
    assert app.status(id_).state == "done", app.status(id_)
    ((_, account),) = app.rows(id_, "archive")
    return id_, dict(account)


def children(app: Trial, name: str) -> list[Status]:
    return [one for one in app.documents(limit=10_000) if one.pipeline == name]


def summaries(app: Trial) -> dict[str, dict[str, Any]]:
    """What is said of each thread, by its id, whether it still is one or not."""
    rows = [dict(data) for one in children(app, "mail-thread") for _, data in app.rows(one.id, "summary")]
    return {row["thread"]: row for row in rows}


@contextmanager
def counting() -> Iterator[dict[str, Runs]]:
    """How often messages are read and threads summarised."""
    with ExitStack() as stack:
        yield {stage.name: stack.enter_context(failing(stage)) for stage in (read, summarise)}


def test_an_archive_becomes_messages_threads_and_summaries(store_url: str) -> None:
    made = corpus(160)
    with trial(mails, store=store_url, concurrency=20) as app:
        _, account = process(app, made.mbox)
        assert made.duplicates == 1
        assert account == {
            "messages": 160, "duplicates": 1, "bad": 0, "gone": 0, "message_documents": 160, "messages_dead": 0,
            "threads": len(made.threads), "superseded": 0,
            "thread_documents": len(made.threads), "threads_dead": 0, "threads_degraded": 0,
            "summaries": len(made.threads),
        }  # fmt: skip
        assert {one.collection for one in children(app, "mail-message")} == {"messages"}
        assert {one.collection for one in children(app, "mail-thread")} == {"threads"}
        counts = Counter(row["messages"] for row in summaries(app).values())
        assert counts == Counter(len(one) for one in made.threads)
        marked = made.letters[42]
        (hit,) = app.search(marked.marker, collection="messages", limit=1)
        ((_, record),) = app.rows(hit.document_id, "message")
        assert (record["message_id"], record["subject"]) == (marked.message_id, marked.subject)
        assert app.output(hit.document_id, "read").text.count(marked.marker) == 1


def test_each_level_has_its_attempts_and_waits() -> None:
    waits = [(p.name, p.attempts, p.backoff_s, p.backoff_cap_s) for p in (mails, messages, threads)]
    assert waits == [
        ("mail", 3, 300, 3600), ("mail-message", 3, 300, 3600), ("mail-thread", 5, 300, 3600),
    ]  # fmt: skip
    assert [(s.name, s.attempts) for s in messages.stages] == [
        ("read", None), ("chunk", None), ("embed", 5), ("index", 5),
    ]  # fmt: skip


def test_the_environment_changes_attempts_and_waits() -> None:
    code = (
        "from perdure.pipelines.mail.pipeline import mails, messages, threads\n"
        "print([(p.attempts, p.backoff_s, p.backoff_cap_s) for p in (mails, messages, threads)])\n"
        "print([stage.attempts for stage in threads.stages if stage.attempts])"
    )
    changed = {"BASE_DELAY_SECONDS": "7", "MAX_DELAY_SECONDS": "70", "MAX_ATTEMPTS_ARCHIVES": "4"}
    changed |= {"MAX_ATTEMPTS_MESSAGES": "2", "MAX_ATTEMPTS_THREADS": "6", "MAX_ATTEMPTS_CHUNKS": "8"}
    environment = {**os.environ, **{f"RETRY_JOB_{name}": value for name, value in changed.items()}}
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == ["[(4, 7.0, 70.0), (2, 7.0, 70.0), (6, 7.0, 70.0)]", "[8, 8]"]


def test_what_is_no_message_and_what_cannot_be_decoded_fail_nobody_else(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveying, "open_archive", functools.partial(open_archive, bytes_max=1_000_000))
    large = letter("large", "x" * 1_100_000)
    bomb = letter("bomb").partition(b"Content-Type")[0] + nested_mail(60)
    box = mbox(letter("ada"), large, b"\nno header at all", bomb, letter("bob"))
    with trial(mails, store=store_url) as app:
        id_, account = process(app, box)
        assert (account["messages"], account["bad"], account["messages_dead"]) == (3, 2, 1)
        assert (account["threads"], account["summaries"], account["threads_dead"]) == (3, 3, 0)
        codes = [data["code"] for _, data in app.rows(id_, "bad_messages")]
        assert sorted(codes) == ["document_bomb", "document_corrupt"]
        (dead,) = [one for one in children(app, "mail-message") if one.state == "dead"]
        assert (dead.error_code, dead.attempts_made) == ("document_bomb", 1)
        assert sorted(row["unread"] for row in summaries(app).values()) == [0, 0, 1]


def test_a_message_that_keeps_failing_is_dead_after_three_attempts_and_its_archive_done(
    store_url: str,
) -> None:
    with trial(mails, store=store_url) as app, failing(read, *[Transient("not now")] * 3):
        began_ms = app.clock.now_ms()
        _, account = process(app, mbox(letter("ada")))
        assert (account["messages"], account["messages_dead"], account["summaries"]) == (1, 1, 1)
        (dead,) = children(app, "mail-message")
        assert (dead.state, dead.attempts_made) == ("dead", 3)
        assert app.clock.now_ms() - began_ms >= 900_000  # five minutes, then ten


def test_attachments_become_documents_and_images(store_url: str) -> None:
    picture = picture_of(corners(64, 40), "JPEG", quality=90)
    files = [
        ("plan.pdf", "application/pdf", good_pdf(b"The zeppelin leaves at dawn")),
        ("fields.jpg", "application/octet-stream", picture),
        ("noise.bin", "application/octet-stream", bytes(range(256)) * 40),
        ("empty.txt", "text/plain", b""),
    ]
    with trial(mails, store=store_url) as app:
        process(app, mbox(letter("ada", files=files)))
        (message,) = children(app, "mail-message")
        ((_, record),) = app.rows(message.id, "message")
        assert [(one["name"], one["pipeline"]) for one in record["attachments"]] == [
            ("plan.pdf", "document"), ("fields.jpg", "image"), ("noise.bin", None), ("empty.txt", None),
        ]  # fmt: skip
        (document,), (image,) = children(app, "document"), children(app, "image")
        assert (document.name, document.state) == ("plan.pdf", "done")
        assert (image.name, image.state) == ("fields.jpg", "done")
        assert app.search("zeppelin")[0].document_id == document.id


@pytest.mark.parametrize(
    "harm",
    [
        b"Subject: a\x00b \xff\xfe =?utf-16?b?2AA=?= =?utf-8?q?=00=ED=A0=80?=\n",
        b"Subject: " + b"x" * 200_000 + b"\n",
        b"Subject: \n",
        b"Message-ID: <\x00\xff@\x01>\nReferences: <" + b"r" * 5_000 + b"> <\x00> <ok@x.example>\n",
        b"From: \x00 <\x00@x>, " + b"<a@b>, " * 5_000 + b"\n",
        b"Date: Fri, 31 Feb 99999 99:99:99 +9999\n",
    ],
)
def test_hostile_headers_are_stored(store_url: str, harm: bytes) -> None:
    """Whatever stands in a header, the archive, the message and the thread can be written."""
    _, _, rest = letter("ada").partition(b"\n")
    with trial(mails, store=store_url) as app:
        _, account = process(app, mbox(b"X-First: 1\n" + harm + rest, letter("bob")))
        assert (account["messages"], account["bad"], account["messages_dead"]) == (2, 0, 0)
        assert (account["summaries"], account["threads_dead"]) == (2, 0)


@pytest.mark.full
def test_of_a_very_long_thread_the_document_has_less_of_each_message(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "TALK_BYTES", 20_000)
    monkeypatch.setattr(pipeline, "HEAD_BYTES_MIN", 500)
    many = [letter(f"p{n}", "word " * 2_000, refers=["p0"] if n else [], hour=n) for n in range(20)]
    with trial(mails, store=store_url, concurrency=20) as app:
        process(app, mbox(*many))
        (one,) = summaries(app).values()
        assert (one["messages"], one["unread"], len(one["participants"])) == (20, 0, 20)
        (status,) = children(app, "mail-thread")
        stored = app._call(app.service.store.document(status.org, status.id))
        assert stored is not None
        assert stored.size < 1.4 * 20_000 + 20 * 300  # as base64, and the nodes


def test_cycles_and_missing_parents(store_url: str) -> None:
    box = mbox(
        letter("one", refers=["two"]),
        letter("two", refers=["one"], hour=1),
        letter("late", refers=["lost"], hour=2),
        letter("later", refers=["lost"], hour=3),
    )
    with trial(mails, store=store_url) as app:
        _, account = process(app, box)
        assert (account["messages"], account["threads"], account["summaries"]) == (4, 2, 2)
        found = sorted((row["messages"], row["missing"]) for row in summaries(app).values())
        assert found == [(2, 0), (2, 1)]


def test_an_archive_that_grew_costs_what_is_new(store_url: str) -> None:
    old = [letter("ada"), letter("bob", hour=1), letter("cleo", refers=["ada"], hour=2)]
    new = [letter("dora", refers=["bob"], hour=3), letter("emil", hour=4), old[1]]
    with trial(mails, store=store_url) as app:
        with counting() as runs:
            first, _ = process(app, mbox(*old, old[0]))
            assert {name: one.count for name, one in runs.items()} == {"read": 3, "summarise": 2}
        with counting() as runs:
            id_, account = process(app, mbox(*old, old[0], *new))
            assert id_ == first
            assert {name: one.count for name, one in runs.items()} == {"read": 2, "summarise": 2}
        assert (account["messages"], account["duplicates"]) == (5, 2)
        assert (account["threads"], account["thread_documents"], account["gone"]) == (3, 3, 0)
        with counting() as runs:
            assert app.add(data=mbox(*old, old[0], *new), key=KEY, pipeline=mails).answer == "unchanged"
            drain(app)
            assert {name: one.count for name, one in runs.items()} == {"read": 0, "summarise": 0}


@pytest.mark.full
def test_growing_message_by_message_ends_as_all_at_once(store_url: str) -> None:
    made = corpus(40)
    starts = [0, 1, 2, 7, 8, 20, 40]
    with trial(mails, store=store_url, concurrency=20) as app:
        whole = {end: mbox(*(one.data for one in made.letters[:end])) for end in starts[1:]}
        for end in starts[1:]:
            _, account = process(app, whole[end])
            assert (account["messages"], account["gone"]) == (end, 0)
        alive = {id_: row for id_, row in summaries(app).items() if row["superseded_by"] is None}
    with trial(mails, concurrency=20) as calm:
        process(calm, whole[40])
        assert alive == summaries(calm)


def test_the_end_of_an_archive_that_was_cut_off_is_another_message(store_url: str) -> None:
    whole = mbox(letter("ada"), letter("bob", "A long letter.\n\nWith an end that comes late.", hour=1))
    with trial(mails, store=store_url) as app:
        _, cut = process(app, whole[:-20])
        _, account = process(app, whole)
        assert (cut["messages"], account["messages"], account["gone"]) == (2, 2, 1)
        assert (account["threads"], account["message_documents"]) == (2, 3)


def test_a_late_root_takes_the_thread_over(store_url: str) -> None:
    """What refers to something older changes the id of its thread: the document of the old one says where it went."""
    early = [letter("bob", "The heron stands in the pond.", refers=["ada"], hour=5)]
    late = [letter("ada", "The pond has no heron yet.", refers=["zoe"], hour=4)]
    with trial(mails, store=store_url) as app:
        process(app, mbox(*early))
        (old,) = children(app, "mail-thread")
        assert len(app.chunks(old.id)) == 1
        _, account = process(app, mbox(*early, *late))
        assert (account["threads"], account["superseded"], account["summaries"]) == (1, 1, 1)
        assert (account["thread_documents"], account["threads_dead"]) == (2, 0)
        assert app.chunks(old.id) == []
        (new,) = [one for one in children(app, "mail-thread") if one.id != old.id]
        by_id = summaries(app)
        (gone,) = [row for row in by_id.values() if row["superseded_by"] is not None]
        assert by_id[gone["superseded_by"][0]]["messages"] == 2
        assert len(app.chunks(new.id)) == 1


def test_an_archive_that_lost_messages_keeps_their_documents(store_url: str) -> None:
    with trial(mails, store=store_url) as app:
        process(app, mbox(letter("ada"), letter("bob", hour=1)))
        _, account = process(app, mbox(letter("bob", hour=1), letter("cleo", hour=2)))
        assert (account["messages"], account["gone"], account["message_documents"]) == (2, 1, 3)
        assert (account["threads"], account["superseded"]) == (2, 1)
        (empty,) = [row for row in summaries(app).values() if row["superseded_by"] is not None]
        assert empty["superseded_by"] == []
        _, again = process(app, mbox(letter("ada"), letter("bob", hour=1), letter("cleo", hour=2)))
        assert (again["messages"], again["gone"], again["superseded"]) == (3, 0, 0)
        assert {row["superseded_by"] for row in summaries(app).values()} == {None}


@pytest.mark.parametrize("rounds", [1, 2, 3, 4])
def test_other_content_while_it_is_in_progress(store_url: str, rounds: int) -> None:
    """Wherever the first one stood, the second ends as if it had come alone; what the first left is accounted for."""
    box = [letter("bob", refers=["ada"], hour=5), letter("cleo", hour=6)]
    with trial(mails, store=store_url, concurrency=1) as app:
        id_ = add(app, mbox(*box))
        for _ in range(rounds):
            tick(app)
        again, account = process(
            app, mbox(letter("ada", refers=["zoe"], hour=4), letter("bob", refers=["ada"], hour=5))
        )
        assert again == id_
        assert (account["messages"], account["threads"], account["messages_dead"]) == (2, 1, 0)
        assert account["gone"] + account["messages"] == len(children(app, "mail-message"))
        alive = [row for row in summaries(app).values() if row["superseded_by"] is None]
        assert [row["messages"] for row in alive] == [2]


def test_a_batch_that_was_saved_is_not_split_again(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    box = mbox(*(letter(f"p{n}", hour=n) for n in range(2 * BATCH + 10)))
    reads: Counter[int] = Counter()
    real = read_entry

    def breaking(path: Any, offset: int, length: int) -> bytes:
        reads[offset] += 1
        if len(reads) == BATCH + 5 and reads[offset] == 1:
            raise RuntimeError("in the middle of the second batch")
        return real(path, offset, length)

    monkeypatch.setattr(pipeline, "read_entry", breaking)
    with trial(mails, store=store_url, concurrency=20) as app, failing(thread, Permanent("enough")):
        add(app, box)
        drain(app, max_rounds=10_000)
        assert len(children(app, "mail-message")) == 2 * BATCH + 10
        assert Counter(reads.values()) == {1: 2 * BATCH + 5, 2: 5}


def test_the_account_must_agree() -> None:
    with trial(mails) as app:
        id_, _ = process(app, mbox(letter("ada"), letter("bob")))
        found, made = app.output(id_, "survey"), app.output(id_, "thread")
    gathered = Gathered({"mail-message": {"done": 1, "dead": 1}, "mail-thread": {"done": 2}}, {})
    account = close(found, made, gathered).value
    assert a_document_for_each(found, account)
    assert asdict(account)["messages_dead"] == 1
    for lost in ("message_documents", "thread_documents"):
        assert not a_document_for_each(found, replace(account, **{lost: 1}))


def test_a_single_message_is_an_archive_of_one() -> None:
    with trial(mails) as app:
        _, account = process(app, letter("ada"))
        assert (account["messages"], account["threads"], account["summaries"]) == (1, 1, 1)
        _, account = process(app, letter("bob"))
        assert (account["messages"], account["gone"], account["superseded"]) == (1, 1, 1)


def test_an_empty_archive_and_what_is_none(store_url: str) -> None:
    with trial(mails, store=store_url) as app:
        _, account = process(app, b"\n\n")
        assert set(account.values()) == {0}
        id_ = app.add(data=b"%PDF-1.7 no mail", pipeline=mails).id
        drain(app)
        assert (app.status(id_).state, app.status(id_).error_code) == ("dead", "type_unsupported")


def test_the_stages_of_an_archive_run_where_they_can_be_killed() -> None:
    assert [stage.name for stage in mails.stages if stage.isolate] == ["survey", "split", "thread"]
    assert split.stall is not None
    made = corpus(12)
    with trial(mails, cells=True) as app:
        _, account = process(app, made.mbox)
        assert (account["messages"], account["threads"]) == (12, len(made.threads))
