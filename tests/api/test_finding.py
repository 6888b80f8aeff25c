"""Chunks and search over HTTP, of a document that went through the built-in pipeline."""

from __future__ import annotations

from pathlib import Path

from perdure.pipelines.document import documents
from tests.api.server import Server

TEXT = "The whale sings at night. " * 20


def test_chunks_are_shown_and_found_by_their_organisation_alone(tmp_path: Path) -> None:
    with Server(f"sqlite:///{tmp_path}/p.db", pipelines=(documents,)) as server:
        mine, theirs = server.client("acme"), server.client("zeta")
        id_ = mine.post("/v3/documents", json={"text": TEXT, "pipeline": "document"}).json()["id"]
        assert mine.get(f"/v3/documents/{id_}/chunks").json()["chunks"] == []
        server.run(server.service.run_until_idle())
        chunks = mine.get(f"/v3/documents/{id_}/chunks").json()["chunks"]
        assert "whale sings" in chunks[0]["text"]
        (hit, *_) = mine.get("/v3/search", params={"q": "whale"}).json()["hits"]
        assert (hit["document_id"], hit["chunk_id"]) == (id_, chunks[0]["id"])
        assert theirs.get("/v3/search", params={"q": "whale"}).json()["hits"] == []
        assert theirs.get(f"/v3/documents/{id_}/chunks").status_code == 404
