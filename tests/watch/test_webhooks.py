"""Webhooks are told of everything once it has happened: signed, again after failures, and visibly not at all."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure import Document, Permanent, Pipeline
from perdure.calls.jitter import FullJitter
from perdure.errors import InputInvalid
from perdure.service import AsyncPerdure
from perdure.settings import Settings
from perdure.watch import webhooks
from perdure.watch.signing import sign, verify
from perdure.watch.webhooks import ORG_AT_ONCE, Dispatcher, Tried
from tests.ports import free_ports

notes = Pipeline("notes", attempts=1)


@notes.stage
def read(doc: Document) -> str:
    if doc.text == "bad":
        raise Permanent("not_good", "it is bad")
    return doc.text


class Receiver:
    """An HTTP server that keeps what it was sent and answers as it is told."""

    def __init__(self, *answers: str, slowly: bool = False) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.answered: dict[str, list[bytes]] = defaultdict(list)
        self.open = self.most = 0  # requests at a time
        self._answers, self._slowly = list(answers), slowly

    async def __aenter__(self) -> Receiver:
        self._server = await asyncio.start_server(self._meet, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/hook"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.got.append((headers, body))
        status = self._answers.pop(0) if self._answers else "200 OK"
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0.1 if self._slowly else 0)
        self.open -= 1
        self.answered[status].append(body)
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()


def app(store_url: str) -> AsyncPerdure:
    return AsyncPerdure(store_url, pipelines=[notes], settings=Settings(allow_loopback=True))


async def until(found: Callable[[], Any]) -> Any:
    async with asyncio.timeout(90):
        while not (made := found()):
            await asyncio.sleep(0.02)
    return made


async def told_of(service: AsyncPerdure, url: str, documents: int) -> None:
    """Let a webhook have so many events to be told of."""
    await service.add_webhook(url)
    for n in range(documents):
        await service.add(text=f"{n}", pipeline=notes)
    await service.run_until_idle()


async def dispatched(service: AsyncPerdure, done: Callable[[], Any]) -> None:
    """Run a dispatcher until something holds."""
    task = asyncio.create_task(Dispatcher(service.store, True, poll_s=0.02).run())
    try:
        await until(done)
        await asyncio.sleep(0.1)  # whatever follows of it
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_the_ends_of_documents_are_told_signed_and_once(store_url: str) -> None:
    async def play() -> None:
        service = app(store_url)
        await service.start()
        async with Receiver() as receiver, Receiver() as other:
            hook = await service.add_webhook(receiver.url)
            await service.add_webhook(other.url, org="zeta")
            good = await service.add(text="good", pipeline=notes)
            bad = await service.add(text="bad", pipeline=notes)
            await service.run_until_idle()
            await dispatched(service, lambda: len(receiver.got) >= 2)

            told = {json.loads(body)["event"]: json.loads(body) for _, body in receiver.got}
            assert len(receiver.got) == 2
            assert told["document.done"]["document_id"] == good.id
            assert told["document.dead"]["document_id"] == bad.id
            assert told["document.dead"]["data"]["error"]["code"] == "not_good"
            for headers, body in receiver.got:
                assert verify(hook.secret, headers["perdure-signature"], body)
                assert not verify("other", headers["perdure-signature"], body)
                assert headers["perdure-delivery"] == json.loads(body)["id"]
            assert other.got == []
            counts = await service.store.delivery_counts("default")
            assert counts[hook.id] == {"sent": 2}
        await service.close()

    asyncio.run(play())


def test_a_webhook_that_fails_is_tried_again_under_the_same_id(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "BACKOFF", FullJitter(0.01, 0.01))

    async def play() -> None:
        service = app(store_url)
        await service.start()
        async with Receiver("503 Away", "429 Slowly", "200 OK") as receiver:
            hook = await service.add_webhook(receiver.url, events=["document.done"])
            await service.add(text="good", pipeline=notes)
            await service.run_until_idle()
            await dispatched(service, lambda: len(receiver.got) >= 3)
            assert len({headers["perdure-delivery"] for headers, _ in receiver.got}) == 1
            assert [(d.state, d.tries) for d in await service.deliveries(webhook=hook.id)] == [("sent", 3)]
        await service.close()

    asyncio.run(play())


async def happened_to_one(service: AsyncPerdure, times: int) -> str:
    """One document that ended so many times."""
    id_ = (await service.add(text="bad", pipeline=notes)).id
    for n in range(times):
        await service.run_until_idle()
        if n < times - 1:
            await service.requeue(id_)
    return id_


@pytest.mark.parametrize("answers", [(), ("200 OK", "503 Away", "503 Away")])
def test_events_of_one_document_arrive_in_order(
    store_url: str, monkeypatch: pytest.MonkeyPatch, answers: tuple[str, ...]
) -> None:
    monkeypatch.setattr(webhooks, "BACKOFF", FullJitter(0.3, 0.3))

    async def play() -> None:
        service = app(store_url)
        await service.start()
        async with Receiver(*answers, slowly=True) as receiver:
            await service.add_webhook(receiver.url, events=["document.dead"])
            id_ = await happened_to_one(service, 4)
            await dispatched(service, lambda: len(receiver.answered["200 OK"]) >= 4)
            well = [json.loads(body) for body in receiver.answered["200 OK"]]
            assert {told["document_id"] for told in well} == {id_}
            assert [told["data"]["generation"] for told in well] == [1, 2, 3, 4]
            assert receiver.most == 1
        await service.close()

    asyncio.run(play())


def test_who_leads_and_stands_still_is_not_waited_for(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "NEGLECT_S", 0.3)
    monkeypatch.setattr(webhooks, "FOLLOW_S", 0.02)

    async def play() -> None:
        service, frozen = app(store_url), app(store_url)
        await service.start()
        await frozen.start()
        async with Receiver() as receiver:
            assert await frozen.store.lead_webhooks()
            await service.add_webhook(receiver.url)
            await service.add(text="good", pipeline=notes)
            await service.run_until_idle()
            assert not await service.store.lead_webhooks()
            await dispatched(service, lambda: receiver.got)
            assert len(receiver.got) == 1
        await frozen.close()
        await service.close()

    asyncio.run(play())


def test_what_is_given_up_is_visible_and_can_be_sent_again(store_url: str) -> None:
    async def play() -> None:
        service = app(store_url)
        await service.start()
        async with Receiver("404 Gone") as receiver:
            hook = await service.add_webhook(receiver.url)
            await service.add(text="good", pipeline=notes)
            await service.run_until_idle()
            await dispatched(service, lambda: receiver.got)
            dead = await service.deliveries(state="dead")
            assert [(d.status_code, d.error, d.webhook) for d in dead] == [(404, "answered 404", hook.id)]
            assert await service.retry_deliveries(org="zeta") == 0
            assert await service.acts(verb="webhook-retry") == [], "nothing was done"
            assert await service.retry_deliveries() == 1
            await dispatched(service, lambda: len(receiver.got) == 2)
            assert [d.state for d in await service.deliveries()] == ["sent"]
        await service.close()

    asyncio.run(play())


def test_one_that_is_away_delays_no_other_and_is_told_later(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "BACKOFF", FullJitter(30, 30))

    async def play() -> None:
        service = app(store_url)
        await service.start()
        (nobody,) = free_ports(1)
        async with Receiver() as receiver:
            await service.add_webhook(f"http://127.0.0.1:{nobody}/hook")
            await service.add_webhook(receiver.url)
            for n in range(5):
                await service.add(text=f"{n}", pipeline=notes)
            await service.run_until_idle()
            await dispatched(service, lambda: len(receiver.got) == 5)
            waiting = await service.deliveries(state="waiting")
            assert len(waiting) == 5
            assert "ConnectError" in str(waiting[0].error) or waiting[0].tries == 0
        await service.close()

    asyncio.run(play())


def test_nobody_waits_until_another_has_heard_of_its_backlog(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "BATCH", 2)

    async def play() -> None:
        service = app(store_url)
        await service.start()
        async with Receiver() as receiver:
            for org, documents in (("acme", 9), ("zeta", 1)):
                await service.add_webhook(receiver.url, org=org)
                for n in range(documents):
                    await service.add(text=f"{n}", pipeline=notes, org=org)
            await service.run_until_idle()
            dispatcher = Dispatcher(service.store, True)
            assert await dispatcher.turn()
            assert [len(await service.deliveries(org=org)) for org in ("acme", "zeta")] == [2, 1]
            while await dispatcher.turn():
                pass
            assert [len(await service.deliveries(org=org)) for org in ("acme", "zeta")] == [9, 1]
            await dispatcher._end()
        await service.close()

    asyncio.run(play())


def test_two_dispatchers_send_each_event_once(store_url: str) -> None:
    async def play() -> None:
        service, second = app(store_url), app(store_url)
        await service.start()
        await second.start()
        async with Receiver() as receiver:
            await told_of(service, receiver.url, 20)
            await asyncio.gather(
                dispatched(service, lambda: len(receiver.got) >= 20),
                dispatched(second, lambda: len(receiver.got) >= 20),
            )
            assert (
                len({headers["perdure-delivery"] for headers, _ in receiver.got}) == len(receiver.got) == 20
            )
        await second.close()
        await service.close()

    asyncio.run(play())


def test_an_organisation_with_many_webhooks_has_a_few_requests_and_writes_at_a_time(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        service = app(store_url)
        await service.start()
        async with Receiver() as receiver:
            for _ in range(12):
                await service.add_webhook(receiver.url, org="acme")
            for n in range(4):
                await service.add(text=f"{n}", pipeline=notes, org="acme")
            await service.run_until_idle()
            trying = most = notes_made = 0
            send, note = Dispatcher._post, service.store.end_deliveries

            async def counted(*given: Any) -> Tried:
                nonlocal trying, most
                trying += 1
                most = max(most, trying)
                try:
                    await asyncio.sleep(0.01)
                    return await send(*given)
                finally:
                    trying -= 1

            async def noted(ended: Any) -> None:
                nonlocal notes_made
                notes_made += 1
                await asyncio.sleep(0.05)
                await note(ended)

            monkeypatch.setattr(Dispatcher, "_post", counted)
            monkeypatch.setattr(service.store, "end_deliveries", noted)
            await dispatched(service, lambda: len(receiver.got) >= 48)
            assert len(receiver.got) == 48
            assert most <= ORG_AT_ONCE
            assert notes_made <= 24
        await service.close()

    asyncio.run(play())


def test_what_is_being_sent_at_the_end_is_noted(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes over does not send it again."""

    def slowly(note: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*given: Any, **more: Any) -> None:
            await asyncio.sleep(0.1)
            await note(*given, **more)

        return run

    async def play() -> None:
        service = app(store_url)
        await service.start()
        async with Receiver() as receiver:
            await told_of(service, receiver.url, 9)
            monkeypatch.setattr(service.store, "end_deliveries", slowly(service.store.end_deliveries))
            for _ in range(12):
                before = len(receiver.got)
                task = asyncio.create_task(Dispatcher(service.store, True, poll_s=0.02).run())
                await until(lambda: len(receiver.got) > before or before >= 9)  # noqa: B023
                task.cancel()  # at once, so that nothing of it is noted yet
                await asyncio.gather(task, return_exceptions=True)
            sent = [headers["perdure-delivery"] for headers, _ in receiver.got]
            assert len(set(sent)) == len(sent) == 9
        await service.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://10.0.0.8/x", "address_forbidden"),
        ("http://169.254.169.254/latest", "address_forbidden"),
        ("ftp://example.org", "scheme_forbidden"),
        ("nonsense", "url_invalid"),
    ],
)
def test_addresses_within_the_network_are_refused(tmp_path: Path, url: str, code: str) -> None:
    async def play() -> None:
        service = AsyncPerdure(f"sqlite:///{tmp_path}/perdure.db", pipelines=[notes])
        await service.start()
        with pytest.raises(InputInvalid) as refused:
            await service.add_webhook(url)
        assert refused.value.code == code
        await service.close()

    asyncio.run(play())


def test_a_name_that_leads_into_the_network_is_given_no_connection(tmp_path: Path) -> None:
    async def play() -> None:
        service = AsyncPerdure(f"sqlite:///{tmp_path}/perdure.db", pipelines=[notes])
        await service.start()
        hook = await service.add_webhook("https://example.org/x")
        await service.add(text="good", pipeline=notes)
        await service.run_until_idle()

        async def inside(host: str, port: int) -> list[str]:
            return ["127.0.0.1"]

        task = asyncio.create_task(Dispatcher(service.store, False, inside, 0.02).run())
        async with asyncio.timeout(90):
            while not (dead := await service.deliveries(state="dead", webhook=hook.id)):
                await asyncio.sleep(0.02)
        task.cancel()
        assert "address_forbidden" in str(dead[0].error)
        await service.close()

    asyncio.run(play())


def test_a_signature_is_good_for_its_body_its_secret_and_a_while() -> None:
    header = sign("secret", b"body", 1000)
    assert verify("secret", header, b"body", now_s=1200)
    assert not verify("secret", header, b"body", now_s=1301)
    assert not verify("secret", header, b"other", now_s=1000)
    assert not verify("another", header, b"body", now_s=1000)
    assert not verify("secret", header.replace("t=1000", "t=1100"), b"body", now_s=1100)
    for nonsense in ("", "t=,v1=", "v1=" + "0" * 64, header + ",v1=" + "0" * 64):
        assert not verify("secret", nonsense, b"body", now_s=1000)
    for digits in ("١٠٠٠", "１０００", "1٠00"):  # digits too, but none that we write
        assert not verify("secret", header.replace("t=1000", f"t={digits}"), b"body", now_s=1000)
    assert not verify("secret", header[:-1] + "٣", b"body", now_s=1000)
