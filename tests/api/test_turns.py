"""While several organisations ask, none has all of the server's time; one that is alone waits for nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from perdure.api import turns
from perdure.api.refused import Refused
from perdure.api.turns import AT_ONCE, MANY, REFUSED_S, TURN, Ending, Turns, owe, pass_on, pay
from tests.api.server import Server
from tests.api.test_connections import dialled


class Asking:
    """Requests that are held until they are ended."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.entered: list[tuple[str, dict[str, Any]]] = []

    def ask(self, org: str) -> asyncio.Task[None]:
        return asyncio.create_task(self._ask(org))

    async def _ask(self, org: str) -> None:
        scope: dict[str, Any] = {}
        await self.turns.take(org, scope)
        self.entered.append((org, scope))

    def number(self, org: str) -> int:
        return [each for each, _ in self.entered].count(org)

    def end(self, org: str) -> None:
        ended = next(one for one in self.entered if one[0] == org)
        self.entered.remove(ended)
        ended[1][TURN].end()


def asking(work: Callable[[Asking], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        async def run() -> None:
            async with asyncio.timeout(20):
                await work(Asking(Turns(lambda: 0.0)))  # time stands still: all of them ask now

        asyncio.run(run())

    return test


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@asking
async def test_who_is_alone_waits_for_nothing(one: Asking) -> None:
    for _ in range(20):
        one.ask("a")
    await settle()

    assert one.number("a") == 20


@asking
async def test_a_request_that_is_cut_off_while_a_turn_passes_it_over_is_cancelled(one: Asking) -> None:
    one.ask("b")
    await settle()
    asked = [one.ask("a") for _ in range(AT_ONCE + 1)]
    await settle()

    asked[-1].cancel()
    one.turns._ended("a")  # before the cancelled request runs again
    await settle()

    assert asked[-1].cancelled()
    assert one.turns.waiting == 0


@asking
async def test_beside_others_two_requests_are_under_way(one: Asking) -> None:
    one.ask("b")
    await settle()
    for _ in range(20):
        one.ask("a")
    await settle()
    assert (one.number("a"), one.turns.waiting) == (AT_ONCE, 18)

    one.ask("b")
    one.ask("c")
    await settle()
    assert (one.number("b"), one.number("c")) == (2, 1)


@asking
async def test_the_next_has_its_turn_after_one_has_ended(one: Asking) -> None:
    one.ask("b")
    await settle()
    tasks = [one.ask("a") for _ in range(9)]
    for task in tasks:
        await task
        assert one.number("a") <= AT_ONCE
        one.end("a")

    assert one.turns.waiting == 0


@asking
async def test_a_request_that_takes_long_keeps_no_other_waiting(one: Asking) -> None:
    one.ask("b")
    await settle()
    tasks = [one.ask("a") for _ in range(4)]
    await asyncio.gather(*tasks)  # though none of them is ended

    assert one.number("a") == 4


@asking
async def test_who_floods_the_server_has_one_request_under_way(one: Asking) -> None:
    one.ask("b")
    await settle()
    tasks = [one.ask("a") for _ in range(MANY + 6)]
    for task in tasks:
        await task
        if one.turns.waiting >= MANY:
            assert one.number("a") <= AT_ONCE - (len(tasks) - one.turns.waiting > AT_ONCE)
        one.end("a")

    assert one.turns.waiting == 0


@asking
async def test_a_flood_of_slow_requests_is_not_let_in_at_once(one: Asking) -> None:
    """A server that is slow because of it would let in the rest, and be slower."""
    one.ask("b")
    await settle()
    for _ in range(100):
        one.ask("a")
    await asyncio.sleep(3.5 * turns.COUNTS_S)

    assert one.number("a") <= AT_ONCE + 2


@asking
async def test_uploads_of_an_organisation_pause_together(one: Asking) -> None:
    one.ask("b")
    await one.ask("a")
    began_s = asyncio.get_running_loop().time()
    await asyncio.gather(*(one.turns.pace("a", 0.02) for _ in range(5)))
    assert asyncio.get_running_loop().time() - began_s >= 5 * 0.02 * turns.PAUSES - 0.02


@asking
async def test_the_next_upload_pays_for_work_beside_the_event_loop(one: Asking) -> None:
    one.ask("b")
    one.ask("a")
    await settle()
    owe(one.entered[-1][1], 0.1)
    upload = asyncio.create_task(one.turns.pace("a", 0.0))
    done, _ = await asyncio.wait({upload}, timeout=0.2)
    assert not done
    await asyncio.wait_for(upload, 5)  # 0.3 s in all


@asking
async def test_a_heavy_body_of_any_size_waits_for_what_is_owed(one: Asking) -> None:
    """A body below 1 MiB never paused, however long the one before was read."""
    one.ask("b")
    one.ask("a")
    await settle()
    scope = one.entered[-1][1]
    owe(scope, 0.1)
    body = asyncio.create_task(pay(scope))
    done, _ = await asyncio.wait({body}, timeout=0.2)
    assert not done
    await asyncio.wait_for(body, 5)


@asking
async def test_a_body_that_a_busy_machine_reads_for_minutes_does_not_cost_minutes(one: Asking) -> None:
    one.ask("b")
    one.ask("a")
    await settle()
    owe(one.entered[-1][1], 100.0)
    assert one.turns.owe("a", 0.0) <= (1 + turns.PAUSES) * turns.OWED_MAX_S


def test_who_asks_too_often_hears_so_later_beside_others(tmp_path: Path) -> None:
    with Server(f"sqlite:///{tmp_path}/perdure.db", api_rate_per_s=2) as server:
        bad, good = server.client("bad"), server.client("good")
        while bad.get("/v3/documents").status_code != 429:
            pass
        good.get("/v3/documents")
        began_s = time.monotonic()
        assert bad.get("/v3/documents").status_code == 429
        assert time.monotonic() - began_s >= REFUSED_S


@asking
async def test_work_of_who_is_alone_costs_nothing(one: Asking) -> None:
    one.turns = Turns()
    one.ask("a")
    await settle()
    owe(one.entered[-1][1], 60.0)
    await asyncio.wait_for(one.turns.pace("a", 1.0), 0.1)


@asking
async def test_who_is_refused_hears_so_later_beside_others(one: Asking) -> None:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await one.turns.take("a", scope)
        await send({"type": "http.response.start", "status": 429, "headers": []})

    async def answered_s() -> float:
        sent_s: list[float] = []

        async def send(message: Message) -> None:
            sent_s.append(time.monotonic())

        began_s = time.monotonic()
        await Ending(refuse)({"type": "http"}, lambda: asyncio.sleep(0), send)  # type: ignore[arg-type,return-value]
        return sent_s[0] - began_s

    one.ask("b")
    await settle()
    assert await answered_s() >= REFUSED_S
    one.turns = Turns()
    assert await answered_s() < REFUSED_S


@asking
async def test_uploads_of_who_is_alone_do_not_pause(one: Asking) -> None:
    await one.ask("a")
    async with asyncio.timeout(1):
        await one.turns.pace("a", 10.0)


@asking
async def test_a_body_is_paced_by_its_megabytes(one: Asking) -> None:
    one.ask("b")
    await one.ask("a")
    scope = one.entered[-1][1]
    began_s = asyncio.get_running_loop().time()
    for _ in range(8):
        await turns.received(scope, turns.PIECE_BYTES // 2, 0.005)
    took_s = asyncio.get_running_loop().time() - began_s
    assert took_s >= turns.PAUSES * (8 * 0.005 + 4 * turns.PIECE_BYTES / turns.PIECE_PER_S) - 0.05
    await turns.received({}, turns.PIECE_BYTES, 9.0)  # of a route that needs no key


@asking
async def test_a_request_that_only_waits_passes_its_turn_on(one: Asking) -> None:
    one.ask("b")
    await settle()
    tasks = [one.ask("a") for _ in range(9)]
    for task in tasks:
        await task
        pass_on(one.entered[-1][1])

    assert (one.number("a"), one.turns.waiting) == (9, 0)
    pass_on({})  # of a route that needs no key


@asking
async def test_a_client_that_went_leaves_its_place(one: Asking) -> None:
    one.ask("b")
    await settle()
    tasks = [one.ask("a") for _ in range(5)]
    await settle()
    tasks[2].cancel()
    await settle()
    assert one.turns.waiting == 2

    for _ in range(AT_ONCE):
        one.end("a")
    tasks[3].cancel()  # perhaps when its turn has just come
    await tasks[4]
    assert one.turns.waiting == 0


@asking
async def test_nothing_is_remembered_of_who_asks_no_more(one: Asking) -> None:
    for org in ("a", "b", "a"):
        await one.ask(org)
    for org in ("a", "b", "a"):
        one.end(org)

    assert one.turns._of == {}


def test_a_request_that_fails_ends_its_turn() -> None:
    ended: list[str] = []

    class Turn:
        def end(self) -> None:
            ended.append("a")

    async def fails(scope: Any, _: Any, __: Any) -> None:
        scope[TURN] = Turn()
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        asyncio.run(Ending(fails)({}, None, None))  # type: ignore[arg-type]
    assert ended == ["a"]


def test_a_server_answers_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "COUNTS_S", 1000.0)  # each turn is given back when its request was answered
    with Server(f"sqlite:///{tmp_path}/perdure.db") as server, ThreadPoolExecutor(16) as threads:
        clients = [server.client(f"org-{n % 3}") for n in range(16)]
        asked = [threads.submit(client.get, "/v3/documents") for client in clients for _ in range(5)]
        asked += [threads.submit(client.get, "/v3/documents/none") for client in clients]
        assert sorted({one.result().status_code for one in asked}) == [200, 404]

        gate = server.app.state.gate
        assert gate._turns.waiting == 0
        until_s = time.monotonic() + 10
        while gate._turns._of and time.monotonic() < until_s:
            time.sleep(0.01)  # a turn is given back after its pause
        assert gate._turns._of == {}


@asking
async def test_so_many_requests_wait_and_more_are_refused(one: Asking) -> None:
    one.ask("b")
    await settle()
    asked = [one.ask("a") for _ in range(1000)]
    await settle()
    assert one.turns.waiting == 100
    assert not any(task.done() and task.exception() for task in asked)  # or a flood would ask again at once

    await asyncio.sleep(1.2 * REFUSED_S)
    refused = [task.exception() for task in asked if task.done() and task.exception() is not None]
    assert len(refused) == 1000 - 100 - AT_ONCE
    assert all(isinstance(error, Refused) and error.status == 429 for error in refused)
    assert isinstance(refused[0], Refused)
    assert int(refused[0].headers["Retry-After"]) >= 1


def test_a_request_whose_client_has_gone_does_not_wait(tmp_path: Path) -> None:
    with Server(f"sqlite:///{tmp_path}/perdure.db") as server:
        key, held = server.key("a"), server.app.state.gate._turns

        async def hold() -> None:
            for org in ("a", "a", "b"):
                await held.take(org, {})
            held._others_ask = lambda *_: True
            held._of["a"].counted += 1000  # no turn comes

        server.run(hold())
        head = f"GET /v3/documents HTTP/1.1\r\nHost: x\r\nX-API-Key: {key}\r\n\r\n".encode()
        clients = [dialled(server.url) for _ in range(20)]
        for client in clients:
            client.sendall(head)
        _until(lambda: held.waiting == 20)
        for client in clients:
            client.close()
        _until(lambda: held.waiting == 0)


def _until(so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 30
    while not so():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_hundreds_of_uploads_share_what_is_theirs() -> None:
    async def run() -> float:
        own, pieces = Turns(), 0

        async def ask() -> None:
            while True:
                for org in ("good", "bad"):
                    await own.take(org, {})
                    own.end(org, 0.0)
                await asyncio.sleep(0.1)

        async def upload() -> None:
            nonlocal pieces
            while True:
                await own.pace("bad", 0.02)
                pieces += 1

        asking = asyncio.create_task(ask())
        await asyncio.sleep(0)
        uploads = [asyncio.create_task(upload()) for _ in range(300)]
        await asyncio.sleep(2.5)  # the old pauses had their longest here
        before, began_s = pieces, time.monotonic()
        await asyncio.sleep(3)
        share = (pieces - before) * 0.02 / (time.monotonic() - began_s)
        for task in (asking, *uploads):
            task.cancel()
        await asyncio.gather(asking, *uploads, return_exceptions=True)
        return share

    assert asyncio.run(run()) <= 0.3


@asking
async def test_no_upload_begins_while_many_pause(one: Asking) -> None:
    one.ask("b")
    await one.ask("a")
    scope = {"type": "http", "headers": [], **one.entered[-1][1]}
    small = {**scope, "headers": [(b"content-length", b"1000")]}
    uploads = [asyncio.create_task(one.turns.pace("a", 1.0)) for _ in range(turns.UPLOADS_MAX - 1)]
    await settle()
    turns.check_uploads(scope)

    uploads.append(asyncio.create_task(one.turns.pace("a", 1.0)))
    await settle()
    with pytest.raises(Refused, match="32 uploads") as refused:
        turns.check_uploads(scope)
    assert (refused.value.status, int(refused.value.headers["Retry-After"]) >= 1) == (429, True)
    turns.check_uploads(small)
    one.turns.check_uploads("b")
    for task in uploads:
        task.cancel()
    await settle()
    turns.check_uploads(scope)
