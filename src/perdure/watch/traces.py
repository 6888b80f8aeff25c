"""Spans for OpenTelemetry: one for each attempt, with one for each stage in it and one for each call in these.

All attempts of a generation are one trace, whichever process makes them: ids of traces and of attempts follow from the
document, its generation and the number of the claim, so an attempt can name the one before (a link) without asking. A
document that came with a `traceparent` in its meta belongs to that trace instead.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from perdure.calls.dependency import Operation, subscribe
from perdure.core.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    Event,
    Events,
    JobRecovered,
    StageHandedOver,
    StageSaved,
    WriteFenced,
)

FLUSH_MS = 3_000
MS = 1_000_000  # nanoseconds
GOOD = ("done", "answered", "gather")
_log = logging.getLogger("perdure.traces")
#: A document's traceparent, for whoever did not see the attempt begin.
Parent = Callable[[str, str], Awaitable[str | None]]


class ChosenIds(IdGenerator):
    """Random ids, except where somebody has chosen them just before."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.trace: int | None = None
        self.span: int | None = None

    def generate_trace_id(self) -> int:
        chosen, self.trace = self.trace, None
        return self._random.generate_trace_id() if chosen is None else chosen

    def generate_span_id(self) -> int:
        chosen, self.span = self.span, None
        return self._random.generate_span_id() if chosen is None else chosen


@dataclass(slots=True)
class Open:
    """An attempt under way."""

    span: Span
    stage_ns: int  # when the stage began that runs now
    calls: list[Operation] = field(default_factory=list)  # of that stage


class Traces:
    """Makes spans of what is published, until `close`."""

    def __init__(self, events: Events, parent: Parent | None = None) -> None:
        self._ids = ChosenIds()
        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: "perdure"}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("perdure")
        self._parent = parent
        self._open: dict[str, Open] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._leave = [events.subscribe(self.hear), subscribe(self.called)]

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        for leave in self._leave:
            leave()
        self._leave.clear()
        for attempt in self._open.values():
            attempt.span.end()
        self._open.clear()
        if not self._provider.force_flush(FLUSH_MS):
            _log.warning("some spans could not be sent in time")

    # --- attempts --------------------------------------------------------------------------------

    def hear(self, event: AnyEvent) -> None:
        """Begin, go on with or end the span of an attempt."""
        match event:
            case AttemptStarted():
                span = self._attempt(event, event.generation, event.claims, event.traceparent, time.time_ns())
                self._open[event.job_id] = Open(span, time.time_ns())
            case StageSaved():
                self._stage(event, "saved")
            case StageHandedOver():
                self._stage(event, "handed_over")
                self._end(event, "handed_over")
            case AttemptEnded():
                failed = event.error_type is not None
                if failed:
                    self._stage(event, event.outcome, event.error, event.error_type)
                self._end(event, event.outcome, event.error if failed else None, event.why)
            case WriteFenced():
                self._end(event, "fenced", "the lease had passed on")
            case JobRecovered():
                self._recovered(event)
            case _:
                return

    def _attempt(
        self, event: Event, generation: int, claims: int, traceparent: str | None, start_ns: int
    ) -> Span:
        parent, trace = given(traceparent), trace_id(event, generation)
        if parent is not None:
            trace = parent.trace_id
        links = []
        if claims > 1:
            before = SpanContext(trace, span_id(event, generation, claims - 1), True, TraceFlags(1))
            links.append(Link(before, {"perdure.link": "previous attempt"}))
        self._ids.trace, self._ids.span = trace, span_id(event, generation, claims)
        span = self._tracer.start_span(
            f"attempt {event.pipeline}",
            set_span_in_context(NonRecordingSpan(parent)) if parent is not None else None,
            SpanKind.CONSUMER,
            {**facts(event), "perdure.generation": generation, "perdure.claim": claims},
            links,
            start_time=start_ns,
        )
        self._ids.trace = self._ids.span = None
        return span

    def _end(self, event: Event, outcome: str, error: str | None = None, why: str = "") -> None:
        attempt = self._open.pop(event.job_id, None)
        if attempt is None:
            return
        attempt.span.set_attributes({"perdure.outcome": outcome, "perdure.stage": event.stage})
        self._calls(attempt, attempt.span)  # of a stage that was not to end
        if why:
            attempt.span.set_attribute("perdure.why", why)
        if outcome not in GOOD and error is not None:
            attempt.span.set_status(Status(StatusCode.ERROR, error))
        attempt.span.end()

    def _recovered(self, event: JobRecovered) -> None:
        """The process that ran it is gone and took its span along; one that is ours is ended by what follows."""
        if event.job_id in self._open or event.claims == 0:
            return

        async def tell() -> None:
            traceparent = await self._parent(event.org, event.document_id) if self._parent else None
            span = self._attempt(event, event.generation, event.claims, traceparent, event.started_ms * MS)
            span.set_attribute("perdure.outcome", "recovered")
            span.set_status(Status(StatusCode.ERROR, event.reason))
            span.end()

        task = asyncio.get_running_loop().create_task(tell())
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    # --- what is in them -------------------------------------------------------------------------

    def _stage(
        self, event: Event, outcome: str, error: str | None = None, error_type: str | None = None
    ) -> None:
        attempt = self._open.get(event.job_id)
        if attempt is None:
            return
        now_ns = time.time_ns()  # it is told of when it is saved, so that is a part of it
        span = self._tracer.start_span(
            f"stage {event.stage}",
            set_span_in_context(attempt.span),
            attributes={**facts(event), "perdure.outcome": outcome},
            start_time=attempt.stage_ns,
        )
        if isinstance(event, StageSaved):
            span.set_attribute("perdure.duration_ms", event.duration_ms)
        if error is not None:
            span.set_attribute("error.type", error_type or "")
            span.set_status(Status(StatusCode.ERROR, error))
        self._calls(attempt, span)
        span.end(now_ns)
        attempt.stage_ns = now_ns

    def called(self, ended: Operation) -> None:
        """Keep a call for its stage's span; it may have ended in a thread."""
        attempt = self._open.get(ended.job_id) if ended.job_id is not None else None
        if attempt is not None:
            attempt.calls.append(ended)

    def _calls(self, attempt: Open, within: Span) -> None:
        calls, attempt.calls = attempt.calls, []
        for call in calls:
            self._call(call, within)

    def _call(self, ended: Operation, within: Span) -> None:
        span = self._tracer.start_span(
            f"call {ended.api_name}",
            set_span_in_context(within),
            SpanKind.CLIENT,
            {"perdure.dependency": ended.api_name, "perdure.retries": ended.retry_count},
            start_time=(ended.timestamp_ms - ended.latency_ms) * MS,
        )
        if not ended.success:
            span.set_status(Status(StatusCode.ERROR, f"failed after {ended.retry_count} retries"))
        span.end(ended.timestamp_ms * MS)


def trace_id(event: Event, generation: int) -> int:
    """The trace of a document's generation."""
    return _number(16, event.org, event.document_id, generation)


def span_id(event: Event, generation: int, claims: int) -> int:
    """The span of a claim."""
    return _number(8, event.org, event.document_id, event.job_id, generation, claims)


def _number(size: int, *parts: Any) -> int:
    digest = hashlib.sha256("\0".join(map(str, parts)).encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:size], "big") or 1  # 0 means none


def facts(event: Event) -> dict[str, str | int]:
    """What every span of a document says."""
    return {
        "perdure.document_id": event.document_id, "perdure.org": event.org, "perdure.pipeline": event.pipeline,
        "perdure.stage": event.stage, "perdure.attempt": event.attempt, "perdure.job_id": event.job_id,
    }  # fmt: skip


def given(traceparent: str | None) -> SpanContext | None:
    """What a `traceparent` means; None where there is none that can be understood."""
    parts = (traceparent or "").split("-")
    try:
        version, trace, span, flags = (int(part, 16) for part in parts[:4])
    except ValueError:
        return None
    sizes = [len(part) for part in parts[:4]]
    if version == 0xFF or not trace or not span or sizes != [2, 32, 16, 2]:
        return None
    return SpanContext(trace, span, True, TraceFlags(flags))
