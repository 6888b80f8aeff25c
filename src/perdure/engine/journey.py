"""A claimed job on its way through its stages: what is saved, what is at hand, where it stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perdure.core.gathered import Gathered
from perdure.core.lane import plain, uses_of
from perdure.core.model import Job
from perdure.core.outcome import Outcome
from perdure.core.scope import Work
from perdure.engine.document import Document
from perdure.engine.keeper import monotonic_ms
from perdure.engine.pipeline import AnyStage
from perdure.store.operations import Save, Settle, StageOutput
from perdure.store.records import SavedStage

CALLS_SHARE = 0.95  # of a stage's time is for calls to services


@dataclass(slots=True)
class Journey:
    """A job on its way: what is saved, what was loaded, where it stands."""

    job: Job
    document: Document
    slot: int
    saved: dict[str, SavedStage]  # by this generation, or by earlier ones and still good
    started_ms: int
    stage: str
    lane: str
    leave: Callable[[Journey], None]  # to be told when its stages are through
    earlier: dict[str, SavedStage] = field(
        default_factory=dict
    )  # the newest that an earlier generation saved
    degraded: frozenset[str] = frozenset()  # stages that fell back in this generation
    gathered: Gathered | None = None  # for the stage that runs now
    file: Path | None = None
    fetched_bytes: int = 0  # of what was fetched, if that is a blob
    fetched_blob: str = ""  # which one the document has as its file
    small: bool = False  # it holds a slot for small documents
    outgrown: bool = False  # and is not small any more
    folder: Path | None = None  # of a copy that is ours to remove
    hashes: dict[str, str] = field(default_factory=dict)  # of the outputs so far
    raws: dict[str, bytes] = field(default_factory=dict)  # outputs that are at hand
    loaded: dict[str, Any] = field(default_factory=dict)  # of these, what the next reader need not read
    outputs: list[StageOutput] = field(default_factory=list)  # of this claim
    ignored: set[str] = field(default_factory=set)
    progressed: bool = False
    settled: bool = False
    stage_started_ms: int = 0
    stopping: bool = False
    revoked: bool = False
    left: bool = False  # its stages are through
    requests: dict[str, int] = field(default_factory=dict)  # made to services during this claim
    asked_ms: int = 0  # when the claim was asked for
    probe: str | None = None  # a dependency that may be called although it is down, until the next save
    work: Work | None = None  # the last stage that began
    #: Dependencies under whose limits it has had room ever since its claim: a save that leaves one gives its room up.
    passed: frozenset[str] = frozenset()

    def moved(self, save: Save) -> None:
        """Note what limits it has left with this save."""
        self.passed &= uses_of(save.lane)
        if save.frees:
            self.job = replace(self.job, limit_key=None)

    def begins(self, stage: AnyStage, looked_ms: int) -> Work:
        """The work that a run of this stage is; `looked_ms`: when the worker last asked what is down."""
        job = self.job
        # a claim takes nothing from a lane that is down
        allowed_ms = max(self.asked_ms, looked_ms) if stage.lane == plain(job.lane) else looked_ms
        self.work = Work(
            job.key, job.document_id, job.org, job.pipeline, stage.name, job.attempts, stage.needs, self.probe,
            self.requests, deadline_s=self.calls_until_s(stage), allowed_s=allowed_ms / 1000,
        )  # fmt: skip
        return self.work

    def rerun(self, stage: str) -> bool:
        """Whether an earlier attempt had begun with this stage, or saved it."""
        job = self.job
        return (job.resumed and stage == job.stage) or stage in self.saved or stage in self.earlier

    @property
    def alone(self) -> bool:
        """Whether it is a suspect; a stage that this claim saved has cleared it."""
        return self.job.suspect and not self.outputs

    def settle(self, ending: Outcome, save: Save | None = None) -> Settle:
        """The end of this claim, where it stands."""
        requests = json.dumps(self.requests) if self.requests else None
        return Settle(self.job, ending, self.stage, self.lane, save=save, requests=requests)

    @staticmethod
    def calls_until_s(stage: AnyStage) -> float | None:
        """When calls of a stage that begins now must end: a little before it would be cut off, so that the service is
        blamed."""
        return None if stage.timeout is None else monotonic_ms() / 1000 + stage.timeout * CALLS_SHARE
