"""Images over HTTP: their metadata in the document's answer, their variants as images, what follow-ups saved."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator

import pytest
from PIL import Image

from perdure.pipelines.document import documents
from perdure.pipelines.image.metadata import FALLBACK
from perdure.pipelines.image.pipeline import images
from tests.api.server import Server
from tests.pipelines.image.making import corners, stored

PICTURE = stored(corners(300, 200), "PNG")


@pytest.fixture
def server(store_url: str) -> Iterator[Server]:
    with Server(store_url, pipelines=[documents, images]) as running:
        yield running


def uploaded(server: Server) -> str:
    """The id of an image that is done."""
    headers = {"Content-Type": "image/png"}
    id_: str = server.client("acme").post("/v3/documents", content=PICTURE, headers=headers).json()["id"]
    server.run(server.service.run_until_idle(wait=5))
    return id_


def test_variants_and_metadata_are_served(server: Server) -> None:
    id_ = uploaded(server)
    client = server.client("acme", "read")
    told = client.get(f"/v3/documents/{id_}").json()
    assert (told["status"], told["collection"], told["degraded"]) == ("done", "images", True)
    assert told["metadata"] == FALLBACK.record()
    assert (told["facts"]["width"], told["facts"]["height"]) == (300, 200)

    listed = client.get(f"/v3/documents/{id_}/variants").json()["variants"]
    assert {(one["name"], one["format"]) for one in listed} == {
        (name, format_) for name in ("thumbnail", "medium", "large") for format_ in ("webp", "avif")
    }
    for one in listed:
        answer = client.get(one["path"])
        assert answer.headers["content-type"] == one["media_type"] == f"image/{one['format']}"
        assert hashlib.sha256(answer.content).hexdigest() == one["sha256"]
        assert Image.open(io.BytesIO(answer.content)).size == (one["width"], one["height"])
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-disposition"] == f'inline; filename="{one["name"]}.{one["format"]}"'
        same = client.get(one["path"], headers={"If-None-Match": answer.headers["etag"]})
        assert (same.status_code, same.content) == (304, b"")

    plain = client.get(f"/v3/documents/{id_}/variants/thumbnail")
    assert plain.headers["content-type"] == "image/webp"
    chosen = client.get(f"/v3/documents/{id_}/variants/thumbnail", headers={"Accept": "image/avif,image/*"})
    assert chosen.headers["content-type"] == "image/avif"

    saved = client.get(f"/v3/documents/{id_}/stages/record", params={"pipeline": "generate-metadata"})
    assert saved.json() == FALLBACK.record()


def test_what_is_not_there_or_not_yours_is_404(server: Server) -> None:
    id_ = uploaded(server)
    ours, theirs = server.client("acme", "read"), server.client("zeta", "read")
    answer = ours.get(f"/v3/documents/{id_}/variants/huge.webp")
    assert (answer.status_code, answer.json()["code"]) == (404, "variant_unknown")
    for path in ("variants", "variants/thumbnail.webp", "stages/record?pipeline=generate-metadata"):
        answer = theirs.get(f"/v3/documents/{id_}/{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "document_unknown"), path
    text = ours.get("/v3/documents/nothing/variants/large.webp")
    assert text.status_code == 404
