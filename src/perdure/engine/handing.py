"""Handing a job over to another service: its new token, and the event with all that the service needs to know."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from perdure.core.handover import Handover
from perdure.core.token import new_token
from perdure.engine.document import Document
from perdure.engine.intake import OUTPUT_INLINE_BYTES_MAX
from perdure.engine.journey import Journey
from perdure.engine.notice import facts, new_event
from perdure.engine.remote import RemoteStage
from perdure.store.operations import HandOver

EXCHANGE = "perdure"


def beat_key(pipeline: str) -> str:
    """Where services publish that they are still at work on a document of this pipeline."""
    return f"beat.{pipeline}"


def hand_over(journey: Journey, stage: RemoteStage, input_hash: str, raws: Mapping[str, bytes]) -> HandOver:
    """What gives the job away: a new token, so that nothing of ours fits it any more, and the event."""
    job, document, token = journey.job, journey.document, new_token()
    policy = stage.policy(job)
    remembered = Handover(
        stage.name, stage.event, stage.done, stage.failed, document.collection, stage.version, input_hash,
        stage.remote_lease_ms, policy.attempts, policy.base_ms, policy.cap_ms, policy.jitter, stage.model_name(),
    )  # fmt: skip
    payload = facts(job, stage.name, document.collection) | {
        "token": str(token),  # JSON numbers of other languages are too short for it
        "attempts_max": min(policy.attempts, job.attempts_max),
        "lease_s": stage.remote_lease_ms / 1000,
        "reply": {
            "exchange": EXCHANGE, "done": stage.done, "failed": stage.failed, "beat": beat_key(job.pipeline),
        },
        "document": _content(document),
        "inputs": {name: _input(raw) for name, raw in raws.items()},
    }  # fmt: skip
    event = new_event(job, stage.name, stage.event, payload)
    return HandOver(job, token, stage.name, stage.lane, remembered.to_text(), stage.wait_ms, event)


def _content(document: Document) -> dict[str, Any]:
    """What was handed in: itself where it is small, else the name of its blob."""
    known: dict[str, Any] = {
        "name": document.name, "kind": document.kind, "media_type": document.media_type, "size": document.size,
        "content_hash": document.content_hash, "meta": document.meta,
    }  # fmt: skip
    if document.blob is not None:
        return known | {"blob": document.blob}
    if document.kind == "bytes":
        return known | {"data": base64.b64encode(document.data).decode()}
    return known | ({"json": document.json} if document.kind == "json" else {"text": document.text})


def _input(raw: bytes) -> dict[str, Any]:
    """The output of an earlier stage: `value` where it is small, else the name of its `blob`."""
    if len(raw) <= OUTPUT_INLINE_BYTES_MAX:
        return {"value": json.loads(raw)}
    return {"blob": hashlib.sha256(raw).hexdigest(), "size": len(raw)}
