"""Summaries of threads within the pipeline: by a service that may fail, by the thread's own words, and repaired."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.calls import Dependency, Limiter, Policy, Timing
from perdure.pipelines.mail import summary as module
from perdure.pipelines.mail.pipeline import mails
from perdure.pipelines.mail.thread_pipeline import services, summarise
from perdure.testing import Trial, drain, trial
from tests.calls.openai_server import Fault, OpenAIServer
from tests.pipelines.mail.boxes import letter, mbox
from tests.pipelines.mail.test_pipeline import children, process, summaries

BOX = [letter("ada"), letter("bob", hour=1), letter("cleo", refers=["ada"], hour=2)]


class Calm(Limiter):
    """Sets no limit: the waits of a trial are no time for a policy."""

    __slots__ = ()

    def failed(self, now_s: float) -> None:
        return


async def at_once(_: float) -> None:
    return


@pytest.fixture(autouse=True)
def nearby(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_EMBEDDER", "hashing")


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Policy:
    made = Policy(
        "openai", retries=3, dependency=Dependency("openai", limiter=Calm()), timing=Timing(asleep=at_once)
    )
    monkeypatch.setattr(module, "_policy", lambda key: made.but(key=key, operation="openai.summarise"))
    return made


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, policy: Policy) -> Iterator[OpenAIServer]:
    """A service; a worker that starts after it is named has the stage need it."""
    with OpenAIServer() as made:
        made.always = said("They agreed on it.")
        monkeypatch.setenv("PERDURE_SUMMARY_URL", made.url)
        monkeypatch.setattr(summarise, "needs", services())
        yield made


def said(text: str) -> Fault:
    return Fault(body={"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})


def keys(server: OpenAIServer) -> list[str]:
    return [
        value
        for request in server.requests
        for name, value in request.headers.items()
        if name.lower() == "idempotency-key"
    ]


def methods(app: Trial) -> list[tuple[Any, ...]]:
    return sorted((row["method"], row["degraded"], row["messages"]) for row in summaries(app).values())


def test_without_a_service_summaries_are_the_threads_own_words_and_nothing_is_degraded(
    store_url: str,
) -> None:
    with trial(mails, store=store_url) as app:
        _, account = process(app, mbox(*BOX))
        assert account["threads_degraded"] == 0
        assert methods(app) == [("extractive", False, 1), ("extractive", False, 2)]
        assert not any(one.degraded for one in children(app, "mail-thread"))
        by_thread = {row["subject"]: row for row in summaries(app).values()}
        ada = by_thread["About ada"]
        assert "This is what ada wrote that day." in ada["text"]
        assert ada["participants"] == ["ada@people.example", "cleo@people.example"]
        assert (ada["first"], ada["last"]) == ("2024-03-01T09:00:00Z", "2024-03-01T11:00:00Z")
        found = app.search("what ada wrote", collection="threads")
        assert app.status(found[0].document_id).name == "About ada"


def test_a_service_is_asked_once_for_each_thread(store_url: str, server: OpenAIServer) -> None:
    with trial(mails, store=store_url) as app:
        process(app, mbox(*BOX))
        assert methods(app) == [("model", False, 1), ("model", False, 2)]
        assert len(server.requests) == len(set(keys(server))) == 2
        assert app.search("they agreed", collection="threads")
        process(app, mbox(*BOX, letter("dora", refers=["bob"], hour=3)))
        assert len(server.requests) == len(set(keys(server))) == 3
        assert methods(app) == [("model", False, 2), ("model", False, 2)]


def test_faults_of_the_service_repeat_a_request_under_its_key(store_url: str, server: OpenAIServer) -> None:
    server.script.extend([Fault(503), Fault(reset=True), said("123"), Fault(429)])
    with trial(mails, store=store_url, concurrency=1) as app:
        _, account = process(app, mbox(*BOX))
        assert methods(app) == [("model", False, 1), ("model", False, 2)]
        assert (account["threads_degraded"], account["summaries"]) == (0, 2)
        assert (len(server.requests), len(set(keys(server)))) == (6, 2)


def test_an_outage_degrades_and_is_made_good_later(
    store_url: str, server: OpenAIServer, policy: Policy
) -> None:
    """Its own words stand in; when the service is back each thread is asked for once more, and only once."""
    server.always = Fault(503)
    with trial(mails, store=store_url) as app:
        _, account = process(app, mbox(*BOX))
        assert (account["threads_degraded"], account["threads_dead"], account["summaries"]) == (2, 0, 2)
        assert methods(app) == [("extractive", True, 1), ("extractive", True, 2)]
        asked = len(server.requests)
        server.always = said("They agreed on it.")
        app.release("openai")
        policy.dependency.breaker.reset(time.monotonic())
        drain(app)
        assert len(server.requests) - asked == 2
        assert methods(app) == [("model", False, 1), ("model", False, 2)]
        assert not any(one.degraded for one in children(app, "mail-thread"))
        drain(app)
        assert len(server.requests) - asked == 2


def test_a_service_that_refuses_us_is_asked_once_for_each_thread(server: OpenAIServer) -> None:
    server.always = Fault(401)
    with trial(mails) as app:
        process(app, mbox(*BOX))
        drain(app)
        asked = len(server.requests)
        assert {method for method, *_ in methods(app)} == {"extractive"}
        assert asked == 2 * len(methods(app))  # the thread, and the job that would have repaired its summary


QUOTA = {"error": {"message": "used up", "type": "insufficient_quota", "code": "insufficient_quota"}}


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault(401), "call_unauthorized"),
        (Fault(400), "call_refused"),
        (Fault(429, body=QUOTA), "call_quota"),
    ],
)
def test_a_permanent_error_of_the_service_ends_a_thread_without_fallback_at_once(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, fault: Fault, code: str
) -> None:
    """With its fallback the stage degrades, and the job that would repair the summary ends so."""
    server.always = fault
    with trial(mails) as app:
        process(app, mbox(*BOX))
        drain(app)
        ended = [(one.state, one.degraded) for one in children(app, "mail-thread")]
        assert ended == [("done", True)] * 2
        told = [(one.job, one.error_code, one.attempts) for one in app.dead().documents]
        assert told == [("repair-mail-thread", code, 1)] * 2
    server.requests.clear()
    monkeypatch.setattr(summarise, "substitute", None)
    with trial(mails) as app:
        app.add(data=mbox(*BOX), name="some.mbox", pipeline=mails)
        drain(app)
        threads = children(app, "mail-thread")
        attempts = [(a.error_code, a.outcome) for one in threads for a in app.attempts(one.id)]
        assert [one.state for one in threads] == ["dead"] * 2
        assert attempts == [(code, "dead")] * 2
        assert len(server.requests) == 2
