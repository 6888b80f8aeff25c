"""The log: one JSON line per attempt start, completion and failure, whatever the messages contain; ERROR at a death."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import CapturingLogger

from perdure import Document, Pipeline
from perdure.app import AsyncPerdure
from perdure.core.events import AnyEvent, AttemptEnded, DocumentDead
from perdure.core.outcome import Overdue
from perdure.core.token import new_token
from perdure.engine.recovery import recover
from perdure.errors import SettingInvalid
from perdure.store.operations import Claim
from perdure.watch import log, log_text
from perdure.watch.log import configure

ROOT = Path(__file__).parents[2]
Line = dict[str, Any]

#: Who would write this into a document's name or an error wants to write the log's lines.
FORGED = 'no\n{"event": "attempt done", "document_id": "forged"}\r\n\x1b[31m\u2028end \ud800'
FACTS = ("job_id", "document_id", "org_id", "attempt", "stage")

SCRIPT = """
import json, sys
from perdure import Context, Document, Perdure, Permanent, Pipeline, Transient
from perdure.watch.log import configure, log_events

FORGED = json.loads(sys.argv[2])
shop = Pipeline("shop", backoff_s=0.0)

@shop.stage
def weigh(doc: Document, ctx: Context) -> int:
    if doc.text == "talks":
        ctx.log.warning("heavy: %s", FORGED)
    if doc.text == "dies":
        raise Permanent("too_heavy", FORGED)
    return len(doc.text)

@shop.stage
def ship(doc: Document, weigh: int, ctx: Context) -> int:
    if doc.text == "stumbles" and ctx.attempt == 1:
        raise Transient(FORGED)
    return weigh

with Perdure(sys.argv[1], pipelines=[shop]) as app:
    configure(sys.argv[3])
    log_events(app.service.events)
    ids = {
        text: app.add(text=text, pipeline=shop, org="acme", collection="parcels").id
        for text in ("walks", "stumbles", "dies", "talks")
    }
    app.run_until_idle(wait=3)
    print(json.dumps(ids))
"""


def logged(directory: Path, level: str) -> tuple[dict[str, str], list[Line]]:
    """Ids and log lines of a process that worked on one document of each kind."""
    script = directory / "shop.py"
    script.write_text(SCRIPT)
    store = f"sqlite:///{directory}/shop.db"
    ended = subprocess.run(
        [sys.executable, str(script), store, json.dumps(FORGED), level],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout), [json.loads(line) for line in ended.stderr.split("\n") if line]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], list[Line]]:
    return logged(tmp_path_factory.mktemp("shop"), "INFO")


def of(shop: tuple[dict[str, str], list[Line]], which: str) -> list[Line]:
    """The lines about one of the documents."""
    ids, lines = shop
    return [line for line in lines if line.get("document_id") == ids[which]]


def test_an_attempt_is_two_lines(shop: tuple[dict[str, str], list[Line]]) -> None:
    started, done = of(shop, "walks")
    assert (started["event"], started["level"], done["event"], done["level"]) == (
        "attempt started", "info", "attempt done", "info",
    )  # fmt: skip
    for line in (started, done):
        assert set(FACTS) < set(line)
        assert (line["org_id"], line["attempt"], line["pipeline"]) == ("acme", 1, "shop")
        assert line["job_id"] == f"doc-{line['document_id']}"
        assert datetime.fromisoformat(line["timestamp"]).tzinfo is not None
    assert (started["stage"], done["stage"]) == ("weigh", "ship")
    assert 0 <= done["duration_ms"] < 60_000


def test_a_failed_attempt_says_what_and_when_next(shop: tuple[dict[str, str], list[Line]]) -> None:
    first, failed, second, done = of(shop, "stumbles")
    assert [line["attempt"] for line in (first, failed, second, done)] == [1, 1, 2, 2]
    assert (failed["event"], failed["level"], failed["stage"]) == ("attempt ended: retry", "warning", "ship")
    assert (failed["error_type"], failed["error_code"], failed["delay_ms"]) == ("Transient", "transient", 0)
    assert failed["error"].startswith("no\n")
    assert failed["duration_ms"] >= 0
    assert "attempt 1 of 3" in failed["why"]
    assert (second["event"], second["resumed"], done["event"]) == ("attempt started", True, "attempt done")


def test_waiting_for_what_it_spawned_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    written = CapturingLogger()
    monkeypatch.setattr(log, "_log", written)
    for outcome in ("gather", "hold"):
        log._line(AttemptEnded("doc-d", "d", "acme", "shop", 1, "close", outcome=outcome, why="it waits"))
    assert [(call.method_name, call.args[0]) for call in written.calls] == [
        ("info", "attempt ended: gather"), ("warning", "attempt ended: hold"),
    ]  # fmt: skip


def test_a_death_is_an_error_with_all_that_an_operator_needs(shop: tuple[dict[str, str], list[Line]]) -> None:
    started, ended, dead = of(shop, "dies")
    assert (ended["event"], ended["level"]) == ("attempt ended: dead", "warning")
    assert (dead["event"], dead["level"]) == ("document dead", "error")
    assert set(FACTS) < set(dead)
    assert (dead["collection"], dead["attempts"], dead["stage"]) == ("parcels", 1, "weigh")
    assert dead["error"].startswith("too_heavy: no\n")
    began_ms = datetime.fromisoformat(started["timestamp"]).timestamp() * 1000
    assert abs(dead["last_attempt_ms"] - began_ms) < 10_000


def test_no_message_makes_a_line_of_its_own(shop: tuple[dict[str, str], list[Line]]) -> None:
    ids, lines = shop
    assert {line["document_id"] for line in lines if "document_id" in line} == set(ids.values())
    assert len(lines) == 2 + 4 + 3 + 3 + 2  # the last two are the worker's start and stop


def test_what_a_stage_logs_is_a_line_like_all_others(shop: tuple[dict[str, str], list[Line]]) -> None:
    _, said, _ = of(shop, "talks")
    assert (said["event"], said["level"], said["logger"]) == (f"heavy: {FORGED}", "warning", "perdure.stage")
    assert (said["org_id"], said["stage"], said["attempt"]) == ("acme", "weigh", 1)


def test_the_level_decides_what_is_written(tmp_path: Path) -> None:
    ids, lines = logged(tmp_path, "error")
    assert [(line["event"], line["document_id"]) for line in lines] == [("document dead", ids["dies"])]


def test_stages_are_told_at_debug(tmp_path: Path) -> None:
    found = of(logged(tmp_path, "debug"), "stumbles")
    stages = [(line["event"], line["stage"]) for line in found if line["level"] == "debug"]
    assert stages == [("stage saved", "weigh"), ("stage already saved", "weigh"), ("stage saved", "ship")]


def test_lines_for_people_are_readable_and_harmless() -> None:
    facts = {
        "timestamp": "2026-01-02T03:04:05Z", "level": "warning", "event": "attempt ended: retry", "document_id": "d1",
        "stage": "read", "error": FORGED, "place": None, "why": "after backoff", "stack": "File a\nFile b",
    }  # fmt: skip
    said = log_text.line(None, "", facts).split("\n")
    assert re.fullmatch(
        r'\d\d:\d\d:\d\d WARNING attempt ended: retry  document_id=d1 stage=read error="no\\n.+" why="after backoff"',
        said[0],
    )
    assert said[1:] == ["    File a", "    File b"]
    assert said[0].isprintable()


@pytest.mark.parametrize(("form", "text"), [("text", True), ("json", False), ("auto", False)])
def test_the_form_of_lines_can_be_forced_and_a_pipe_gets_json(form: str, text: bool) -> None:
    script = f"from perdure.watch.log import configure; configure('INFO', {form!r})\n" + (
        "import logging; logging.getLogger('perdure.worker').warning('waiting for %s', 'it')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stderr.startswith("{") is not text
    assert "waiting for it" in ended.stderr


def test_a_terminal_gets_lines_for_people() -> None:
    script = (
        "import pty, sys\nfrom pathlib import Path\n"
        "def child():\n"
        "    from perdure.watch.log import configure; configure('INFO', 'auto')\n"
        "    import logging; logging.getLogger('perdure.worker').warning('waiting for %s', 'it')\n"
        "pid, fd = pty.fork()\n"
        "if pid == 0: child()\n"
        "else: sys.stdout.write(__import__('os').read(fd, 4096).decode())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert re.match(r"\d\d:\d\d:\d\d WARNING waiting for it", ended.stdout)


def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingInvalid, match="DEBUG, INFO, WARNING, ERROR, CRITICAL") as caught:
        configure("loud")
    assert caught.value.code == "log_level_invalid"


def test_a_death_that_recovery_decides_is_told_with_its_collection(store_url: str) -> None:
    """The other way to die: nobody's stage raised, a job was taken back."""
    last = Pipeline("last", attempts=1)

    @last.stage
    def only(doc: Document) -> int:
        return 1

    async def die() -> list[AnyEvent]:
        told: list[AnyEvent] = []
        app = AsyncPerdure(store_url, pipelines=[last])
        app.events.subscribe(told.append)
        await app.start()
        try:
            await app.add(text="x", pipeline=last, collection="parcels")
            worker = await app.store.register("worker", "here:1", app.queues)
            [claimed] = await app.store.claim(Claim(worker, app.queues, new_token(), 1, 1, False))
            overdue = Overdue("only", "stage_timeout", "too long")
            assert await recover(app.store, app.events, [(claimed.job, overdue)], "it hung") == 1
        finally:
            await app.close()
        return told

    [dead] = [event for event in asyncio.run(die()) if isinstance(event, DocumentDead)]
    assert (dead.collection, dead.attempts, dead.stage) == ("parcels", 1, "only")
    assert dead.error == "stage_timeout: too long"


def test_a_worker_says_when_it_starts_and_stops(tmp_path: Path) -> None:
    _, lines = logged(tmp_path, "INFO")
    assert lines[0]["event"] == "worker started"
    assert (lines[0]["queues"], lines[0]["concurrency"]) == ("documents", 3)
    assert lines[-1]["event"] == "worker stopped"
