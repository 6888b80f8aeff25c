"""What is answered and asked, as types: these are the schemas of the OpenAPI document."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from perdure.store.records import Attempt, Status

Text = Annotated[str, StringConstraints(max_length=1000)]


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted, not true or false")
    return value


Whole = Annotated[int, BeforeValidator(_no_flag)]
Number = Annotated[float, BeforeValidator(_no_flag)]
Moment = Annotated[datetime, BeforeValidator(lambda value: _written(value))]
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
EXAMPLE_ID = "01970a5e-5c1b-7d34-a7ce-6f0a2d3c9b11"


def _written(value: object) -> object:
    """A time as it is written, not a number that might be seconds or milliseconds."""
    if isinstance(value, datetime) or (isinstance(value, str) and _DATE.match(value)):
        return value
    raise ValueError("write a time as 2030-01-01T00:00:00Z")


def time_of(ms: int) -> datetime:
    """Milliseconds since 1970 as a time in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def at(ms: int | None) -> datetime | None:
    """The same, where there may be none."""
    return None if ms is None else time_of(ms)


class Asked(BaseModel):
    """How a document is to be treated: the same words in JSON, in a form and in the query of a raw upload."""

    model_config = ConfigDict(extra="forbid")

    type: Text | None = Field(
        default=None,
        description="A media type, or a word: html, markdown, text, pdf, epub, docx, eml, mbox, jpeg, png, gif, webp, "
        "avif, heic, tiff, bmp, jp2; image: the content says which.",
        examples=["application/pdf", "markdown"],
    )  # fmt: skip
    name: Text | None = Field(default=None, description="What to call it.", examples=["paper.pdf"])
    collection: Text | None = Field(default=None, examples=["documents"])
    pipeline: Text = Field(default="auto", description="`auto`: document, image or mail, by what is in it.")
    meta: dict[str, Any] | None = Field(default=None, description="Anything of yours; handed to the stages.")
    key: Text | None = Field(
        default=None, description="Its identity: other content under a known key takes its place."
    )
    dedupe: bool = Field(default=True, description="Whether equal content is answered by `exists`.")
    priority: Whole = Field(default=0, ge=-100, le=100)
    run_at: Moment | None = Field(default=None, description="Not before; with a time zone.")
    delay_s: Number = Field(default=0, ge=0, le=316_000_000, allow_inf_nan=False)
    attempts: Whole | None = Field(default=None, ge=1, le=10_000)


class NewDocument(Asked):
    """A document to be taken in: exactly one of url, text, json and file."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"url": "https://example.org/report.pdf"},
                {"text": "# Notes\n\nHello.", "type": "markdown", "name": "notes.md"},
            ]
        },
    )

    url: Annotated[str, StringConstraints(max_length=8000)] | None = None
    text: str | None = None
    file: str | None = Field(default=None, description="Base64; large files go as multipart or raw body.")
    data: Any = Field(default=None, alias="json", description="Any JSON value, for pipelines of your own.")


class Bulk(BaseModel):
    """Many documents, taken in within one transaction: all of them or, where one is wrong, none."""

    model_config = ConfigDict(extra="forbid")
    documents: Annotated[list[NewDocument], Field(min_length=1, max_length=1000)]


class Taken(BaseModel):
    """The answer to adding: durable when you read this."""

    id: str = Field(examples=[EXAMPLE_ID])
    answer: Literal["added", "exists", "unchanged", "refreshed", "requeued"]
    state: str | None = Field(default=None, description="In which it was found; null for a new one.")


class TakenAll(BaseModel):
    """The answers, in order."""

    documents: list[Taken]


class Failed(BaseModel):
    """Why it ended or waits."""

    code: str
    message: str | None


class StageView(BaseModel):
    """A stage that is saved."""

    stage: str
    at: datetime
    duration_ms: int
    generation: int
    degraded: bool = False


class Progress(BaseModel):
    """How far it is."""

    stages_done: int
    stages: int | None = Field(description="None where this server does not have the pipeline.")
    items: int = Field(description="Items of the present stage that are saved.")


class DocumentView(BaseModel):
    """Where a document stands."""

    id: str
    collection: str
    pipeline: str
    name: str
    state: str = Field(description="queued, running, waiting, held, done, dead or cancelled; see `words`.")
    status: str = Field(description="The same as `state`.")
    stage: str | None
    generation: int
    attempts_made: int
    attempts_max: int
    degraded: bool
    held_by: str | None
    created_at: datetime
    due_at: datetime | None = Field(description="When a waiting one goes on.")
    finished_at: datetime | None
    last_heartbeat: datetime | None
    error: Failed | None = Field(description="How it ended, or why the last attempt failed while it waits.")

    @classmethod
    def of(cls, s: Status, **more: Any) -> Any:
        error = Failed(code=s.error_code, message=s.error_message) if s.error_code else None
        return cls(
            id=s.id, collection=s.collection, pipeline=s.pipeline, name=s.name, state=s.state, status=s.state,
            stage=s.stage, generation=s.generation, attempts_made=s.attempts_made, attempts_max=s.attempts_max,
            degraded=s.degraded, held_by=s.held_by, created_at=time_of(s.created_ms), finished_at=at(s.finished_ms),
            due_at=at(s.run_at_ms), last_heartbeat=at(s.last_heartbeat_ms),
            error=error, **more,
        )  # fmt: skip


class DocumentDetail(DocumentView):
    """Where a document stands, with its stages."""

    last_attempt_at: datetime | None
    completed_stages: list[StageView]
    progress: Progress
    metadata: dict[str, Any] | None = Field(
        default=None, description="Of an image: what is to be seen on it."
    )
    facts: dict[str, Any] | None = Field(default=None, description="Of an image: size, colours, camera.")


class Page(BaseModel):
    """Documents, newest first; hand `next` in as `after` for the following ones."""

    documents: list[DocumentView]
    next: str | None


class AttemptView(BaseModel):
    """One claim of the document that ended."""

    job: str
    generation: int
    attempt: int
    charged: bool
    stage: str
    worker: int
    started_at: datetime
    ended_at: datetime
    outcome: str
    error_type: str | None
    error_code: str | None
    status_code: int | None
    message: str | None
    fingerprint: str | None = Field(default=None, description="Failures of one cause have the same.")
    delay_ms: int | None
    why: str
    requests: dict[str, int]

    @classmethod
    def of(cls, a: Attempt) -> AttemptView:
        fields = {f: getattr(a, f) for f in cls.model_fields if f not in ("job", "started_at", "ended_at")}
        return cls(job=a.job_key, started_at=time_of(a.started_ms), ended_at=time_of(a.ended_ms), **fields)


class Attempts(BaseModel):
    attempts: list[AttemptView]
    next: str | None = None  # what `after` takes for older ones


class Act(BaseModel):
    """Why somebody does something; kept in the trail."""

    model_config = ConfigDict(extra="forbid")
    reason: Text = ""


class RequeueAct(Act):
    """Start a new generation."""

    from_stage: Text | None = Field(
        default=None, description="Run again from here on, although it was saved."
    )
    at: Moment | None = Field(default=None, description="Not before; with a time zone.")
    delay_s: Number = Field(default=0, ge=0, le=316_000_000, allow_inf_nan=False)


class PriorityAct(Act):
    """Another place in the queue."""

    priority: Whole = Field(ge=-100, le=100, examples=[10])


class Acted(BaseModel):
    """What came of it."""

    id: str = Field(examples=[EXAMPLE_ID])
    answer: str = Field(examples=["requeued", "cancelled", "changed", "purged"])


class Answered(BaseModel):
    """Which claim of a remote stage is meant."""

    model_config = ConfigDict(extra="forbid")
    token: Annotated[int | str, Field(description="As the event had it.")]
    job: Text | None = Field(default=None, description="As the event had it, where it is a follow-up's.")


class Finished(Answered):
    """The stage is done."""

    output: Any = Field(description="What the stage made, as its type has it.")


class ChunkView(BaseModel):
    """A passage that is found."""

    id: str
    position: int
    start: int
    end: int
    anchor: str
    page: int | None
    text: str
    model: str | None


class Chunks(BaseModel):
    chunks: list[ChunkView]
    next: str | None = None


class RowView(BaseModel):
    """What a stage emitted, and the key that it has within its name."""

    key: dict[str, Any] = Field(examples=[{"batch": 0}])
    data: Any


class Rows(BaseModel):
    rows: list[RowView]
    next: str | None = None


class ConnectionView(BaseModel):
    """Two passages of different documents that are about the same."""

    chunk_id: str
    other_document_id: str
    other_id: str
    score: float


class Connections(BaseModel):
    connections: list[ConnectionView]
    next: str | None = None


class HitView(BaseModel):
    """A passage that fits the query; a higher score is better, and says nothing outside of its search."""

    document_id: str
    chunk_id: str
    name: str
    page: int | None
    anchor: str
    heading: str
    snippet: str
    text: str
    score: float


class Hits(BaseModel):
    """The best passages first; `fits` is false if no passage fits the query."""

    hits: list[HitView]
    fits: bool
