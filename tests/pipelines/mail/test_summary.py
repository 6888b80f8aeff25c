"""A summary says how it was made: word for word from the thread, or by a model whose answer was looked at."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import SettingInvalid, Transient
from perdure.pipelines.mail.archive import open_archive
from perdure.pipelines.mail.chunks import message_chunks, message_markdown, thread_chunks, thread_markdown
from perdure.pipelines.mail.message import Message, decode
from perdure.pipelines.mail.summary import ASKED_CHARS_MAX, ChatEndpoint, chat_endpoint, extractive
from perdure.settings import Settings
from perdure.testing import no_wait
from tests.calls.openai_server import Fault, OpenAIServer
from tests.pipelines.mail.corpus import corpus


def mail(sender: str, text: str, hour: int = 8) -> Message:
    return decode(
        f"From: {sender}\nSubject: Release\nDate: Mon, 1 Jan 2024 {hour:02}:00:00 +0000\n"
        f"Content-Type: text/plain; charset=utf-8\n\n{text}\n".encode()
    )


THREAD = [
    mail(
        "ada@x.example", "We plan the release for Friday. The tests of the queue are green. Lunch was good."
    ),
    mail(
        "bob@x.example",
        "> We plan the release for Friday.\n\nThe release needs the queue tests on Friday first.",
        9,
    ),
    mail("ada@x.example", "The queue tests for the release are done on Friday morning. Thanks.", 10),
]


def test_an_extractive_summary_is_made_of_what_was_said() -> None:
    found = extractive(THREAD)

    assert found.method == "extractive"
    assert found.sentences[:2] == ("We plan the release for Friday.", "The tests of the queue are green.")
    assert "The release needs the queue tests on Friday first." in found.sentences
    said = " ".join(" ".join(message.own.split()) for message in THREAD)
    assert all(sentence in said for sentence in found.sentences)
    assert (found.participants, found.messages) == (("ada@x.example", "bob@x.example"), 3)
    assert (found.first, found.last) == (THREAD[0].date, THREAD[2].date)
    assert extractive(THREAD) == found


def test_what_has_no_sentence_has_no_summary_but_facts() -> None:
    assert extractive([]).sentences == ()
    silent = extractive([mail("ada@x.example", "ok")])
    assert (silent.sentences, silent.messages, silent.text) == ((), 1, "")


def test_the_most_central_sentences_are_chosen() -> None:
    talk = [mail("a@x.example", "Hello to all of you here. Let us begin it now, please.")]
    talk += [
        mail("b@x.example", f"The broken pump of station {n} must be replaced.")
        for n in ("one", "two", "three")
    ]
    talk += [mail("c@x.example", "Completely unrelated gossip concerning somebody's wonderful holiday.")]

    found = extractive(talk).sentences
    assert len(found) == 5
    assert sum("pump" in sentence for sentence in found) == 3


def test_a_model_is_asked_with_the_key_of_the_request() -> None:
    with OpenAIServer() as server:
        service = ChatEndpoint(server.url, "small", "secret")
        found = service.summarise(THREAD, idempotency_key="thread-1")
        awaited = asyncio.run(service.asummarise(THREAD, idempotency_key="thread-1"))

        first = server.requests[0]
        assert first.path == "/v1/chat/completions"
        headers = {name.lower(): value for name, value in first.headers.items()}
        assert (headers["idempotency-key"], headers["authorization"]) == ("thread-1", "Bearer secret")
        assert "The release needs the queue tests" in first.body["messages"][1]["content"]
        assert "> We plan" not in first.body["messages"][1]["content"]
    assert (found.method, found.model, found.messages) == ("model", "small", 3)
    assert awaited == found


def test_a_retry_is_the_same_request() -> None:
    with OpenAIServer([Fault(503), Fault(reset=True)]) as server, no_wait():
        ChatEndpoint(server.url, "small").summarise(THREAD, idempotency_key="k")

        assert len(server.requests) == 3
        keys = [
            value
            for request in server.requests
            for name, value in request.headers.items()
            if name.lower() == "idempotency-key"
        ]
        assert keys == ["k"] * 3
        assert server.requests[0].body == server.requests[2].body


def test_a_long_thread_is_shown_in_part_and_says_so() -> None:
    long = [mail(f"u{n}@x.example", f"Message {n} says. " + "word " * 400) for n in range(60)]
    with OpenAIServer([Fault(body=said("Words."))]) as server:
        ChatEndpoint(server.url, "small").summarise(long, idempotency_key="k")
        material = server.requests[0].body["messages"][1]["content"]

    assert len(material) < ASKED_CHARS_MAX + 1_000
    assert "Message 0 says" in material
    assert "Message 59 says" in material
    assert (
        material.count(" says. ") + int(material.partition(" messages are left out")[0].rpartition("(")[2])
        == 60
    )


def said(content: Any, reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}, "finish_reason": reason}]}


@pytest.mark.parametrize(
    "answer",
    [{}, [], {"choices": []}, said(None), said(""), said(" \n"), said("1234 !"), said(["a"]), said("x " * 5_000),
     said("Half a", "length"), said("No", "content_filter"), {"choices": [None]}],
)  # fmt: skip
def test_an_answer_that_is_no_summary_is_refused(answer: Any) -> None:
    with OpenAIServer([Fault(body=answer)]) as server, pytest.raises(Transient) as refused:
        ChatEndpoint(server.url, "small").summarise(THREAD, idempotency_key="k")
    assert refused.value.code == "summary_invalid"


def test_settings_choose() -> None:
    assert chat_endpoint(Settings()) is None
    chosen = chat_endpoint(Settings(summary_url="https://host.example/v1", summary_model="m"))
    assert chosen is not None
    assert chosen.model == "m"
    with pytest.raises(SettingInvalid):
        Settings(summary_url="host.example")


def test_chunks_of_a_thread_lead_back_to_their_message() -> None:
    with open_archive(corpus(60).mbox) as archive:
        messages = [decode(entry.data) for entry in archive]
    text, parts = thread_markdown(messages)
    found = thread_chunks(messages, "d", "h")

    assert all(text[chunk.start : chunk.end] == chunk.text for chunk in found)
    starts = {anchor: start for start, anchor, _ in parts}
    assert all(starts[chunk.anchor] <= chunk.start for chunk in found)
    marked = {chunk.anchor for chunk in found if "this is marker00007" in chunk.text}
    assert marked == {"message=8"}
    one = message_chunks(messages[0], "d", "h")
    assert "".join("".join(chunk.text for chunk in one).split()) == "".join(
        message_markdown(messages[0]).split()
    )
