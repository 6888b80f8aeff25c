"""Heavy JSON is read in a process of its own: the server's interpreter is never held for long by a body."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import threading
import time
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from perdure.api import answers, entries, jsons, serve
from perdure.api.forms import Received
from perdure.api.readers import Readers
from perdure.api.refused import Invalid, Refused
from perdure.engine import intake, wire
from perdure.engine.behind import FAR_BEHIND
from perdure.engine.wire import Malformed
from perdure.errors import InputInvalid, InputTooLarge
from tests.api.held import Touching, fail, take_over, until
from tests.api.server import Server

MB = 1 << 20
STEP_CPU_S = 0.25  # far more than a step takes; a parser of the largest body takes seconds
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(f"sqlite:///{tmp_path_factory.mktemp('readers')}/perdure.db") as running:
        yield running


def readers(work: Callable[[Readers], Coroutine[Any, Any, None]]) -> None:
    """Run the work with readers that are ended afterwards."""

    async def run() -> None:
        made = Readers()
        try:
            await work(made)
        finally:
            await made.close()

    asyncio.run(run())


# --- what the server does itself -----------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The CPU time of every step of every event loop, and of everything that is parsed or encoded here."""
    taken: list[float] = []

    def timed(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            began_s = time.thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                taken.append(time.thread_time() - began_s)

        return run

    monkeypatch.setattr(events.Handle, "_run", timed(events.Handle._run))
    monkeypatch.setattr(jsons, "read", timed(jsons.read))
    monkeypatch.setattr(intake, "_json", timed(intake._json))
    return taken


def text(piece: bytes, size: int) -> bytes:
    return b'{"pipeline": "notes", "dedupe": false, "text": "' + piece * (size // len(piece)) + b'"}'


def value(made: str) -> bytes:
    return f'{{"pipeline": "notes", "dedupe": false, "json": {made}}}'.encode()


@pytest.mark.full
@pytest.mark.parametrize(
    ("path", "make", "status"),
    [
        pytest.param("", lambda: text(b"x", 31 * MB), 201, id="a string"),
        pytest.param("", lambda: text("😀".encode(), 31 * MB), 201, id="wide characters"),
        pytest.param("", lambda: text(b"\\n", 31 * MB), 201, id="escapes"),
        pytest.param("", lambda: value("[" + "[]," * 490_000 + "0]"), 201, id="lists"),
        pytest.param("", lambda: value("[" + "0.1e-300," * 490_000 + "0]"), 201, id="numbers"),
        pytest.param("", lambda: json.dumps(dict.fromkeys(map(str, range(200_000)))).encode(), 422, id="keys"),
        pytest.param("", lambda: b'{"text": "a", "meta": {"k": [' + b"0," * 490_000 + b"0]}}", 413, id="meta"),
        pytest.param("/bulk", lambda: b'{"documents": [' + b",".join([text(b"x", 30_000)] * 1000) + b"]}", 201,
                     id="documents"),
        pytest.param("/x/remote/finish", lambda: b'{"token": 1, "output": [' + b"0," * 490_000 + b"0]}", 404,
                     id="output"),
    ],
)  # fmt: skip
def test_no_body_holds_the_server(
    server: Server, steps: list[float], path: str, make: Callable[[], bytes], status: int
) -> None:
    client, body = server.client("acme"), make()
    steps.clear()
    answer = client.post(
        f"/v3/documents{path}", content=body, headers={**JSON, "Idempotency-Key": f"{time.time_ns()}"}
    )
    assert answer.status_code == status, answer.text[:500]
    assert max(steps) < STEP_CPU_S


def test_the_server_reads_only_what_is_light(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    here: list[Any] = []
    read = jsons.read

    def noted(body: Any, most: int) -> Any:
        here.append(body)
        return read(body, most)

    for module in (jsons, entries):
        monkeypatch.setattr(module, "read", noted)
    client, many = server.client("acme"), [0] * 20_000
    requests: list[tuple[str, dict[str, Any]]] = [
        ("", {"json": {"json": many, "pipeline": "notes"}}),
        ("", {"json": {"text": "a", "pipeline": "notes", "meta": {"k": many}}}),
        ("", {"data": {"meta": json.dumps({"k": many})}, "files": {"file": ("a.txt", b"a")}}),
        ("/bulk", {"json": {"documents": [{"json": many, "pipeline": "notes", "dedupe": False}] * 3}}),
        ("/x/remote/finish", {"json": {"token": 1, "output": many}}),
        ("/x/requeue", {"json": {"reason": many}}),
        ("", {"json": {"text": "a", "pipeline": "notes"}}),
    ]
    for path, asked in requests:
        assert client.post(f"/v3/documents{path}", **asked).status_code in (200, 201, 404, 413)
    assert here
    assert all(jsons.is_light(body) for body in here)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"0," * (jsons.LIGHT_MARKS - 10) + b"0]",
        b'["' + b"\\n" * (jsons.LIGHT_BYTES // 2 - 10) + b'"]',
        b"[" * 150 + b"9" * 900 + b"]" * 150 + b" " * 100_000,
    ],
    ids=["values", "escapes", "spaces"],
)
def test_a_light_body_takes_little(body: bytes) -> None:
    assert jsons.is_light(body)
    began_s = time.thread_time()
    with pytest.raises((Refused, InputInvalid)):
        entries.of_json(b'{"json": ' + body + b', "url": "x"}', entries.How(10_000, True))
    assert time.thread_time() - began_s < STEP_CPU_S


@pytest.mark.parametrize("body", [b"0," * 5000, b" " * (jsons.LIGHT_BYTES + 1), b"[" * 5000])
def test_what_is_heavy_is_not_light(body: bytes) -> None:
    assert not jsons.is_light(body)
    assert not jsons.is_light(body.decode())


def test_a_heavy_body_gives_the_same_documents_as_a_light_one(server: Server) -> None:
    client = server.client("acme")
    heavy = client.post("/v3/documents", content=text(b"y", 2 * MB), headers=JSON).json()["id"]
    assert client.get(f"/v3/documents/{heavy}/content").content == b"y" * (2 * MB)
    documents: list[Any] = [{"json": {"b": [n] * 20, "a": "ü"}, "pipeline": "notes"} for n in range(500)]
    answer = client.post("/v3/documents/bulk", json={"documents": documents})
    ids = [one["id"] for one in answer.json()["documents"]]
    stored = json.dumps(documents[7]["json"], ensure_ascii=False, separators=(",", ":")).encode()
    assert client.get(f"/v3/documents/{ids[7]}/content").content == stored
    alone = client.post("/v3/documents", json=documents[7]).json()
    assert alone == {"id": ids[7], "answer": "exists", "state": "queued"}


def test_a_key_is_good_for_one_body_however_it_is_read(server: Server) -> None:
    client, once = server.client("acme"), {"Idempotency-Key": "heavy"}
    asked = {"json": {"a": [1] * 3000, "b": 2}, "pipeline": "notes"}
    turned = {"pipeline": "notes", "json": {"b": 2, "a": [1] * 3000}}
    padded = json.dumps(asked).encode() + b" " * jsons.LIGHT_BYTES
    first = client.post("/v3/documents", json=asked, headers=once)
    assert first.status_code == 201
    assert client.post("/v3/documents", json=turned, headers=once).json() == first.json()
    assert client.post("/v3/documents", content=padded, headers={**once, **JSON}).json() == first.json()
    asked["json"]["b"] = 3  # type: ignore[index]
    other = client.post("/v3/documents", json=asked, headers=once)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


# --- the processes --------------------------------------------------------------------------------


def test_an_organisation_has_one_place_of_two(tmp_path: Path) -> None:
    async def work(made: Readers) -> None:
        def task(org: str) -> asyncio.Task[int]:
            return asyncio.create_task(
                made.run(org, until, tmp_path / f"{org}-begun", tmp_path / f"{org}-end")
            )

        first, waiting, other = task("acme"), task("acme"), task("zeta")
        for org in ("acme", "zeta"):
            while not (tmp_path / f"{org}-begun").exists():
                await asyncio.sleep(0.01)
        assert not any(one.done() for one in (first, waiting, other))
        (tmp_path / "zeta-end").touch()
        zeta = await other
        assert not first.done()
        (tmp_path / "acme-end").touch()
        pids = {await first, await waiting}
        assert len(pids | {zeta}) == 2

    readers(work)


def test_the_process_has_no_secrets_and_stands_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_SECRET_KEY", "hunter2canary" * 3)
    monkeypatch.setenv("OPENAI_API_KEY", "hunter2canary")

    async def work(made: Readers) -> None:
        process = psutil.Process(await made.run("acme", os.getpid))
        assert "hunter2canary" not in f"{process.environ()} {process.cmdline()}"
        assert process.nice() == min(19, psutil.Process().nice() + FAR_BEHIND)

    readers(work)


def test_one_that_was_killed_is_replaced(tmp_path: Path) -> None:
    async def work(made: Readers) -> None:
        first = await made.run("acme", os.getpid)
        os.kill(first, signal.SIGKILL)
        assert await made.run("acme", os.getpid) != first
        with pytest.raises(Refused, match="killed") as refused:
            await made.run("acme", os._exit, 1)
        assert (refused.value.status, refused.value.code) == (503, "reader_ended")
        assert refused.value.headers == {"Retry-After": "6"}

    readers(work)


def test_work_that_is_cancelled_ends_its_process(tmp_path: Path) -> None:
    async def work(made: Readers) -> None:
        pid = await made.run("acme", os.getpid)
        task = asyncio.create_task(made.run("acme", until, tmp_path / "begun", tmp_path / "never"))
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await made.run("acme", os.getpid) != pid

    readers(work)


def test_idle_ones_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.api.readers.IDLE_S", 0.05)

    async def work(made: Readers) -> None:
        process = psutil.Process(await made.run("acme", os.getpid))
        until_s = time.monotonic() + 60
        while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until_s
            await asyncio.sleep(0.02)

    readers(work)


def test_what_the_work_raises_arrives(tmp_path: Path) -> None:
    async def work(made: Readers) -> None:
        how = entries.How(1000, False, tmp_path)
        for body, error in (
            (b"[1]", Refused), (b'{"text": 1}', Invalid), (b"{}", InputInvalid),
            (json.dumps({"text": "a", "meta": {"k": "x" * 70_000}}).encode(), InputTooLarge),
        ):  # fmt: skip
            with pytest.raises(error) as there:
                await made.run("acme", entries.of_json, body, how)
            with pytest.raises(error) as here:
                entries.of_json(body, how)
            assert (str(there.value), there.value.code) == (str(here.value), here.value.code)
        with pytest.raises(RuntimeError, match="ZeroDivisionError: a bug"):
            await made.run("acme", fail)
        with pytest.raises(FileNotFoundError):
            await made.run("acme", entries.of_json, tmp_path / "gone", how)

    readers(work)


def test_a_process_that_was_taken_over_runs_nothing_in_the_server(tmp_path: Path) -> None:
    forged = pickle.dumps((True, Touching(tmp_path / "run")))

    async def work(made: Readers) -> None:
        await made.run("acme", take_over, forged)
        with pytest.raises(Refused) as refused:
            await made.run("acme", os.getpid)
        assert (refused.value.status, refused.value.code) == (503, "reader_ended")
        assert not (tmp_path / "run").exists()
        assert await made.run("acme", os.getpid), "another process reads the next body"

    readers(work)


CONTENT = ["text", b"a"]


@pytest.mark.parametrize(
    "said",
    [
        {"asking": [["notes", {"content": ["text", "../../etc/passwd"]}]], "request": ""},
        {"asking": [["notes", {"path": "/etc/passwd"}]], "request": ""},
        {"asking": [["notes", {"org": "zeta", "content": CONTENT}]], "request": ""},
        {"asking": [["notes", {"content": ["script", b"a"]}]], "request": ""},
        {"asking": [["notes", {"content": CONTENT, "priority": "high"}]], "request": ""},
        {"asking": [["notes", {"content": CONTENT, "run_at": "never"}]], "request": ""},
        {"asking": [["notes"]], "request": ""},
        {"token": ["whole", "one"], "job": None, "output": CONTENT},
        {"raised": "SystemExit", "with": ["", ""]},
        {"raised": "Refused", "with": [200, "fine", "nothing is wrong"]},
        {"raised": "Invalid", "with": [[[[None], "wrong"]], 0]},
        {"other": 1},
        [],
    ],
)
def test_an_answer_that_no_honest_process_gives_is_refused(said: Any, tmp_path: Path) -> None:
    with pytest.raises(Malformed):
        answers.decode(wire.encode(said), tmp_path)


def test_all_that_a_body_can_ask_comes_through(tmp_path: Path) -> None:
    async def work(made: Readers) -> None:
        how = entries.How(100_000, True, tmp_path)
        asked = {
            "text": "x" * 50_000, "name": "ü", "type": "markdown", "collection": "c", "key": "k", "dedupe": False,
            "run_at": "2030-01-02T03:04:05.678901+02:00", "attempts": 3, "priority": -5, "delay_s": 1.5,
            "meta": {"a": [1, None]}, "pipeline": "notes",
        }  # fmt: skip
        bulk = json.dumps(
            {"documents": [asked, {"json": [1.5], "pipeline": "notes"}, {"url": "http://x/"}]}
        ).encode()
        finish = json.dumps({"token": 2**70, "job": "j", "output": ["y" * 50_000]}).encode()
        (tmp_path / "body").write_bytes(b"raw")
        form = Received(room=tmp_path, fields={"name": "a.pdf"}, path=tmp_path / "body", digest="d")
        for read, body in ((entries.of_bulk, bulk), (entries.of_finish, finish), (entries.of_form, form)):
            there = await made.run("acme", read, body, how, room=tmp_path)  # type: ignore[arg-type]
            assert there == read(body, how)  # type: ignore[arg-type]

    readers(work)


# --- threads --------------------------------------------------------------------------------------


def test_a_server_has_threads_for_others_while_many_files_are_written() -> None:
    async def run() -> None:
        serve.use_many_threads()
        go_on = threading.Event()
        writing = [asyncio.create_task(asyncio.to_thread(go_on.wait, 90)) for _ in range(serve.THREADS // 2)]
        await asyncio.to_thread(len, "nobody waits")
        assert not any(one.done() for one in writing)
        go_on.set()
        await asyncio.gather(*writing)

    asyncio.run(run())
