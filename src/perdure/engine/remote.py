"""Stages that another service does: `pipeline.remote_stage("parse", event="ArchiveIngested", done="JSONParsed")`.

When a document reaches one, its job is handed over (`handing`): an event goes out, and the job runs under a token of
its own in no worker of ours, until the service answers (`answering`) or its lease ends and the sweeper takes it back.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Required, TypedDict

from perdure.core.model import Job, Policy
from perdure.core.naming import NAME, NAME_RULE
from perdure.engine.address import module_address, register
from perdure.engine.stage import Stage, check_positive
from perdure.engine.wiring import RESERVED, STAGE, Wiring
from perdure.errors import PipelineInvalid

if TYPE_CHECKING:
    from perdure.engine.pipeline import Pipeline

LEASE_S = 900.0
#: A word of a routing key, or several with dots between them; the signs that stand for any word are not for us.
EVENT = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
EVENT_LENGTH_MAX = 200


class RemoteOptions(TypedDict, total=False):
    """What `pipeline.remote_stage(name, ...)` takes; `event` and `done` must be given."""

    event: Required[str]  # tells the service that there is something to do
    done: Required[str]  # its answer, with what the stage gives
    failed: str  # its answer if it could not; also published when a document dies there. By default `{event}Failed`
    output: Any  # the type of what it gives
    reads: Sequence[str]  # earlier stages whose outputs go with the event
    lease: float  # seconds until it must have answered, or beaten: then they begin anew
    wait: float | None  # seconds the event may lie in its queue before that; by default as long as the lease
    attempts: int | None
    backoff_s: float | None  # by default RETRY_JOB_BASE_DELAY_SECONDS
    backoff_cap_s: float | None  # by default, with that, RETRY_JOB_MAX_DELAY_SECONDS
    jitter: bool
    needs: Sequence[str]  # dependencies; nothing is handed over while one of them is down
    version: int  # raise it when what it gives means something else
    model: str | None


class RemoteStage(Stage[..., Any]):
    """Made by `pipeline.remote_stage`; there is no code of it here."""

    def __init__(
        self,
        pipeline: Pipeline,
        name: str,
        module: str,
        *,
        event: str,
        done: str,
        failed: str | None = None,
        output: Any = Any,
        reads: Sequence[str] = (),
        lease: float = LEASE_S,
        wait: float | None = None,
        attempts: int | None = None,
        backoff_s: float | None = None,
        backoff_cap_s: float | None = None,
        jitter: bool = False,
        needs: Sequence[str] = (),
        version: int = 1,
        model: str | None = None,
    ) -> None:
        owner = f"stage {name} of pipeline {pipeline.name}"
        known = pipeline.outputs_until()
        if unknown := [read for read in reads if read not in known]:
            raise PipelineInvalid(f"{owner}: {unknown[0]!r} in reads is no earlier stage")
        self.event, self.done, self.failed = event, done, failed or f"{event}Failed"
        for word in (self.event, self.done, self.failed):
            if len(word) > EVENT_LENGTH_MAX or not EVENT.fullmatch(word):
                raise PipelineInvalid(
                    f"{owner}: an event is called by letters, digits and dots, not {word!r}"
                )
        if self.done == self.failed:
            raise PipelineInvalid(f"{owner}: done and failed must be two events, not {self.done!r} twice")
        check_positive(owner, lease=lease, wait=wait, backoff_cap_s=backoff_cap_s)
        wiring = Wiring(
            dict.fromkeys(reads, STAGE), {read: known[read] for read in reads}, output, tuple(reads)
        )
        super().__init__(
            pipeline, _nothing(name, module), wiring, version=version, needs=needs, attempts=attempts,
            backoff_s=backoff_s, model=model,
        )  # fmt: skip
        self.remote_lease_ms = int(1000 * lease)
        self.wait_ms = int(1000 * (lease if wait is None else wait))
        self.cap_ms = None if backoff_cap_s is None else int(1000 * backoff_cap_s)
        self.jitter = jitter

    def policy(self, job: Job) -> Policy:
        """As that of any stage; waits that neither it nor its pipeline says are RETRY_JOB_BASE_DELAY_SECONDS and twice
        that each time, up to RETRY_JOB_MAX_DELAY_SECONDS."""
        if job.policy.pinned:
            return job.policy
        found = replace(super().policy(job), jitter=self.jitter)
        if self.backoff_s is not None or self.cap_ms is not None:
            return replace(found, cap_ms=self.cap_ms)
        if self.pipeline.says_waits:
            return found
        base_ms, cap_ms = _delays()
        return replace(found, base_ms=base_ms, cap_ms=cap_ms)


def _delays() -> tuple[int, int]:
    from perdure.settings import current  # heavy, and a pipeline is defined without it

    settings = current()
    base_s, cap_s = settings.retry_job_base_delay_seconds, settings.retry_job_max_delay_seconds
    return round(base_s * 1000), round(cap_s * 1000)


def add_remote(pipeline: Pipeline, name: str, module: str, options: dict[str, Any]) -> RemoteStage:
    """Make the stage and put it at the end of the pipeline: PipelineInvalid."""
    owner = f"stage {name} of pipeline {pipeline.name}"
    if not NAME.fullmatch(name) or name in RESERVED:
        raise PipelineInvalid(
            f"{owner}: its name must be {NAME_RULE}, and not a word with a meaning of its own"
        )
    stage = RemoteStage(pipeline, name, module, **options)
    pipeline.check_names(owner, stage)
    pipeline.stages.append(stage)
    with suppress(PipelineInvalid):  # what is typed at a prompt runs here, and only here
        register(module_address(stage.fn), pipeline)
    return stage


def _nothing(name: str, module: str) -> Callable[..., Any]:
    """What stands for the code that is elsewhere, in the module that defined the stage."""

    def elsewhere(**_: Any) -> Any:
        raise PipelineInvalid(f"stage {name} has no code here: another service does it")

    elsewhere.__name__ = elsewhere.__qualname__ = name
    elsewhere.__module__ = module
    return elsewhere
