"""A vision service is asked with a small picture, believed in its form only, and done without where there is none."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from PIL import Image
from pydantic import TypeAdapter

from perdure.calls import presets
from perdure.errors import CallRefused, DependencyDown, Transient
from perdure.pipelines.image import describe as module
from perdure.pipelines.image.describe import (
    Described,
    Vision,
    adescribe,
    describe,
    fallback,
    read,
    searchable,
    vision,
)
from perdure.pipelines.image.facts import facts
from perdure.pipelines.image.metadata import FALLBACK, Metadata
from perdure.pipelines.image.variants import preview
from perdure.settings import Settings
from tests.calls.making import World
from tests.calls.openai_server import Fault, OpenAIServer
from tests.pipelines.image.making import corners, exif, photo, stored

SEEN: dict[str, Any] = {
    "description": "Four coloured fields",
    "detailedDescription": "A rectangle of four fields: red, green, blue and yellow.",
    "tags": ["fields", "colour", "Fields", "abstract"],
    "categories": ["graphics"],
    "objects": ["rectangle"],
    "colors": {"dominant": ["red", "green"], "palette": ["red", "green", "blue", "yellow"]},
    "mood": "bright",
    "style": "flat",
    "composition": {"orientation": "landscape", "subject": "four fields", "background": "none"},
}


def said(content: Any) -> Fault:
    """What the service answers."""
    text = json.dumps(content) if isinstance(content, dict) else content
    return Fault(body={"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    policy = World().policy("vision", retries=3)
    monkeypatch.setattr(module, "policy", lambda google=False: policy)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with OpenAIServer() as running:
        running.always = said(SEEN)
        yield running


@pytest.fixture(params=["plain", "awaited"])
def ask(request: pytest.FixtureRequest, server: OpenAIServer) -> Callable[[], Described]:
    """Both ways to ask."""
    settings = Settings(vision_url=server.url, vision_model="seer", vision_key="secret")
    if request.param == "plain":
        return lambda: describe(b"jpeg", settings)
    return lambda: asyncio.run(adescribe(b"jpeg", settings))


def test_the_fallback_is_exactly_this_record() -> None:
    assert fallback().metadata.record() == {
        "description": "Image uploaded successfully. AI metadata generation pending.",
        "detailedDescription": "Detailed description will be generated soon.",
        "tags": ["unprocessed"],
        "categories": ["uncategorized"],
        "objects": [],
        "colors": {"dominant": [], "palette": []},
        "mood": "unknown",
        "style": "unknown",
        "composition": {"orientation": "landscape", "subject": "unknown", "background": "unknown"},
        "searchableText": "unprocessed uncategorized",
    }
    assert fallback().degraded
    assert json.loads(TypeAdapter(Metadata).dump_json(FALLBACK)) == FALLBACK.record()


def test_without_a_service_the_fallback_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERDURE_VISION_URL", raising=False)

    assert vision() is None
    assert describe(b"jpeg") == asyncio.run(adescribe(b"jpeg")) == fallback()


def test_what_the_service_sees_is_kept(ask: Callable[[], Described], server: OpenAIServer) -> None:
    found = ask()

    assert (found.degraded, found.model) == (False, "seer")
    record = found.metadata.record()
    text = record.pop("searchableText")
    assert record == {**SEEN, "tags": ["fields", "colour", "abstract"]}
    assert all(
        word in text for word in ("Four coloured fields", "abstract", "graphics", "rectangle", "bright")
    )
    (request,) = server.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer secret"
    assert (request.body["model"], request.body["response_format"]) == ("seer", {"type": "json_object"})


def test_a_small_jpeg_is_sent_and_not_the_original(server: OpenAIServer) -> None:
    source = stored(photo(2000, 500), exif=exif(Artist="SECRET"))

    Vision(server.url, "seer").describe(preview(source))

    picture = server.requests[0].body["messages"][-1]["content"][1]["image_url"]["url"]
    kind, _, content = picture.partition(",")
    sent = base64.b64decode(content)
    assert kind == "data:image/jpeg;base64"
    assert Image.open(io.BytesIO(sent)).size == (1024, 256)
    assert b"SECRET" not in sent
    assert "authorization" not in server.requests[0].headers


def test_the_key_is_that_of_openai_if_none_is_set(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "usual")

    describe(b"jpeg", Settings(vision_url=server.url + "/"))

    assert server.requests[0].headers["authorization"] == "Bearer usual"
    assert server.requests[0].path == "/v1/chat/completions"


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(SEEN),
        f"```json\n{json.dumps(SEEN, indent=2)}\n```",
        f"Here it is:\n```\n{json.dumps(SEEN)}\n```\nAnything else?",
    ],
)
def test_json_is_found_in_a_fence_or_without_one(text: str) -> None:
    assert read(text).description == "Four coloured fields"


INVALID = [
    "", "   ", "I cannot help with that.", "{", "[1, 2]", "null", "{}", '{"description": "a"}', '{"tags": ["a"]}',
    '{"description": "", "tags": ["a"]}', '{"description": "a", "tags": []}', '{"description": "a", "tags": "b"}',
    '{"description": "a", "tags": [1, null]}', '{"description": ["a"], "tags": ["b"]}',
    '{"description": "\\u0000 ", "tags": ["b"]}', '{"a":' * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("text", INVALID)
def test_an_answer_without_the_form_is_refused(text: str) -> None:
    with pytest.raises(Transient) as error:
        read(text)
    assert error.value.code == "answer_invalid"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>", b"[]", b"null", b"{}", {"choices": []}, {"choices": [{"message": {"content": None}}]},
        {"choices": [{"message": {"refusal": "no"}}]}, b'{"choices":' * 100_000, b'"' + b"x" * (1 << 20) + b'"',
    ],
)  # fmt: skip
def test_what_is_no_completion_is_asked_for_once_more(
    ask: Callable[[], Described], server: OpenAIServer, body: Any
) -> None:
    server.script.extend([Fault(body=body)])

    assert not ask().degraded
    assert len(server.requests) == 2


def test_twice_an_answer_that_cannot_be_used_is_an_error(
    ask: Callable[[], Described], server: OpenAIServer
) -> None:
    server.always = said("I cannot help with that.")

    with pytest.raises(CallRefused) as error:
        ask()

    assert error.value.code == "answer_invalid"
    assert len(server.requests) == 2


def test_an_answer_in_parts_is_read(ask: Callable[[], Described], server: OpenAIServer) -> None:
    whole = json.dumps(SEEN)
    server.always = said([{"type": "text", "text": whole[:40]}, {"type": "text", "text": whole[40:]}])

    assert ask().metadata.mood == "bright"


def test_faults_that_pass_are_retried(ask: Callable[[], Described], server: OpenAIServer) -> None:
    server.script.extend([Fault(503), Fault(reset=True), Fault(429, headers={"retry-after": "1"})])

    assert not ask().degraded
    assert len(server.requests) == 4


def test_what_no_retry_can_help_is_asked_once(ask: Callable[[], Described], server: OpenAIServer) -> None:
    server.always = Fault(401)

    with pytest.raises(httpx2.HTTPStatusError):
        ask()

    assert len(server.requests) == 1


def test_a_service_that_is_away_opens_its_breaker(server: OpenAIServer) -> None:
    server.always = Fault(500)
    service = Vision(server.url, "seer")
    for _ in range(5):
        with pytest.raises((httpx2.HTTPStatusError, DependencyDown)):
            service.describe(b"jpeg")
    asked = len(server.requests)

    with pytest.raises(DependencyDown) as error:
        service.describe(b"jpeg")

    assert error.value.name == "vision"
    assert len(server.requests) == asked


def test_the_policy_is_like_that_of_openai_with_a_state_of_its_own() -> None:
    policy, like = module.policy(), presets.openai()

    assert (policy.name, policy.retries, policy.attempt_s) == ("vision", like.retries, 600)
    assert policy.dependency is not like.dependency


def test_a_service_of_google_is_called_with_the_numbers_of_google_vision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_VISION_RETRY_MAX", "7")
    presets.google_vision.cache_clear()
    module.policy.cache_clear()
    try:
        google = "https://generativelanguage.googleapis.com/v1beta/openai"
        assert module.Vision(google, "m")._policy.retries == 7
        for other in ("https://api.openai.com/v1", "https://notgoogleapis.com/v1"):
            assert module.Vision(other, "m")._policy.retries == presets.openai().retries
    finally:
        presets.google_vision.cache_clear()
        module.policy.cache_clear()


def test_only_known_fields_of_limited_length_are_kept() -> None:
    hostile = {
        **SEEN,
        "description": "line one\nSYSTEM:\u0000 drop\tall " + "x" * 9_000,
        "tags": [f"tag {n} " + "y" * 500 for n in range(500)] + [{"name": "z"}, 7, None],
        "objects": [{"name": "dog", "box": [1, 2]}, {"evil": 1}, ["nested"]],
        "colors": "red",
        "composition": ["landscape"],
        "mood": {"html": "<script>"},
        "degraded": True,
        "__proto__": {"admin": True},
    }

    found = read(json.dumps(hostile)).record()

    assert set(found) == set(FALLBACK.record())
    assert found["description"].startswith("line one SYSTEM: drop all xxx")
    assert len(found["description"]) == 500
    assert len(found["tags"]) == 40
    assert max(map(len, found["tags"])) <= 80
    assert found["objects"] == ["dog"]
    assert (found["mood"], found["colors"]) == ("unknown", {"dominant": [], "palette": []})
    assert found["composition"] == {"orientation": "unknown", "subject": "unknown", "background": "unknown"}
    assert len(found["searchableText"]) <= 4_000


def test_a_short_answer_is_filled_up() -> None:
    found = read('{"description": "A dog", "tags": ["dog"]}')

    assert (found.detailedDescription, found.categories) == ("A dog", ("uncategorized",))
    assert found.searchableText == "A dog dog uncategorized"


def test_searchable_text_has_what_was_seen_and_what_is_known() -> None:
    tags = exif(Make="Canon", Model="EOS", DateTimeOriginal="2024:05:06 07:08:09")
    known = facts(stored(corners(), "JPEG", exif=tags))

    text = searchable(read(json.dumps(SEEN)), known)

    assert "A rectangle of four fields" in text
    assert all(word in text for word in ("landscape", "Canon EOS", "2024-05-06", "abstract"))
    degraded = searchable(FALLBACK, known)
    assert degraded.startswith("unprocessed uncategorized landscape")
    assert "generated soon" not in degraded
