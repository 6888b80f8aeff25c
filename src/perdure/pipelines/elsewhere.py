"""Pipelines of a mail archive whose stages other services do: for each collection the event that starts them.

    app = Perdure(pipelines=remote_pipelines())                    # all four
    app.add(path="inbox.mbox", pipeline="archives", collection="archives")

Each pipeline has the name of its collection and one remote stage. Attempts and waits are those of the collection
(`RETRY_JOB_…`). A requeue of any kind publishes the event again, from the outbox.
"""

from __future__ import annotations

from collections.abc import Iterable

from perdure.core.frozen import frozen
from perdure.engine.pipeline import Pipeline
from perdure.errors import InputInvalid

__all__ = ["EVENTS", "Triggered", "remote_pipelines"]


@frozen
class Triggered:
    """The stage of a collection: its name, the event that starts it, and those that answer."""

    stage: str
    event: str
    done: str
    failed: str


#: Collection → event.
EVENTS: dict[str, Triggered] = {
    "archives": Triggered("parse", "ArchiveIngested", "JSONParsed", "ParsingFailed"),
    "messages": Triggered("chunk", "JSONParsed", "ChunksPrepared", "ChunkingFailed"),
    "chunks": Triggered("embed", "ChunksPrepared", "EmbeddingsGenerated", "EmbeddingGenerationFailed"),
    "threads": Triggered("summarize", "SummarizationRequested", "SummaryComplete", "SummarizationFailed"),
}


def remote_pipelines(collections: Iterable[str] = tuple(EVENTS)) -> list[Pipeline]:
    """New pipelines for these collections, each with its remote stage. Raises: InputInvalid."""
    return [_pipeline(name) for name in collections]


def _pipeline(collection: str) -> Pipeline:
    if (given := EVENTS.get(collection)) is None:
        raise InputInvalid(
            f"there is no event for the collection {collection!r}; there are {', '.join(EVENTS)}"
        )
    pipeline = Pipeline(collection)
    pipeline.remote_stage(given.stage, event=given.event, done=given.done, failed=given.failed)
    return pipeline
