"""Somebody moves here from an image queue: the same requests, words, variables and records.

The queue `image-processing` runs five images at a time, three attempts each, 2 and 4 seconds apart. Each image gets
metadata by a vision service, variants and an embedding; while the service is down it has the pending record.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from PIL import Image

from perdure.calls.dependency import forget_all
from perdure.pipelines.document import documents
from perdure.pipelines.image import describe
from perdure.pipelines.image.pipeline import QUEUE, images
from perdure.pipelines.mail.pipeline import mails
from tests.api.server import Server
from tests.calls.openai_server import Fault, OpenAIServer
from tests.engine.test_open import until
from tests.pipelines.image.making import corners, stored
from tests.pipelines.image.test_describe import SEEN, said

PENDING = {
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
PICTURE = stored(corners(640, 400), "JPEG", quality=90)


@pytest.fixture
def vision(monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    monkeypatch.setenv("OPENAI_RETRY_MAX", "0")  # one call, as in the variables of the old system
    describe.policy.cache_clear()
    with OpenAIServer() as server:
        monkeypatch.setenv("PERDURE_VISION_URL", server.url)
        yield server
    describe.policy.cache_clear()
    forget_all()


@pytest.fixture
def shop(store_url: str, vision: OpenAIServer) -> Iterator[Server]:
    with Server(store_url, pipelines=[documents, images, mails]) as running:
        yield running


def uploaded(client: httpx2.Client, content: bytes = PICTURE, name: str = "shop.jpg") -> str:
    answer = client.post("/v3/documents", files={"file": (name, content)})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def worked(server: Server) -> None:
    server.run(server.service.run_until_idle(wait=10))


def polled(client: httpx2.Client, id_: str) -> list[str]:
    """What a program of the old system sees that asks for the status, in its words."""
    found = client.get(f"/v3/documents/{id_}", params={"words": "images"}).json()
    return [found["status"], found["state"]]


def got(client: httpx2.Client, id_: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v3/documents/{id_}").json()
    return found


def test_the_queue_is_as_it_was() -> None:
    assert (QUEUE, images.concurrency) == ("image-processing", 5)
    assert (images.policy.attempts, images.policy.base_ms) == (3, 2_000)
    assert [each.name for each in images.then] == [
        "generate-metadata",
        "generate-variants",
        "generate-embeddings",
    ]


def test_an_image_is_pending_then_completed_with_variants_and_metadata(
    shop: Server, vision: OpenAIServer
) -> None:
    vision.always = said(SEEN)
    client = shop.client("acme")
    id_ = uploaded(client)
    assert [
        one["id"] for one in client.get("/v3/documents", params={"state": "pending"}).json()["documents"]
    ] == [id_]
    assert polled(client, id_) == ["pending"] * 2
    worked(shop)
    assert polled(client, id_) == ["completed"] * 2
    listed = client.get("/v3/documents", params={"state": "completed", "collection": "images"}).json()[
        "documents"
    ]
    assert [one["id"] for one in listed] == [id_]
    told = got(client, id_)
    assert (told["metadata"]["description"], told["degraded"]) == ("Four coloured fields", False)
    assert set(told["metadata"]) == set(PENDING)
    thumbnail = client.get(f"/v3/documents/{id_}/variants/thumbnail.webp")
    assert max(Image.open(io.BytesIO(thumbnail.content)).size) == 256
    assert [
        hit["document_id"] for hit in client.get("/v3/search", params={"q": "four fields"}).json()["hits"]
    ] == [id_]
    assert len(vision.requests) == 1


def test_while_the_service_is_down_the_pending_record_stands_and_is_upgraded_later(
    shop: Server, vision: OpenAIServer
) -> None:
    vision.always = Fault(status=503)
    client = shop.client("acme", "read", "write", "operate")
    client.post("/v3/dependencies/vision/hold", json={"reason": "it answers 503"})
    id_ = uploaded(client)
    worked(shop)
    told = got(client, id_)
    assert (told["metadata"], told["degraded"], vision.requests) == (PENDING, True, [])
    assert (told["facts"]["width"], told["facts"]["height"]) == (640, 400)
    assert "perdure_degraded_total 1.0" in client.get("/metrics").text

    vision.always = said(SEEN)
    client.post("/v3/dependencies/vision/release")
    worked(shop)
    told = got(client, id_)
    assert (told["metadata"]["description"], told["degraded"]) == ("Four coloured fields", False)
    until(lambda: "perdure_repaired_total 1.0" in client.get("/metrics").text)  # read every few seconds


def test_a_broken_image_is_failed_with_its_code_and_can_be_deleted(shop: Server) -> None:
    client = shop.client("acme")
    id_ = uploaded(client, PICTURE[: len(PICTURE) // 2])
    worked(shop)
    assert polled(client, id_) == ["failed"] * 2
    failed = client.get("/v3/documents", params={"state": "failed"}).json()["documents"]
    assert [(one["id"], one["error"]["code"]) for one in failed] == [(id_, "image_truncated")]
    assert client.delete(f"/v3/documents/{id_}").json()["answer"] == "purged"
    assert client.get(f"/v3/documents/{id_}").status_code == 404


@pytest.mark.parametrize("word", ["image", "jpeg", "jpg", "png", "file"])
def test_an_upload_may_say_that_it_is_an_image(word: str, shop: Server, vision: OpenAIServer) -> None:
    vision.always = said(SEEN)
    client = shop.client("acme")
    raw = {"Content-Type": "application/octet-stream"}
    for answer in (
        client.post("/v3/documents", files={"file": ("shop", PICTURE)}, data={"type": word}),
        client.post("/v3/documents", content=PICTURE, params={"type": word}, headers=raw),
    ):
        assert answer.status_code in (200, 201), answer.text
    worked(shop)
    (told,) = client.get("/v3/documents", params={"collection": "images", "state": "completed"}).json()[
        "documents"
    ]
    assert told["pipeline"] == "image"
