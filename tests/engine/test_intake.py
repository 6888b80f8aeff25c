"""The way in: a clear code for what cannot be taken, and then nothing was written; a visible answer for the rest."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Document, Pipeline
from perdure.errors import DocumentUnknown, InputInvalid, InputTooLarge, PipelineUnknown, UsageError
from perdure.settings import Settings
from perdure.testing import drain, tick, trial

books = Pipeline("books")


@books.stage
def read(doc: Document) -> dict[str, Any]:
    content = doc.json if doc.kind == "json" else doc.text if doc.kind == "text" else doc.data.hex()
    return {"content": content, "name": doc.name, "meta": doc.meta, "type": doc.media_type, "kind": doc.kind}


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing given": ({}, "input_invalid"),
    "too much given": ({"text": "a", "data": b"a"}, "input_invalid"),
    "text that is bytes": ({"text": b"a"}, "input_invalid"),
    "data that is text": ({"data": "a"}, "input_invalid"),
    "a lone surrogate": ({"text": "a\ud800"}, "text_broken"),
    "json that is no json": ({"json": {"a": object()}}, "not_serialisable"),
    "json with NaN": ({"json": [float("nan")]}, "not_serialisable"),
    "json with a lone surrogate": ({"json": ["\ud800"]}, "not_serialisable"),
    "meta that is no json": ({"text": "a", "meta": {"a": {1, 2}}}, "not_serialisable"),
    "meta that is no dict": ({"text": "a", "meta": ["a"]}, "input_invalid"),
    "too much meta": ({"text": "a", "meta": {"a": "x" * 70_000}}, "meta_too_large"),
    "too much content": ({"text": "x" * 1_001}, "input_too_large"),
    "a NUL in the name": ({"text": "a", "name": "a\0b"}, "text_nul"),
    "a NUL in the key": ({"text": "a", "key": "a\0b"}, "text_nul"),
    "a NUL in the type": ({"text": "a", "media_type": "a\0b"}, "text_nul"),
    "a broken collection": ({"text": "a", "collection": "\udfff"}, "text_broken"),
    "an endless name": ({"text": "a", "name": "x" * 5_000}, "text_too_long"),
    "a name that is none": ({"text": "a", "name": 7}, "input_invalid"),
    "no organisation": ({"text": "a", "org": ""}, "input_invalid"),
    "a priority out of bounds": ({"text": "a", "priority": 101}, "input_invalid"),
    "a priority that is none": ({"text": "a", "priority": "high"}, "input_invalid"),
    "a priority between two": ({"text": "a", "priority": 1.5}, "input_invalid"),
    "no attempts": ({"text": "a", "attempts": 0}, "input_invalid"),
    "attempts that are none": ({"text": "a", "attempts": "three"}, "input_invalid"),
    "a negative backoff": ({"text": "a", "backoff_s": -1}, "input_invalid"),
    "an endless backoff": ({"text": "a", "backoff_s": float("inf")}, "input_invalid"),
    "a delay that is none": ({"text": "a", "delay_s": float("nan")}, "input_invalid"),
    "an endless delay": ({"text": "a", "delay_s": 1e300}, "input_invalid"),
    "a time without a zone": ({"text": "a", "run_at": datetime(2030, 1, 1)}, "input_invalid"),
    "a time that is none": ({"text": "a", "run_at": "tomorrow"}, "input_invalid"),
    "a missing file": ({"path": "/nonexistent/dune.epub"}, "file_missing"),
    "a directory": ({"path": "/tmp"}, "file_missing"),
    "an unknown option": ({"text": "a", "colour": "red"}, "input_invalid"),
}


def test_what_cannot_be_taken_is_refused_with_its_code_and_nothing_is_written(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        app.service.settings = Settings(document_bytes_max=1_000)
        codes = {}
        for case, (options, _) in BAD.items():
            with pytest.raises(UsageError) as refused:
                app.add(pipeline=books, **options)
            assert str(refused.value), case
            codes[case] = refused.value.code
        assert codes == {case: code for case, (_, code) in BAD.items()}
        tally = app._call(app.service.store.tally())
        assert (tally.documents, tally.queues) == ({}, {})


def test_one_bad_document_among_many_keeps_its_batch_out(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        with pytest.raises(InputInvalid):
            app.add_many([{"text": "a"}, {"text": "b", "name": "\0"}], pipeline=books)
        assert app.documents() == []


def test_an_unknown_pipeline_is_refused_with_those_there_are() -> None:
    with trial(books) as app, pytest.raises(PipelineUnknown, match="it has books"):
        app.add(text="a", pipeline="boooks")


def test_what_was_handed_in_is_what_stages_see(store_url: str, tmp_path: Path) -> None:
    small, large = tmp_path / "small.html", tmp_path / "large.bin"
    small.write_text("<p>é")
    large.write_bytes(b"\xff" * 50_000)
    with trial(books, store=store_url) as app:
        ids = [
            app.add(text="a 𝄞", name="n", meta={"k": ["\0", 1.5]}, pipeline=books).id,
            app.add(data=b"\0\xff", media_type="x/y", pipeline="books").id,
            app.add(json={"a": [None, "é"]}, pipeline=books).id,
            app.add(path=small, pipeline=books).id,
            app.add(path=str(large), name="other.pdf", pipeline=books).id,
            app.add(text="", pipeline=books).id,
        ]
        assert drain(app).done == 6
        seen = [tuple(app.output(id_, "read").values()) for id_ in ids]
        assert seen == [
            ("a 𝄞", "n", {"k": ["\0", 1.5]}, "", "text"),
            ("00ff", "", {}, "x/y", "bytes"),
            ({"a": [None, "é"]}, "", {}, "", "json"),
            ("<p>é".encode().hex(), "small.html", {}, "text/html", "bytes"),
            ("ff" * 50_000, "other.pdf", {}, "application/pdf", "bytes"),
            ("", "", {}, "", "text"),
        ]


def test_the_same_document_again_answers_exists_with_the_first_id(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        first = app.add(text="a", pipeline=books)
        assert first.answer == "added"
        again = app.add(text="a", name="another name", pipeline=books)
        assert (again.id, again.answer) == (first.id, "exists")
        assert app.add(text="a", org="other", pipeline=books).answer == "added"
        assert app.add(data=b"a", pipeline=books).answer == "added"
        assert app.add(text="a", pipeline=books, dedupe=False).answer == "added"
        drain(app)
        assert app.add(text="a", pipeline=books).answer == "exists"


def test_a_key_of_your_own_decides_what_is_the_same(store_url: str) -> None:
    long_key = "".join(chr(0x4E00 + n * 7 % 20_000) for n in range(2_000))
    with trial(books, store=store_url) as app:
        first = app.add(text="a", key="invoice 7", pipeline=books)
        same = app.add(text="b", key="invoice 7", pipeline=books)
        assert (same.id, same.answer) == (first.id, "refreshed")
        assert app.add(text="a", key="invoice 8", pipeline=books).answer == "added"
        many = app.add_many([{"text": "x", "key": "k"}, {"text": "y", "key": "k"}], pipeline=books)
        assert [m.answer for m in many] == ["added", "refreshed"]
        assert many[0].id == many[1].id
        assert [app.add(text="z", key=long_key, pipeline=books).answer for _ in range(2)] == [
            "added",
            "unchanged",
        ]


def test_the_status_is_readable_the_moment_the_id_is_there(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        status = app.status(app.add(text="a", name="dune", collection="novels", pipeline=books).id)
        assert (status.state, status.stage, status.name) == ("queued", "read", "dune")
        assert (status.collection, status.attempts_made, status.generation) == ("novels", 0, 1)
        with pytest.raises(DocumentUnknown):
            app.status("no such id")
        with pytest.raises(DocumentUnknown):
            app.status(status.id, org="other")


def test_a_time_to_come_is_waited_for(store_url: str) -> None:
    with trial(books, store=store_url) as app:
        now = datetime.fromtimestamp(app.clock.now_ms() / 1000, UTC)
        at = app.add(text="a", run_at=now + timedelta(hours=2), pipeline=books).id
        after = app.add(text="b", delay_s=60, pipeline=books).id
        past = app.add(text="c", run_at=now - timedelta(hours=2), pipeline=books).id
        assert [app.status(i).state for i in (at, after, past)] == ["waiting", "waiting", "queued"]
        assert tick(app) == 1
        app.clock.advance(60)
        assert tick(app) == 1
        assert drain(app).done == 1
        assert app.clock.now_ms() == int((now + timedelta(hours=2)).timestamp() * 1000)


def test_too_large_says_how_large_and_what_is_allowed() -> None:
    with trial(books) as app:
        app.service.settings = Settings(document_bytes_max=10)
        with pytest.raises(InputTooLarge, match="11 bytes, the most allowed is 10"):
            app.add(text="x" * 11, pipeline=books)


failing = Pipeline("failing", attempts=1)


@failing.stage
def refuse(doc: Document) -> int:
    raise ValueError(f"{len(doc.data)} bytes")


def test_dead_bytes_that_are_no_text_are_added_again(store_url: str) -> None:
    with trial(failing, store=store_url) as app:
        first = app.add(data=b"\xc3\x28\xff", name="scan.bin", pipeline=failing)
        drain(app)
        again = app.add(data=b"\xc3\x28\xff", name="scan.bin", pipeline=failing)
        assert (again.answer, again.id, again.state) == ("requeued", first.id, "dead")
