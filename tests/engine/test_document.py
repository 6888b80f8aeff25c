"""The document as stage code sees it, in this process and carried into another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from perdure.engine.document import Document
from perdure.errors import Permanent
from perdure.store.records import DocumentRecord

RECORD = DocumentRecord(
    id="d1",
    org="acme",
    collection="books",
    pipeline="books",
    kind="bytes",
    name="Dune.epub",
    media_type="application/epub+zip",
    content_hash="h1",
    size=4,
    inline=b"\xff\0ab",
    blob=None,
    meta=b'{"lang": "en"}',
    parent_id="d0",
    created_ms=5,
)


class FakeBlobs:
    def __init__(self, data: bytes, path: Path | None = None) -> None:
        self.data, self.path, self.reads = data, path, 0

    def get_sync(self, digest: str) -> bytes:
        assert digest == "b1"
        self.reads += 1
        return self.data

    def path_sync(self, digest: str) -> Path | None:
        assert digest == "b1"
        return self.path


def test_its_attributes_are_those_it_came_with() -> None:
    doc = Document(RECORD)
    assert (doc.id, doc.org, doc.collection, doc.kind, doc.name) == (
        "d1",
        "acme",
        "books",
        "bytes",
        "Dune.epub",
    )
    assert (doc.media_type, doc.content_hash, doc.size, doc.parent_id) == (
        "application/epub+zip",
        "h1",
        4,
        "d0",
    )
    assert doc.meta == {"lang": "en"}
    assert doc.data == b"\xff\0ab"
    assert "Dune.epub" in repr(doc)


def test_text_and_json_are_read_or_refused_for_good() -> None:
    doc = Document(replace(RECORD, inline='{"a": "é"}'.encode()))
    assert doc.text == '{"a": "é"}'
    assert doc.json == {"a": "é"}
    broken = Document(RECORD)
    with pytest.raises(Permanent, match="byte 0") as caught:
        _ = broken.text
    assert caught.value.code == "text_broken"
    for content in (b"{", b"[" * 200_000):
        with pytest.raises(Permanent) as caught:
            _ = Document(replace(RECORD, inline=content)).json
        assert caught.value.code == "json_broken"


def test_a_blob_is_read_once_and_its_file_is_used_where_it_has_one(tmp_path: Path) -> None:
    record = replace(RECORD, inline=None, blob="b1")
    blobs = FakeBlobs(b"stored", tmp_path / "b1")
    doc = Document(record, blobs)
    assert doc.path == tmp_path / "b1"
    assert blobs.reads == 0
    assert doc.data == doc.data == b"stored"
    assert blobs.reads == 1
    doc.close()
    assert doc.data == b"stored"
    assert blobs.reads == 2


@pytest.mark.parametrize(
    ("name", "suffix"), [("Dune.epub", ".epub"), ("", ""), ("a.b/../c", ""), ("x.\ud800", "")]
)
def test_content_without_a_file_gets_a_temporary_one(name: str, suffix: str) -> None:
    for doc in (
        Document(replace(RECORD, name=name, inline=b"stored")),
        Document(replace(RECORD, name=name, inline=None, blob="b1"), FakeBlobs(b"stored")),
    ):
        path = doc.path
        assert path.read_bytes() == b"stored"
        assert path.suffix == suffix
        assert doc.path == path
        doc.close()
        assert not path.exists()
        doc.close()


def test_it_travels_as_json() -> None:
    for record in (RECORD, replace(RECORD, inline=None, blob="b1")):
        payload = json.loads(json.dumps(Document(record).to_payload()))
        copy = Document.from_payload(payload, FakeBlobs(b"stored"))
        assert copy.to_payload() == payload
        assert copy.data == (record.inline or b"stored")
        assert copy.meta == {"lang": "en"}


def test_content_that_is_nowhere_is_said_so() -> None:
    with pytest.raises(Permanent) as caught:
        _ = Document(replace(RECORD, inline=None)).data
    assert caught.value.code == "content_missing"
    assert Document(replace(RECORD, inline=b"", size=0)).data == b""
