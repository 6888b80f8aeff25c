"""Chunks and search over HTTP, of a document that went through the built-in pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure.client import Client
from perdure.core.chunk import Chunk
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


def test_chunks_and_connections_come_in_pages(tmp_path: Path) -> None:
    with Server(f"sqlite:///{tmp_path}/p.db", pipelines=(documents,)) as server:
        client = server.client("acme")
        ids = [
            client.post(
                "/v3/documents", json={"text": f"# {n}\n\n{TEXT * 6}", "pipeline": "document"}
            ).json()["id"]
            for n in (1, 2)
        ]
        server.run(server.service.run_until_idle())
        for kind in ("chunks", "connections"):
            path = f"/v3/documents/{ids[0]}/{kind}"
            whole = client.get(path).json()
            assert len(whole[kind]) >= 2
            assert whole["next"] is None
            assert client.get(path, params={"limit": len(whole[kind])}).json() == whole

            found: list[Any] = []
            after: str | None = "0"
            while after is not None:
                page = client.get(path, params={"limit": 1, "after": after}).json()
                assert len(page[kind]) == 1
                found, after = found + page[kind], page["next"]
            assert found == whole[kind]
            for wrong in ({"limit": 1001}, {"limit": 0}, {"after": "-1"}, {"after": "x"}):
                assert client.get(path, params=wrong).status_code == 422

        chunks = client.get(f"/v3/documents/{ids[0]}/chunks").json()["chunks"]
        with Client(server.url, key=server.key("acme")) as one:
            assert [chunk.model_dump() for chunk in one.chunks(ids[0])] == chunks


def test_many_chunks_are_not_sent_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(f"sqlite:///{tmp_path}/p.db", pipelines=(documents,)) as server:
        client = server.client("acme")
        id_ = client.post("/v3/documents", json={"text": "one", "pipeline": "document"}).json()["id"]
        many = [Chunk(f"c{n}", n, n, n + 1, "word " * 20, "", None, None, None, "") for n in range(5000)]

        async def chunks(_: str, __: str, *parts: Any) -> list[Chunk]:
            return [chunk for part in parts for chunk in many[part.first : part.first + part.most]] or many

        monkeypatch.setattr(server.service.store, "chunks", chunks)
        answer = client.get(f"/v3/documents/{id_}/chunks").json()
        assert (len(answer["chunks"]), answer["next"]) == (1000, "1000")
        with Client(server.url, key=server.key("acme")) as one:
            assert [chunk.position for chunk in one.chunks(id_)] == list(range(5000))
