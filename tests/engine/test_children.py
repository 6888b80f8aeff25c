"""What a stage starts: follow-up jobs, child documents, and the hooks that tell about an end."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from perdure import Document, Permanent, Pipeline, Result, Transient
from perdure.core.outcome import Failure
from perdure.errors import PipelineInvalid
from perdure.store.operations import Claim
from perdure.testing import Trial, drain, failing, tick, trial


def jobs(app: Trial, id_: str) -> list[tuple[str, str]]:
    """Every attempt's job, without the document's id, and its outcome."""
    return [(a.job_key.replace(id_, "ID"), a.outcome) for a in app.attempts(id_)]


def test_a_follow_up_job_gets_its_input_and_the_document_does_not_wait_for_it(store_url: str) -> None:
    books, connect = Pipeline("books"), Pipeline("detect_connections")
    seen: list[tuple[str, Any]] = []

    @connect.stage
    def link(doc: Document, input: dict[str, Any]) -> int:
        seen.append((doc.text, input))
        return input["chunk_count"] * 2

    @connect.stage
    def report(doc: Document, link: int) -> int:
        return link + 1

    @books.stage
    def chunk(doc: Document) -> Result[int]:
        follow_up = connect.job(doc, chunk_count=2, trigger="document-processing-complete")
        return Result(len(doc.text.split()), spawn=[follow_up])

    with trial([books, connect], store=store_url) as app:
        id_ = app.add(text="a b", pipeline=books).id
        assert tick(app) == 1
        assert app.status(id_).state == "done"
        assert seen == []
        summary = drain(app)
        assert (summary.done, summary.dead) == (0, 0)
        assert seen == [("a b", {"chunk_count": 2, "trigger": "document-processing-complete"})]
        assert jobs(app, id_) == [("doc-ID", "done"), ("doc-ID/detect_connections", "done")]


def test_a_follow_up_that_fails_is_seen_and_does_not_fail_the_document(store_url: str) -> None:
    books, connect = Pipeline("books"), Pipeline("connect", attempts=2)

    @connect.stage
    def link(doc: Document) -> int:
        raise Transient("no neighbours")

    @books.stage
    def chunk(doc: Document) -> Result[int]:
        return Result(1, spawn=[connect.job(doc)])

    with trial([books, connect], store=store_url) as app:
        id_ = app.add(text="a b", pipeline=books).id
        drain(app)
        assert app.status(id_).state == "done"
        assert jobs(app, id_) == [
            ("doc-ID", "done"),
            ("doc-ID/connect", "retry"),
            ("doc-ID/connect", "dead"),
        ]


def test_follow_ups_are_spawned_once_however_often_the_stage_runs(store_url: str) -> None:
    books, connect, files = Pipeline("books"), Pipeline("connect"), Pipeline("files")
    ran: Counter[str] = Counter()

    @connect.stage
    def link(doc: Document) -> None:
        ran["link"] += 1

    @files.stage
    def read(doc: Document) -> None:
        ran["read"] += 1

    @books.stage
    def chunk(doc: Document) -> Result[int]:
        ran["chunk"] += 1
        return Result(1, spawn=[connect.job(doc), files.child("cover", text="x")])

    @books.stage
    def embed(doc: Document, chunk: int) -> int:
        return chunk

    with trial([books, connect, files], store=store_url) as app, failing(embed, Transient("busy")):
        app.add(text="a", pipeline=books)
        tick(app)
        chunk.version = 2
        drain(app)
        assert ran == {"chunk": 2, "link": 1, "read": 1}


def test_a_new_generation_spawns_its_follow_ups_anew(store_url: str) -> None:
    books, connect = Pipeline("books"), Pipeline("connect")
    linked: list[int] = []

    @connect.stage
    def link(doc: Document) -> None:
        linked.append(1)

    @books.stage
    def chunk(doc: Document) -> Result[int]:
        return Result(1, spawn=[connect.job(doc)])

    with trial([books, connect], store=store_url) as app:
        id_ = app.add(text="a", pipeline=books).id
        drain(app)
        app.requeue(id_, from_stage="chunk")
        with failing(link, Transient("busy")):
            drain(app)
        assert len(linked) == 2
        assert jobs(app, id_)[-1] == ("doc-ID/connect-g2", "done")


def test_child_documents_have_ids_that_follow_from_parent_and_key(store_url: str) -> None:
    mails, files = Pipeline("mails"), Pipeline("files")
    seen: Counter[str] = Counter()

    @files.stage
    def read(doc: Document) -> str:
        seen[doc.name] += 1
        assert doc.parent_id is not None
        return f"{doc.text} {doc.meta['n']}"

    @mails.stage
    def split(doc: Document) -> Result[int]:
        parts = doc.text.split()
        spawn = [files.child(f"part-{n}", text=p, name=p, meta={"n": n}) for n, p in enumerate(parts)]
        return Result(len(parts), spawn=spawn)

    with trial([mails, files], store=store_url) as app:
        id_ = app.add(text="left right", pipeline=mails, collection="inbox").id
        assert drain(app).done == 3
        children = {s.name: s for s in app.documents() if s.id != id_}
        assert {s.collection for s in children.values()} == {"inbox"}
        assert app.output(children["right"].id, "read") == "right 1"
        split.version = 2
        app.requeue(id_)
        assert drain(app).done == 1
        assert {s.id for s in app.documents()} == {id_, *(s.id for s in children.values())}
        assert seen == {"left": 1, "right": 1}


def test_a_large_child_document_is_readable(store_url: str) -> None:
    mails, files = Pipeline("mails"), Pipeline("files")

    @files.stage
    def read(doc: Document) -> int:
        return len(doc.data) + doc.path.stat().st_size

    @mails.stage
    def split(doc: Document) -> Result[None]:
        return Result(None, spawn=[files.child("big", data=b"\0" * 100_000)])

    with trial([mails, files], store=store_url) as app:
        id_ = app.add(text="a", pipeline=mails).id
        assert drain(app).done == 2
        (child,) = (s.id for s in app.documents() if s.id != id_)
        assert app.output(child, "read") == 200_000


def test_on_dead_runs_exactly_once_with_the_failure(store_url: str) -> None:
    books = Pipeline("books")
    told: list[Failure | None] = []

    @books.stage
    def read(doc: Document) -> None:
        raise Permanent("encrypted", "needs a password")

    @books.on_dead
    def tell(doc: Document, failure: Failure | None) -> None:
        told.append(failure)

    with trial(books, store=store_url) as app, failing(tell, Transient("mail server away")) as runs:
        id_ = app.add(text="a", pipeline=books).id
        drain(app)
        assert runs.count == 2
        assert told == [Failure("read", "Permanent", "encrypted", "needs a password")]
        assert jobs(app, id_) == [
            ("doc-ID", "dead"),
            ("doc-ID/on_dead", "retry"),
            ("doc-ID/on_dead", "done"),
        ]
        assert app.status(id_).state == "dead"


def test_on_dead_runs_again_when_a_requeued_document_dies_again(store_url: str) -> None:
    books = Pipeline("books")
    told: list[str] = []

    @books.stage
    def read(doc: Document) -> None:
        raise Permanent("encrypted")

    @books.on_dead
    def tell(doc: Document, failure: Failure | None) -> None:
        told.append(failure.code if failure else "")

    with trial(books, store=store_url) as app:
        id_ = app.add(text="a", pipeline=books).id
        drain(app)
        app.requeue(id_)
        with failing(tell, Transient("mail server away")):
            drain(app)
        assert told == ["encrypted", "encrypted"]


def test_on_dead_runs_once_too_when_the_document_died_with_its_workers(store_url: str) -> None:
    books = Pipeline("books", postpones_max=0)
    told: list[Failure | None] = []

    @books.stage
    def read(doc: Document) -> None: ...

    @books.on_dead
    def tell(doc: Document, failure: Failure | None) -> None:
        told.append(failure)

    with trial(books, store=store_url) as app:
        store = app.service.store
        id_ = app.add(text="a", pipeline=books).id
        for token in (11, 12):
            gone = app._call(store.register("worker", "gone", ["documents"]))
            (claimed,) = app._call(store.claim(Claim(gone, ("documents",), token, 1, 1)))
            assert claimed.job.document_id == id_
            app._call(store.driver.unlock("worker", gone))
            app.clock.advance(31)
            app._call(app.sweeper.sweep(app.clock.monotonic_s()))
        assert app.status(id_).state == "dead"
        drain(app)
        assert [failure.code for failure in told if failure] == ["postpones_exhausted"]
        assert [outcome for _, outcome in jobs(app, id_)] == ["later", "dead", "done"]


def test_on_done_runs_when_the_document_is_done(store_url: str) -> None:
    books = Pipeline("books")
    told: list[tuple[str, Failure | None]] = []

    @books.stage
    def read(doc: Document) -> str:
        return doc.text

    @books.on_done
    async def tell(doc: Document, failure: Failure | None) -> None:
        told.append((doc.text, failure))

    with trial(books, store=store_url) as app:
        app.add(text="a", pipeline=books)
        assert drain(app).done == 1
        assert told == [("a", None)]


def test_an_input_that_does_not_fit_the_stages_annotation_is_permanent(store_url: str) -> None:
    books, connect = Pipeline("books"), Pipeline("connect")

    @connect.stage
    def link(doc: Document, input: dict[str, int]) -> None: ...

    @books.stage
    def chunk(doc: Document) -> Result[int]:
        return Result(1, spawn=[connect.job(doc, n="many")])

    with trial([books, connect], store=store_url) as app:
        id_ = app.add(text="a", pipeline=books).id
        drain(app)
        attempt = app.attempts(id_)[-1]
        assert (attempt.outcome, attempt.error_code) == ("dead", "input_invalid")


def test_two_pipelines_of_one_name_are_refused() -> None:
    one, two = Pipeline("books"), Pipeline("books")
    for pipeline in (one, two):

        @pipeline.stage
        def read(doc: Document) -> None: ...

    with pytest.raises(PipelineInvalid, match="two pipelines are called 'books'"), trial([one, two]):
        pass
