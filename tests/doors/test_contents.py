"""`perdure delete`, `content`, `events`, the options of `add`, and what every changing command prints as JSON."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.pipelines.document import documents
from tests.doors.command import COMMAND, environment, perdure, refused, succeeded


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/perdure.db"


def added(store: str, *options: str) -> str:
    told = json.loads(succeeded("add", "--text", "Hello", "--json", "--store", store, *options))
    return str(told["id"])


def test_a_document_is_deleted_if_it_has_ended(store: str) -> None:
    id_ = added(store)
    assert "in progress" in refused(1, "move_forbidden", "delete", id_, "--store", store)
    told = succeeded(
        "delete", id_, "--cancel", "--who", "ann", "--reason", "a mistake", "--json", "--store", store
    )
    assert json.loads(told) == {"id": id_, "answer": "purged"}
    refused(2, "document_unknown", "delete", id_, "--store", store)
    act = json.loads(succeeded("acts", "--target", id_, "--json", "--store", store))["acts"][0]
    assert (act["who"], act["reason"]) == ("ann", "a mistake")


def test_the_content_is_written_byte_for_byte(store: str, tmp_path: Path) -> None:
    file, out = tmp_path / "a.bin", tmp_path / "b.bin"
    file.write_bytes(bytes(range(256)) * 400)
    id_ = json.loads(succeeded("add", str(file), "--json", "--store", store))["id"]
    umask = os.umask(0)
    try:
        succeeded("content", id_, "--output", str(out), "--store", store)
    finally:
        os.umask(umask)
    assert out.stat().st_mode & 0o777 == 0o600
    assert out.read_bytes() == file.read_bytes()
    assert succeeded("content", added(store), "--store", store) == "Hello"
    refused(2, "document_unknown", "content", "nothing", "--store", store)


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"a\tb\r\n\xc3\xa9\n", True), (b"\x1b]0;owned\x07", False), (b"a\rb", False), (b"\xc2\x9b2J", False),
        (b"\xff", False), (b"a\0b", False),
    ],
)  # fmt: skip
def test_a_terminal_is_given_nothing_that_it_would_obey(
    content: bytes, shown: bool, store: str, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    id_ = json.loads(succeeded("add", str(tmp_path / "a.txt"), "--json", "--store", store))["id"]
    ours, theirs = pty.openpty()
    command = [*COMMAND, "content", id_, "--store", store]
    try:
        done = subprocess.run(command, stdout=theirs, stderr=subprocess.PIPE, env=environment(), check=False)
        os.write(theirs, b".")
        written = os.read(ours, 1000)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == (0 if shown else 2), done.stderr
    assert (written == b".") is not shown


def test_events_are_shown_the_newest_last(store: str) -> None:
    first = added(store)
    second = added(store, "--key", "k")
    succeeded("cancel", first, "--store", store)
    lines = [json.loads(line) for line in succeeded("events", "--json", "--store", store).splitlines()]
    assert (lines[-1]["name"], lines[-1]["document_id"]) == ("document.cancelled", first)
    later = succeeded("events", "--after", lines[-1]["place"], "--json", "--store", store)
    assert later == ""
    assert first in succeeded("events", "--document", first, "--store", store)
    assert second not in succeeded("events", "--document", first, "--store", store)
    assert first in succeeded("events", "--document", first[:-2], "--store", store)
    succeeded("delete", first, "--store", store)
    assert succeeded("events", "--document", first, "--store", store) == ""  # they are deleted with it
    refused(2, "event_unknown", "events", "--name", "document.lost", "--store", store)


def test_add_takes_what_the_library_takes(store: str) -> None:
    id_ = added(
        store, "--priority", "7", "--at", "+2h", "--attempts", "9", "--backoff", "60", "--key", "letter",
        "--meta", "from=Ada", "--meta", "to=Bob=2",
    )  # fmt: skip
    with Perdure(store, pipelines=[documents]) as app:
        status = app.status(id_)
        assert (status.state, status.attempts_max) == ("waiting", 9)
        found = app._call(app.service.store.document(status.org, id_))
        assert found is not None
        assert json.loads(found.meta) == {"from": "Ada", "to": "Bob=2"}
    told = json.loads(succeeded("add", "--text", "Bye", "--key", "letter", "--json", "--store", store))
    assert (told["id"], told["answer"]) == (id_, "refreshed")
    id_ = added(store, "--meta", '{"n": 1}', "--key", "other")
    with Perdure(store, pipelines=[documents]) as app:
        found = app._call(app.service.store.document("default", id_))
        assert found is not None
        assert json.loads(found.meta) == {"n": 1}


@pytest.mark.parametrize(
    "options",
    [
        ("--meta", "from"),
        ("--meta", "a=1", "--meta", "a=2"),
        ("--meta", "{"),
        ("--at", "soon"),
        ("--priority", "1000"),
    ],
)
def test_wrong_options_of_add_are_the_callers_mistake(options: tuple[str, ...], store: str) -> None:
    assert perdure("add", "--text", "Hello", "--store", store, *options).returncode == 2


def test_a_key_is_for_one_document(store: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    refused(
        2,
        "input_invalid",
        "add",
        str(tmp_path / "a.txt"),
        str(tmp_path / "b.txt"),
        "--key",
        "k",
        "--store",
        store,
    )


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("pause", "documents"), {"name": "documents", "state": "paused"}),
        (("resume", "documents"), {"name": "documents", "state": "running"}),
        (("hold", "openai", "--new"), {"name": "openai", "state": "down"}),
        (("release", "openai"), {"name": "openai", "state": "up"}),
    ],
)
def test_what_is_changed_is_printed_as_json(
    command: tuple[str, ...], told: dict[str, str], store: str
) -> None:
    added(store)
    if command[0] == "release":
        perdure("hold", "openai", "--new", "--store", store)
    assert json.loads(succeeded(*command, "--json", "--store", store)) == told


def test_keys_and_webhooks_say_why_in_the_trail(store: str) -> None:
    given = ("--who", "ann", "--reason", "audit", "--json", "--store", store)
    key = json.loads(succeeded("key", "add", "acme", *given))["id"]
    assert json.loads(succeeded("key", "revoke", key, *given)) == {"id": key, "answer": "revoked"}
    hook = json.loads(succeeded("webhook", "add", "https://example.org/hook", *given))["id"]
    assert json.loads(succeeded("webhook", "retry", *given)) == {"deliveries": 0}
    assert json.loads(succeeded("webhook", "remove", hook, *given)) == {"id": hook, "answer": "removed"}
    acts = json.loads(succeeded("acts", "--who", "ann", "--json", "--store", store))["acts"]
    assert {act["verb"] for act in acts} == {"key-add", "key-revoke", "webhook-add", "webhook-drop"}
    assert all(act["reason"].endswith("audit") for act in acts)
    with Perdure(store) as app:
        assert app.keys()[0].id == key
        assert app.webhooks() == []
        made = app.add_webhook("https://example.org/other", reason="again")
        assert [one.id for one in app.webhooks()] == [made.id]
        assert app.deliveries() == []
        assert app.retry_deliveries() == 0
        app.remove_webhook(made.id)
        other, secret = app.add_key("acme")
        assert secret.startswith("pk_")
        app.revoke_key(other.id)


def test_an_abbreviated_id_is_answered_whole(store: str) -> None:
    first, second = (added(store, "--text", text) for text in ("one", "two"))
    on = ("--json", "--store", store)
    short = common_beginning(first, second)
    given = json.loads(succeeded("priority", short, "5", *on))
    assert given == {"id": first, "answer": "changed"}
    assert json.loads(succeeded("priority", short, "first", *on))["id"] == first
    assert json.loads(succeeded("cancel", short, *on)) == {"id": first, "answer": "cancelled"}
    assert json.loads(succeeded("requeue", short, *on)) == {"id": first, "answer": "requeued"}
    assert json.loads(succeeded("delete", short, "--cancel", *on)) == {"id": first, "answer": "purged"}
    acts = json.loads(succeeded("acts", "--target", short, *on))["acts"]
    assert {act["verb"] for act in acts} == {"priority", "raise", "cancel", "requeue", "purge"}
    key = json.loads(succeeded("key", "add", "acme", *on))["id"]
    assert json.loads(succeeded("key", "revoke", key[:6], *on)) == {"id": key, "answer": "revoked"}
    hook = json.loads(succeeded("webhook", "add", "https://example.org/hook", *on))["id"]
    assert json.loads(succeeded("webhook", "remove", hook[:6], *on)) == {"id": hook, "answer": "removed"}


def common_beginning(id_: str, other: str) -> str:
    """As much of the first as tells it from the other."""
    return next(id_[:n] for n in range(6, len(id_)) if not other.startswith(id_[:n]))
