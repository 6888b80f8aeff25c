"""What services answer about the jobs that were handed over to them: done, failed, or still at it.

An answer names the document and the token of its event. It is applied in the same guarded transaction as the end of a
local stage, so it counts once, and only while the job is still the service's.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from perdure.core.events import Events, StageSaved, WriteFenced
from perdure.core.frozen import frozen
from perdure.core.handover import UNANSWERED, Handover
from perdure.core.model import ORG_DEFAULT, Job, job_key
from perdure.core.outcome import Done, Later, Outcome, Raised, outcome
from perdure.engine import fallback
from perdure.engine.document import Document
from perdure.engine.fetched import saved_raw
from perdure.engine.intake import Content, keep
from perdure.engine.notice import death_notice
from perdure.engine.pipeline import AnyStage, Pipeline
from perdure.engine.recovery import publish_end
from perdure.engine.stage_cell import LocalFile
from perdure.errors import (
    DocumentUnknown,
    InputInvalid,
    Permanent,
    PipelineUnknown,
    StageSignal,
    StoreError,
    Transient,
    Unstorable,
)
from perdure.store.base import Store
from perdure.store.blobs import Blobs
from perdure.store.operations import Save, Settle, StageOutput
from perdure.store.text import checked

PASSED_ON = "refused: the lease passed on"
_WELL = ("answered", "done")
CODE = re.compile(r"[A-Za-z0-9_.:-]{1,100}")


@frozen
class Answered:
    """Which job an answer is about: that of the event which carried this token."""

    document_id: str
    token: int
    org: str
    key: str = ""

    @property
    def job(self) -> str:
        return self.key or job_key(self.document_id)


def answered(facts: Mapping[str, Any]) -> Answered:
    """Which job these facts of an answer mean; InputInvalid."""
    document_id, token = facts.get("document_id"), facts.get("token")
    org, key = facts.get("org") or ORG_DEFAULT, facts.get("job") or ""
    if not (isinstance(document_id, str) and isinstance(org, str) and isinstance(key, str)):
        raise InputInvalid(
            "an answer names its document: document_id, and org and job where the event has others"
        )
    try:
        number = int(token) if isinstance(token, str | int) else 0
    except ValueError:
        number = 0
    if not 0 < number < 2**63:
        raise InputInvalid("an answer carries the token of its event")
    return Answered(
        checked(document_id, "the id"), number, checked(org, "the organisation"), checked(key, "the job")
    )


class Answers:
    """Applies answers; knows the pipelines, whose types decide what is a result."""

    def __init__(self, store: Store, blobs: Blobs, pipelines: Mapping[str, Pipeline], events: Events) -> None:
        self.store, self.blobs, self.pipelines, self.events = store, blobs, pipelines, events

    async def finish(self, about: Answered, output: Any) -> str:
        """The service has done it: `saved`, `repeated` (it was saved before), `failed: why` where the output is not
        what the stage is to give, or `refused: why`. A door may have encoded the output already (Content)."""
        job = await self._job(about)
        given = None if job is None else Handover.of(job)
        if job is None or given is None:
            return await self._late(about, well=True)
        pipeline = self.pipelines.get(job.pipeline)
        if pipeline is None:
            raise PipelineUnknown(f"no pipeline {job.pipeline!r} is registered with this app")
        stage = pipeline.at(job.stage)
        try:
            save = None if stage is None else await self._save(job, given, pipeline, stage, output)
        except (StageSignal, Unstorable) as error:
            ended = await self._raised(about, job, given, error)
            return f"failed: {error}" if ended == "failed" else ended
        except (StoreError, OSError):
            raise  # not the answer's fault: it may come again
        except Exception as error:  # a contract of the stage raised
            ended = await self._raised(about, job, given, error)
            return f"failed: {error!r}" if ended == "failed" else ended
        ending: Outcome = Done()
        if stage is None or stage is not pipeline.stages[-1]:
            suspect = job.crashes > 0
            ending = Later(0, f"{given.done} came", suspect=suspect, counted=False, word="answered")
        return "saved" if await self._settle(job, ending, save) else await self._late(about, well=True)

    async def fail(
        self, about: Answered, code: str, message: str, retryable: bool = True, retry_after_s: float | None = None
    ) -> str:  # fmt: skip
        """The service could not do it; decided like a local failure: `failed`, `repeated`, or `refused: why`."""
        if not CODE.fullmatch(code):
            raise InputInvalid(f"the code of a failure is one word of up to 100 characters, not {code!r}")
        job = await self._job(about)
        given = None if job is None else Handover.of(job)
        if job is None or given is None:
            return await self._late(about, well=False)
        error = (
            Transient(message, retry_after_s=retry_after_s, code=code)
            if retryable
            else Permanent(code, message)
        )
        return await self._raised(about, job, given, error)

    async def beat(self, about: Answered) -> str:
        """The service is at it: its lease begins anew. `renewed`, or `refused: why`."""
        job = await self._job(about)
        given = None if job is None else Handover.of(job)
        if job is None or given is None:
            return PASSED_ON
        kept = await self.store.beat_remote(job.org, job.id, about.token, given.lease_ms)
        return "renewed" if kept else PASSED_ON

    async def _job(self, about: Answered) -> Job | None:
        """The job, if it is still under this token; DocumentUnknown."""
        job = await self.store.job_at(about.org, about.document_id, about.job)
        if job is not None and job.token == about.token:
            return job
        if job is None and await self.store.document(about.org, about.document_id) is None:
            raise DocumentUnknown(f"there is no document {about.document_id}; check the id")
        return None

    async def _save(
        self, job: Job, given: Handover, pipeline: Pipeline, stage: AnyStage, output: Any
    ) -> Save:
        """What a local stage would have saved: Permanent, Transient or Unstorable if the output cannot be taken."""
        if isinstance(output, Content) and output.is_file:
            raw, value = await asyncio.to_thread(_converted, pipeline, stage, output)
        else:
            raw, value = _converted(pipeline, stage, output)
        if stage.contracts:
            await self._verify(job, stage, value)
        inline, blob = await keep(raw, self.blobs)
        duration_ms = await self.store.now_ms() - job.claimed_ms
        made = StageOutput(
            stage.name, given.version, given.input_hash, hashlib.sha256(raw).hexdigest(), len(raw), inline, blob,
            given.model, duration_ms,
        )  # fmt: skip
        number = pipeline.stages.index(stage)
        following = pipeline.stages[min(number + 1, len(pipeline.stages) - 1)]
        return Save(
            job, following.name, fallback.lane(following, job), following.lease_ms, suspect=job.crashes > 0,
            ran=stage.name, output=made, frees=job.limit_key is not None and not pipeline.limited(following),
        )  # fmt: skip

    async def _verify(self, job: Job, stage: AnyStage, value: Any) -> None:
        values = {stage.name: value}
        saves = await self.store.saves(job.org, job.document_id, job.pipeline, job.generation)
        newest = {save.stage: save for save in saves}  # in the order of generations
        for name in stage.contract_sources:
            save = newest[name]
            raw = await saved_raw(save, self.blobs)
            values[name] = stage.load(name, raw or b"null")
        record = await self.store.document(job.org, job.document_id)
        if record is not None:
            path = None if record.blob is None else await self.blobs.path(record.blob)
            stage.verify(Document(record, LocalFile(path)), values)

    async def _raised(self, about: Answered, job: Job, given: Handover, error: Exception) -> str:
        ending = outcome(job, Raised(job.stage, error, policy=given.policy(job.policy)))
        return "failed" if await self._settle(job, ending, None) else await self._late(about, well=False)

    async def _settle(self, job: Job, ending: Outcome, save: Save | None) -> bool:
        given = Handover.of(job)
        stage, lane = (save.stage, save.lane) if save is not None else (job.stage, job.lane)
        settle = Settle(job, ending, stage, lane, save=save, events=death_notice(job, ending))
        if not await self.store.settle(settle):
            return False
        self.store.wake_soon()
        duration_ms = await self.store.now_ms() - job.claimed_ms
        if save is not None:
            where = (job.key, job.document_id, job.org, job.pipeline, job.attempts, job.stage)
            self.events.publish(StageSaved(*where, duration_ms))
        publish_end(self.events, job, ending, job.stage, duration_ms, given.collection if given else "")
        return True

    async def _late(self, about: Answered, well: bool) -> str:
        """Of an answer that came before nothing is said but that; one that came too late is counted."""
        ended = await self.store.ended_under(about.org, about.document_id, about.job, about.token)
        if ended is not None:
            name, code = ended
            if (name in _WELL) == well and code != UNANSWERED and name != "cancelled":
                return "repeated"
        job = await self.store.job_at(about.org, about.document_id, about.job)
        if job is not None and job.token != about.token:
            late = Later(0, "too late", word="late")
            await self.store.settle(Settle(replace(job, token=about.token), late, job.stage, job.lane))
            where = (job.key, job.document_id, job.org, job.pipeline, job.attempts, job.stage)
            self.events.publish(WriteFenced(*where))
        return PASSED_ON


def _converted(pipeline: Pipeline, stage: AnyStage, output: Any) -> tuple[bytes, Any]:
    """The output as it is saved, and as later stages read it. Raises: Permanent if it is not what they expect."""
    try:
        encoded = output.read() if isinstance(output, Content) else json.dumps(output).encode()
        raw, value = stage.codec.saved(stage.codec.decode(encoded))
        for reader in pipeline.stages:
            if stage.name in reader.sources:  # or the service would be asked for it again and again
                reader.load(stage.name, raw)
    except (InputInvalid, ValueError, TypeError) as error:
        raise Permanent("output_invalid", str(error)) from error
    return raw, value
