"""A real RabbitMQ, workers and a service: each is killed or stopped while events flow, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import ChannelNotFoundEntity

from perdure import Perdure
from perdure.core.fingerprint import digest
from perdure.engine.handing import EXCHANGE
from perdure.settings import Settings
from perdure.store.records import OutboxRecord
from perdure.watch.broker import DEAD_QUEUE, Broker, declare_exchange
from tests.faults.elsewhere import DONE, EVENT, archives, remote
from tests.faults.fleet import ROOT, Fleet
from tests.faults.process import WorkerProcess
from tests.faults.rabbit import Rabbit

T = TypeVar("T")
APP = "tests.faults.elsewhere:app"
QUEUES = ("parser", "archive-parser", "perdure.answers.remote", "perdure.answers.archives", DEAD_QUEUE)


@pytest.fixture(scope="module")
def broker() -> Iterator[Rabbit]:
    with Rabbit() as started:
        yield started


@pytest.fixture
def rabbit(broker: Rabbit) -> Rabbit:
    """The broker without what earlier tests left in it."""
    _on(broker, _delete_queues)
    return broker


async def _delete_queues(channel: AbstractChannel) -> None:
    for name in QUEUES:
        await channel.queue_delete(name)


def _on(rabbit: Rabbit, act: Callable[[AbstractChannel], Awaitable[T]]) -> T:
    """Do something on a channel of the broker."""

    async def doing() -> T:
        connection = await Broker(Settings(rabbitmq_host="127.0.0.1", rabbitmq_port=rabbit.port)).connect()
        async with connection:
            return await act(await connection.channel())

    return asyncio.run(doing())


def _start(fleet: Fleet, rabbit: Rabbit) -> WorkerProcess:
    """A worker that knows the broker."""
    return fleet.run(["-m", "perdure", "worker", APP, "--concurrency", "5"], rabbit.variables)


class Scene:
    """Workers and a service on one broker, and the documents that go through them."""

    def __init__(self, fleet: Fleet, rabbit: Rabbit) -> None:
        self.fleet, self.rabbit = fleet, rabbit
        self.app = Perdure(fleet.url, pipelines=[remote])
        self.ids: dict[str, str] = {}
        self.workers = [self.worker(), self.worker()]
        self.service = self.serve()

    def worker(self) -> WorkerProcess:
        return _start(self.fleet, self.rabbit)

    def serve(self) -> WorkerProcess:
        return self.fleet.run(["-m", "tests.faults.elsewhere"], self.rabbit.variables)

    def add(self, count: int) -> None:
        names = [f"document {len(self.ids) + n}" for n in range(count)]
        with self.app as app:
            added = app.add_many([{"text": name, "name": name} for name in names], pipeline=remote)
        self.ids |= {name: answer.id for name, answer in zip(names, added, strict=True)}

    @property
    def done(self) -> int:
        return int(self.fleet.query("SELECT count(*) FROM document WHERE state = 'done'")[0][0])

    @property
    def outbox(self) -> OutboxRecord:
        return self.fleet.ask(self.fleet.app.store.outbox_state())

    def wait_done(self, count: int, within_s: float = 60.0) -> None:
        self.fleet.wait(lambda: self.done >= count, f"{count} documents to be done", within_s, 0.1)

    def kill_worker(self, number: int) -> None:
        """The supervisor and its child at once; another one takes its place."""
        self.workers[number].signal(signal.SIGKILL)
        self.workers[number].process.wait()
        self.workers[number] = self.worker()

    def kill_service(self) -> None:
        self.service.kill()
        self.service = self.serve()

    def check(self) -> None:
        """Each document done by one answer; every attempt was heard; nothing is left anywhere."""
        self.wait_done(len(self.ids))
        self.fleet.wait(lambda: self.outbox.waiting == 0, "the outbox to be empty")
        heard = Counter(
            line.split("\t")[0] for line in (self.fleet.directory / "heard").read_text().splitlines()
        )
        with self.app as app:
            for name, id_ in self.ids.items():
                attempts = app.attempts(id_)
                answered = [a for a in attempts if a.outcome == "answered"]
                assert len(answered) == 1, [(a.outcome, a.why) for a in attempts]
                assert all(a.outcome in ("answered", "done", "later") for a in attempts)
                event = digest("default", f"doc-{id_}", 1, answered[0].claim, "parse", EVENT)
                assert heard.pop(event, 0) >= 1, f"{name} was answered, but its event was not heard"
                assert app.output(id_, "store") == name.upper()
        assert not heard, "events of attempts that nobody knows of"
        effects = self.fleet.query("SELECT document, count(*) FROM effect GROUP BY document")
        assert sorted(effects) == sorted((name, 1) for name in self.ids)
        # answers that came twice may still be on their way
        self.fleet.wait(lambda: not _on(self.rabbit, _left), "the queues to be empty", look_s=0.5)


async def _left(channel: AbstractChannel) -> dict[str, int]:
    """Messages that are ready in any queue."""
    counts: dict[str, int] = {}
    for name in ("perdure.answers.remote", "perdure.answers.archives", DEAD_QUEUE):
        queue = await channel.declare_queue(name, passive=True)
        if queue.declaration_result.message_count:
            counts[name] = queue.declaration_result.message_count
    return counts


@pytest.mark.timeout(1_800)
def test_broker_relay_and_service_are_killed_while_events_flow(fleet: Fleet, rabbit: Rabbit) -> None:
    scene = Scene(fleet, rabbit)
    scene.add(30)
    scene.wait_done(10)
    rabbit.kill()
    scene.add(30)
    fleet.wait(lambda: scene.outbox.reason is not None, "the outbox to say why it waits")
    assert "RabbitMQ at 127.0.0.1" in str(scene.outbox.reason)
    scene.kill_worker(0)
    rabbit.start()
    scene.kill_service()
    scene.add(30)
    scene.wait_done(60)
    scene.kill_worker(1)
    scene.check()


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", [1, 2])
def test_many_deaths_in_any_order(fleet: Fleet, rabbit: Rabbit, seed: int) -> None:
    rng = random.Random(seed)
    scene = Scene(fleet, rabbit)
    for _ in range(12):
        scene.add(rng.randrange(10, 60))
        match rng.choice(("stop", "kill", "worker", "service", "worker", "service")):
            case "stop":
                rabbit.stop()
                rabbit.start()
            case "kill":
                rabbit.kill()
                rabbit.start()
            case "worker":
                scene.kill_worker(rng.randrange(2))
            case "service":
                scene.kill_service()
    scene.wait_done(len(scene.ids), 300)
    scene.check()


def test_events_wait_until_somebody_listens_and_nobody_is_charged(fleet: Fleet, rabbit: Rabbit) -> None:
    _start(fleet, rabbit)
    with Perdure(fleet.url, pipelines=[remote]) as app:
        id_ = app.add(text="a", name="a", pipeline=remote).id
        fleet.wait(
            lambda: (
                "no queue takes ArchiveIngested" in str(app._call(app.service.store.outbox_state()).reason)
            ),
            "the outbox to say that nobody listens",
        )
        assert app.status(id_).remote
        fleet.run(["-m", "tests.faults.elsewhere"], rabbit.variables)
        fleet.wait(lambda: app.status(id_).state == "done", "the document to be done")
        assert app.status(id_).attempts_made == 1


def test_what_a_service_never_got_is_found_by_the_stuck_sweep_and_told_again_under_another_id(
    local_fleet: Fleet, rabbit: Rabbit
) -> None:
    fleet, often = (
        local_fleet,
        {"RETRY_JOB_INTERVAL_SECONDS": "1", "RETRY_JOB_STUCK_THRESHOLD_HOURS": "0.001"},
    )
    _on(rabbit, _listening)
    fleet.run(["-m", "perdure", "worker", APP], {**rabbit.variables, **often})
    with Perdure(fleet.url, pipelines=[remote]) as app:
        id_ = app.add(text="a", name="a", pipeline=remote, collection="archives").id
        first = _on(rabbit, _next_event)
        # the event may be here before that
        begun = "SELECT 1 FROM job WHERE lease_until_ms IS NOT NULL AND remote IS NOT NULL"
        fleet.wait(lambda: bool(fleet.query(begun)), "the lease to begin")
        # the broker lost it, and the store is as it was before the lease began
        fleet.query("UPDATE job SET lease_until_ms = NULL")
        second = _on(rabbit, _next_event)
        assert first["id"] != second["id"]
        assert [(event["document_id"], event["attempt"]) for event in (first, second)] == [(id_, 1), (id_, 2)]
        told = app._call(app.service.store.retry_job())
        assert (told.requeued["archives"], told.max_retries_exceeded["archives"]) == (1, 0)
        assert app.remote_finish(id_, first["token"], {"text": "late"}) != "saved"
        assert app.remote_finish(id_, second["token"], {"text": "A"}) == "saved"
        fleet.wait(lambda: app.status(id_).state == "done", "the document to be done")
        assert app.output(id_, "store") == "A"


async def _listening(channel: AbstractChannel) -> None:
    """The queue of a service that takes nothing yet."""
    exchange = await declare_exchange(channel)
    await (await channel.declare_queue("parser", durable=True)).bind(exchange, EVENT)


async def _next_event(channel: AbstractChannel) -> dict[str, Any]:
    queue = await channel.get_queue("parser")
    for _ in range(600):
        if (message := await queue.get(fail=False)) is not None:
            await message.ack()
            event: dict[str, Any] = json.loads(message.body)
            return event
        await asyncio.sleep(0.1)
    raise AssertionError("no event came")


def test_what_cannot_be_understood_is_set_aside_with_its_reason(local_fleet: Fleet, rabbit: Rabbit) -> None:
    wrong = [b"not json", b"[]", b"{}", b'{"document_id": "x", "token": "5"}', b'{"document_id": "x"}',
             b'{"document_id": "nobody", "token": "5", "output": {}}']  # fmt: skip
    _start(local_fleet, rabbit)

    async def publish(channel: AbstractChannel) -> list[str]:
        await _until_heard(channel)
        exchange = await channel.get_exchange(EXCHANGE)
        for body in wrong:
            await exchange.publish(aio_pika.Message(body), DONE)
        # our own question under the name of an answer: no business of this stage
        await exchange.publish(aio_pika.Message(b"{}", app_id=EXCHANGE), DONE)
        dead = await channel.get_queue(DEAD_QUEUE)
        reasons: list[str] = []
        while len(reasons) < 2 * len(
            wrong
        ):  # both pipelines are answered by this event, and neither knows whose it is
            message = await dead.get(timeout=20, fail=False)
            if message is not None:
                await message.ack()
                reasons.append(str(message.headers["reason"]))
            await asyncio.sleep(0.05)
        assert (await dead.get(fail=False)) is None
        assert await _left(channel) == {}
        return sorted(reasons)

    reasons = _on(rabbit, publish)
    assert [reason.partition(":")[0] for reason in reasons] == ["document_unknown"] * 2 + [
        "input_invalid"
    ] * 10


async def _until_heard(channel: AbstractChannel) -> None:
    """Wait until the workers consume answers: a queue that is declared may not be bound yet."""
    for _ in range(1000):
        with suppress(ChannelNotFoundEntity):
            queues = [
                await channel.get_queue(f"{EXCHANGE}.answers.{name}") for name in ("remote", "archives")
            ]
            if all(queue.declaration_result.consumer_count for queue in queues):
                return
        await asyncio.sleep(0.1)
        await channel.reopen()
    raise AssertionError("no worker consumes the answers")


@pytest.mark.parametrize("language", ["python", pytest.param("node", marks=pytest.mark.long)])
def test_the_examples_answer(local_fleet: Fleet, rabbit: Rabbit, tmp_path: Path, language: str) -> None:
    fleet = local_fleet
    example = ROOT / "examples" / f"remote_consumer.{'py' if language == 'python' else 'mjs'}"
    if language == "python":
        fleet.run([str(example)], rabbit.variables)
        process = None
    else:
        subprocess.run(
            ["npm", "install", "--silent", "--prefix", tmp_path, "amqplib@2"], check=True, timeout=120
        )
        (tmp_path / example.name).write_bytes(example.read_bytes())
        environment = {**os.environ, **rabbit.variables}
        process = subprocess.Popen(["node", example.name], cwd=tmp_path, env=environment)
    try:
        _start(fleet, rabbit)
        with Perdure(fleet.url, pipelines=[archives]) as app:
            ids = [app.add(text=f"From {n}\nFrom b\n", pipeline=archives).id for n in range(20)]
            fleet.wait(
                lambda: all(app.status(id_).state == "done" for id_ in ids), "the example to answer all"
            )
            assert all(app.output(id_, "parse") == {"messages": 2} for id_ in ids)
    finally:
        if process is not None:
            process.kill()
            process.wait()
