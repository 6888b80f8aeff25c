"""Secrets of settings, keys and webhooks are in no output, log, answer, row, file or command line, on both stores.

Every service is unreachable and every stage fails with a secret in its message, so that each path that could quote one
does so.
"""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.api.served import served
from tests.doors.command import COMMAND, environment, perdure, succeeded
from tests.doors.planted import (
    CANARY,
    ROOT,
    command_lines,
    files,
    has_secret,
    leaks,
    rows,
    secrets_of_cells,
    sessions,
    variables,
    with_password,
)
from tests.ports import free_ports

TARGET = "tests.doors.leaking:app"
#: Where a secret stands on purpose, see docs/security.md: addresses of webhooks, and their secrets without a key.
DOCUMENTED = {"webhook", "once"}
#: Variables that are left to cells of your stages, see docs/security.md.
FOR_STAGES = {"OPENAI_API_KEY"}
TEXTS = (
    ("status",), ("dead", "list"), ("dead", "groups"), ("list",), ("acts",), ("dependencies",), ("key", "list"),
    ("webhook", "deliveries"), ("audit",), ("sweep", "--once"),
)  # fmt: skip
PATHS = (
    "/v3/documents", "/v3/dead", "/v3/dead/groups", "/v3/dead/export", "/v3/status", "/v3/queues", "/v3/dependencies",
    "/v3/workers", "/v3/acts", "/v3/audit", "/v3/webhooks/deliveries", "/readyz", "/metrics", "/openapi.json", "/docs",
    "/x",
)  # fmt: skip


def output(*words: str, **given: Any) -> str:
    ended = perdure(*words, cwd=ROOT, **given)
    return ended.stdout + ended.stderr


class Watched:
    """A process whose log is kept and whose command lines are looked at."""

    def __init__(self, *command: str, log: Path, given: dict[str, Any]) -> None:
        self._file, self.log, self.lines, self.in_cells = log.open("wb"), log, set[str](), set[str]()
        self.process = subprocess.Popen(
            [*COMMAND, *command], cwd=ROOT, env=environment(**given), stdout=self._file, stderr=self._file
        )

    def look(self) -> None:
        assert self.process.poll() is None, self.log.read_text()
        process = psutil.Process(self.process.pid)
        self.lines |= set(command_lines(process))
        self.in_cells |= secrets_of_cells(process)

    def until(self, holds: Any) -> None:
        until_s = time.monotonic() + 120
        while not holds():
            self.look()
            assert time.monotonic() < until_s, self.log.read_text()
            time.sleep(0.2)

    def end(self) -> list[str]:
        """Stop it; what it said, and how it and its children were called."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._file.close()
        return [self.log.read_text(), *self.lines]


def dead(store: str) -> int:
    said = json.loads(succeeded("status", "--json", cwd=ROOT, PERDURE_STORE=store))
    number: int = said["documents"]["dead"]
    return number


def failed_delivery(given: dict[str, Any]) -> bool:
    said = output("webhook", "deliveries", "--json", **given).splitlines()
    return any(json.loads(line)["error"] for line in said)


@pytest.mark.full
@pytest.mark.parametrize("keyed", [True, False], ids=["key", "no key"])
def test_no_secret_is_anywhere(
    store_url: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], keyed: bool
) -> None:
    given: dict[str, Any] = variables(store_url, tmp_path)
    if not keyed:
        del given["PERDURE_SECRET_KEY"]
    (port,) = free_ports(1)
    hook = f"http://127.0.0.1:{port}/{CANARY}-path?token={CANARY}-query"
    said: list[str] = []
    # adds, keys, webhooks; what is shown once is looked for from then on
    names = [name for name, value in given.items() if CANARY in value and not name.startswith("OTEL")]
    ids = []
    for n, name in enumerate(names):
        how = ("permanent", "header", "url", "plain")[n % 4]
        words: tuple[str, ...] = ("add", "--text", f"{name} {how}", "--app", TARGET, "--pipeline", "leaking")
        ids.append(succeeded(*words, cwd=ROOT, **given).split()[1])
    succeeded("add", "--text", "words to be embedded", cwd=ROOT, **given)
    secret = json.loads(succeeded("webhook", "add", hook, "--json", cwd=ROOT, **given))["secret"]
    removed = json.loads(succeeded("webhook", "add", hook, "--json", cwd=ROOT, **given))
    said.append(output("webhook", "remove", removed["id"], **given))
    scopes = [word for scope in ("read", "write", "operate") for word in ("--scope", scope)]
    key = succeeded("key", "add", "default", *scopes, cwd=ROOT, **given).strip()
    reader = succeeded("key", "add", "default", "--scope", "read", cwd=ROOT, **given).strip()
    password = given["PERDURE_STORE"]
    said.append(output("hold", "embedder", "--reason", f"cannot reach {password}", **given))
    said.append(output("release", "embedder", "--reason", f"{given['PERDURE_EMBED_KEY']} works", **given))
    # a worker that can reach nothing
    worker = Watched("worker", TARGET, log=tmp_path / "worker.log", given=given)
    worker.until(lambda: dead(store_url) >= len(ids) and failed_delivery(given))
    said += sessions(store_url)
    said += worker.end()
    assert worker.in_cells <= FOR_STAGES
    assert "***" in said[-len(worker.lines) - 1]
    for words in TEXTS:
        said += [output(*words, **given), output(*words, "--json", **given)]
    for word in ("why", "status", "timeline", "show"):
        said += [output(word, id_, **given) for id_ in ids]
    said += [output("dead", "inspect", id_, **given) for id_ in ids]
    export = tmp_path / "export.jsonl.gz"
    said.append(output("dead", "export", "--pipeline", "leaking", "--output", str(export), **given))
    said.append(gzip.decompress(export.read_bytes()).decode())
    # a server
    with served(password, target=TARGET, **given) as url:
        caller = httpx2.Client(headers={"Authorization": f"Bearer {key}"}, timeout=60, base_url=url)
        said += [caller.get(path).text for path in (*PATHS, *(f"/v3/documents/{id_}" for id_ in ids))]
        said += [
            caller.get(f"/v3/documents/{id_}/{part}").text
            for id_ in ids
            for part in ("why", "timeline", "attempts")
        ]
        said.append(caller.get("/v3/webhooks", headers={"Authorization": f"Bearer {reader}"}).text)
        said.append(caller.get("/v3/documents", headers={"Authorization": f"Bearer pk_{CANARY}"}).text)
        for body in (
            {"url": f"http://me:{CANARY}@x.example/"}, {"url": f"http://me:{CANARY}@127.0.0.1:x/"},
            {"text": "a", "pipeline": "leaking", "priority": "x"},
        ):  # fmt: skip
            said.append(caller.post("/v3/documents", json=body).text)
        said.append(caller.post("/v3/webhooks", json={"url": f"http://me:{CANARY}@x.example/"}).text)
    # stores and blobs that cannot be used
    for wrong in (
        {"PERDURE_STORE": f"postgresql://me:{CANARY}@127.0.0.1:1/db"},
        {"PERDURE_STORE": with_password(password, f"{CANARY}-db") + "&dbname=missing"},
        {
            "PERDURE_BLOBS": "s3://bucket/x",
            "AWS_ENDPOINT": "http://127.0.0.1:1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "me",
        },
    ):
        said += [
            output("status", **{**given, **wrong}),
            output("add", "--text", "x" * 50_000, **{**given, **wrong}),
        ]
    given["PERDURE_DEAD_AGE_S"] = "0"
    said.append(output("sweep", "--once", **given))  # into the archive
    said += capfd.readouterr()
    assert len(list((tmp_path / "archive").iterdir())) == 1
    assert any("metrics could not be pushed" in text for text in said)
    assert any("s3://bucket/x" in text for text in said)
    assert leaks(said) == []
    assert [text for text in said if key in text or reader in text or secret in text] == []
    dumped = list(rows(store_url))
    assert sorted({table for table, row in dumped if has_secret(row)} - DOCUMENTED) == []
    assert [row for _, row in dumped if key in row or reader in row] == []
    in_clear = sorted({table for table, row in dumped if secret in row})
    assert in_clear == ([] if keyed else ["webhook"])
    own = {tmp_path / name for name in ("perdure.db", "perdure.db-wal", "perdure.db-shm")}
    assert sorted(set(files(tmp_path)) - own) == []


@pytest.mark.on_both
def test_the_trail_names_the_host_of_a_webhook_and_not_the_rest(store_url: str) -> None:
    """`GET /v3/acts` and `perdure acts` show the trail to operators of the server, who are others than those who know
    the receiver."""
    from tests.api.server import Server

    with Server(store_url, allow_loopback=True) as server:
        client, operator = server.client("acme"), server.client("ops", "operate")
        made = client.post("/v3/webhooks", json={"url": f"http://me.example/{CANARY}?token={CANARY}"}).json()
        assert made["url"].endswith(f"token={CANARY}")
        assert client.delete(f"/v3/webhooks/{made['id']}").status_code == 204
        trail = operator.get("/v3/acts").json()["acts"]
    found = {(act["verb"], act["reason"]) for act in trail if act["target"] == made["id"]}
    assert found == {("webhook-add", "http://me.example/…"), ("webhook-drop", "http://me.example/…")}


def test_a_reason_is_kept_without_the_secrets_in_it(tmp_path: Path) -> None:
    given: dict[str, Any] = variables(f"sqlite:///{tmp_path}/perdure.db", tmp_path)
    succeeded("add", "--text", "a", cwd=ROOT, **given)
    succeeded("pause", "documents", "--reason", f"{given['PERDURE_EMBED_KEY']} is refused", cwd=ROOT, **given)
    assert "*** is refused" in succeeded("acts", cwd=ROOT, **given)
    assert [row for _, row in rows(given["PERDURE_STORE"]) if has_secret(row)] == []
