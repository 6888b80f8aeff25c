"""Workers killed at random while an archive of mail is taken apart: it ends as if nothing had happened."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.pipelines.mail.archive import open_archive
from perdure.pipelines.mail.chunks import message_chunks
from perdure.pipelines.mail.message import decode
from perdure.pipelines.mail.pipeline import mails
from perdure.pipelines.mail.thread_pipeline import Talk, talk_of
from tests.calls.openai_server import Fault, OpenAIServer
from tests.faults.crew import Crew
from tests.faults.documents.account import assert_sound, wait_until_quiet
from tests.faults.fleet import Fleet
from tests.faults.flow import seeded
from tests.pipelines.mail.boxes import letter, mbox
from tests.pipelines.mail.corpus import Corpus, corpus

APP = "tests.faults.mailing:app"
WORKERS, CONCURRENCY = 2, 6
SAID = "They agreed on something in the end."


@pytest.fixture
def service(nearby: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    """A service that summarises, for whoever starts after it; attempts follow each other at once."""
    monkeypatch.setenv("RETRY_JOB_BASE_DELAY_SECONDS", "0.1")
    with OpenAIServer() as made:
        made.always = Fault(
            body={"choices": [{"message": {"content": SAID}, "finish_reason": "stop"}]}, delay_s=0.01
        )
        monkeypatch.setenv("PERDURE_SUMMARY_URL", made.url)
        yield made


@pytest.fixture
def post(service: OpenAIServer, store_url: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(store_url, tmp_path, pipelines=[mails]) as made:
        yield made


@pytest.mark.parametrize(
    ("messages", "kills", "every_s"),
    [
        pytest.param(300, 5, (0.3, 1.5), id="short", marks=pytest.mark.timeout(1_800)),
        pytest.param(3_000, 25, (1.0, 6.0), id="long", marks=[pytest.mark.long, pytest.mark.timeout(1_800)]),
    ],
)
def test_random_kills(
    post: Fleet, service: OpenAIServer, messages: int, kills: int, every_s: tuple[float, float]
) -> None:
    """Every message is stored once, threads are those of the archive, and each summary is asked for under one key."""
    made = corpus(messages)
    added = post.ask(post.app.add(data=made.mbox, name="list.mbox", collection="archives", pipeline=mails))

    def state() -> str:
        return post.ask(post.app.status(added.id)).state

    with seeded() as rng:
        began_s = time.monotonic()
        crew = Crew(post, rng, APP, WORKERS, CONCURRENCY)
        post.wait(lambda: state() == "running", "the archive to be taken up", within_s=60)
        while len(crew.losses) < kills and state() != "done":
            time.sleep(rng.uniform(*every_s))
            crew.kill_one()
        wait_until_quiet(post, within_s=120 + messages / 5)
        took_s = time.monotonic() - began_s

    ((_, account),) = post.ask(post.app.rows(added.id, "archive"))
    assert (account["messages"], account["duplicates"]) == (messages, made.duplicates)
    assert (account["messages_dead"], account["threads_dead"], account["threads_degraded"]) == (0, 0, 0)
    assert_stored_once(post, made)
    assert_threads(post, made)
    repeated = assert_asked_once(service, made, in_hand=len(crew.losses) * CONCURRENCY)
    assert_sound(post)
    print(
        f"{messages} messages in {took_s:.0f} s with {len(crew.losses)} kills; "
        f"{repeated} summaries were under way when their worker was killed"
    )
    assert len(crew.losses) >= kills // 2, "it was over before anybody was killed, so this showed nothing"


@pytest.mark.long
def test_a_message_that_kills_its_process_fails_alone(post: Fleet) -> None:
    box = [letter(f"p{n}", hour=n) for n in range(20)]
    box[7] = b"X-Crash: yes\n" + box[7]
    added = post.ask(post.app.add(data=mbox(*box), collection="archives", pipeline=mails))
    post.start(APP, concurrency=CONCURRENCY)
    wait_until_quiet(post, within_s=60)

    assert post.ask(post.app.status(added.id)).state == "done"
    ((_, account),) = post.ask(post.app.rows(added.id, "archive"))
    assert (account["messages"], account["messages_dead"], account["summaries"]) == (20, 1, 20)
    rows = post.query("SELECT state, error_code FROM document WHERE pipeline = 'mail-message'")
    assert Counter(map(tuple, rows)) == {("done", None): 19, ("dead", "crashed:SIGSEGV"): 1}


def assert_stored_once(fleet: Fleet, made: Corpus) -> None:
    with open_archive(made.mbox) as archive:
        entries = list(archive)
    stored = fleet.query("SELECT content_hash, state FROM document WHERE pipeline = 'mail-message'")
    assert Counter(row[0] for row in stored) == Counter(
        hashlib.sha256(one.data).hexdigest() for one in entries
    )
    assert {row[1] for row in stored} == {"done"}
    expected = sum(len(message_chunks(decode(one.data), "id", "hash")) for one in entries)
    ((found,),) = fleet.query(
        "SELECT count(*) FROM chunk c JOIN document d ON d.id = c.document_id WHERE d.pipeline = 'mail-message'"
    )
    assert found == expected


def assert_threads(fleet: Fleet, made: Corpus) -> None:
    """Those that the archive was made of, and each is found by its subject and its summary."""
    with open_archive(made.mbox) as archive:
        numbers = {one.identity: number for number, one in enumerate(archive)}
    talks = [
        _talk(fleet, id_) for (id_,) in fleet.query("SELECT id FROM document WHERE pipeline = 'mail-thread'")
    ]
    found = Counter(frozenset(numbers[one.identity] for one in talk.messages) for talk in talks)
    assert found == Counter(map(frozenset, made.threads))
    ((chunks,),) = fleet.query(
        "SELECT count(*) FROM chunk c JOIN document d ON d.id = c.document_id WHERE d.pipeline = 'mail-thread'"
    )
    assert chunks == len(made.threads)


def assert_asked_once(service: OpenAIServer, made: Corpus, in_hand: int) -> int:
    """One key for each thread; only what was in hand of those that were killed was asked for again. How many were."""
    keys = Counter(
        value
        for request in service.requests
        for name, value in request.headers.items()
        if name.lower() == "idempotency-key"
    )
    assert len(keys) == len(made.threads)
    repeated = keys.total() - len(keys)
    assert repeated <= in_hand
    return repeated


def _talk(fleet: Fleet, id_: str) -> Talk:
    record = fleet.ask(fleet.app.store.document("default", id_))
    assert record is not None
    if record.blob is None:
        return talk_of(record.inline or b"")
    return talk_of(fleet.ask(fleet.app.blobs.get(record.blob)))
