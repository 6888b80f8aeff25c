"""What the chunks of a document are like in others: a job of its own, spawned with the last stage."""

from __future__ import annotations

from dataclasses import asdict

from perdure import Context, Document, Pipeline, Result
from perdure.core.chunk import Connection
from perdure.core.events import ForeignKeyRefused
from perdure.pipelines.connect import Asked, asked, connect, detect_connections
from perdure.pipelines.document import documents
from perdure.testing import drain, failing, recording, tick, trial

SEA = "Whales sing in the deep blue sea, and they travel very far to do so."
HARBOUR = "Ships wait in the harbour until the storm over the sea has gone."
LAW = "The tenant shall pay the rent on the first day of each month."


def pairs(found: list[Connection]) -> set[tuple[str, str]]:
    return {(c.chunk_id, c.other_id) for c in found}


def test_the_document_is_done_without_it_and_its_input_says_what_for(store_url: str) -> None:
    with trial(documents, store=store_url) as app:
        id_ = app.add(text=SEA, pipeline=documents).id
        with failing(connect, RuntimeError("no"), RuntimeError("no"), RuntimeError("no")) as runs:
            summary = drain(app)
        assert (summary.done, summary.dead, runs.count) == (1, 0, 3)
        assert app.status(id_).state == "done"
        failed = [a for a in app.attempts(id_) if a.job_key == f"doc-{id_}/detect_connections"]
        assert [a.outcome for a in failed] == ["retry", "retry", "dead"]


def test_its_input_names_document_chunks_and_trigger(store_url: str) -> None:
    heard: list[dict[str, object]] = []
    listening = Pipeline("listening", then=[detect_connections])

    @listening.stage
    def cut(doc: Document) -> Result[int]:
        return Result(3, spawn=[detect_connections.job(doc, **asked(doc, 3))])

    original = connect.fn

    async def noted(ctx: Context, input: Asked) -> int:
        heard.append(asdict(input))
        return 0

    with trial(listening, store=store_url) as app:
        connect.fn = noted
        try:
            id_ = app.add(text=SEA, pipeline=listening).id
            drain(app)
        finally:
            connect.fn = original
    assert heard == [{"document_id": id_, "chunk_count": 3, "trigger": "document-processing-complete"}]


def test_61_chunks_are_stored_and_connected_also_when_the_document_comes_again_meanwhile(
    store_url: str,
) -> None:
    book = "\n\n".join(f"Chapter {n}. " + f"whale harbour number {n} storm " * 32 for n in range(61))
    with trial(documents, store=store_url) as app:
        first = app.add(text=book, key="book", pipeline=documents).id
        other = app.add(text=book + " The end.", pipeline=documents).id
        tick(app)
        app.add(text=book + " Again.", key="book", pipeline=documents)
        refused = recording(app)
        assert drain(app).dead == 0
        for id_ in (first, other):
            assert len(app.chunks(id_)) == 61
            found = app.connections(id_)
            assert {one.chunk_id for one in found} == {chunk.id for chunk in app.chunks(id_)}
        assert refused.of(ForeignKeyRefused) == []


def test_connections_are_found_from_both_sides(store_url: str) -> None:
    with trial(documents, store=store_url) as app:
        one = app.add(text=SEA, pipeline=documents).id
        drain(app)
        two = app.add(text=SEA + " Some say they dream.", pipeline=documents).id
        app.add(text=LAW, pipeline=documents)
        drain(app)
        (here,), (there,) = app.connections(one), app.connections(two)
        assert (here.other_document_id, there.other_document_id) == (two, one)
        assert here.score > 0.6
        assert pairs([here]) == {(there.other_id, there.chunk_id)}


def test_what_is_like_it_changes_with_it(store_url: str) -> None:
    with trial(documents, store=store_url) as app:
        one = app.add(text=SEA, pipeline=documents).id
        two = app.add(text=SEA + " Some say they dream.", key="two", pipeline=documents).id
        drain(app)
        assert app.connections(one)
        assert app.add(text=LAW, key="two", pipeline=documents).answer == "refreshed"
        drain(app)
        assert app.connections(one) == app.connections(two) == []
        app.add(text=SEA + " Nobody knows.", key="two", pipeline=documents)
        drain(app)
        assert [c.other_document_id for c in app.connections(one)] == [two]


def test_a_follow_up_that_comes_late_changes_nothing(store_url: str) -> None:
    """Reprocessed while its connections are being looked for: those of the new content stay."""
    with trial(documents, store=store_url) as app:
        one = app.add(text=SEA, pipeline=documents).id
        drain(app)
        two = app.add(text=HARBOUR, key="two", pipeline=documents).id
        app.pause("connections")
        drain(app)
        app.add(text=SEA + " Some say they dream.", key="two", pipeline=documents)
        app.pause("connections")
        drain(app)
        jobs = {"detect_connections": 1, "detect_connections-g2": 2}
        app.resume("connections")
        drain(app)
        assert {
            a.job_key.partition("/")[2]: a.generation for a in app.attempts(two) if "/" in a.job_key
        } == jobs
        assert [c.other_document_id for c in app.connections(two)] == [one]


def test_its_pipeline_comes_along() -> None:
    assert documents.then == (detect_connections,)
    with trial(documents) as app:
        assert tick(app) == 0
        assert "detect_connections" in app.service.pipelines
    with trial([documents, detect_connections]) as app:
        assert tick(app) == 0
