"""Pipelines: ordered named stages over a document, wired by parameter name and checked when they are defined.

Users write them; intake, the runner and processes of their own read them. Reading order: pipeline, stage, wiring,
address (how a fresh process finds a stage), then context and result (what stage code works with).
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar, ParamSpec, TypeVar, Unpack, overload

from perdure.core.model import POLICY_HOOK, QUEUE_DEFAULT, Policy
from perdure.core.naming import NAME, NAME_RULE
from perdure.engine.address import find_pipeline, load_module, module_address, register
from perdure.engine.document import Document
from perdure.engine.option import Option
from perdure.engine.patience import patience
from perdure.engine.remote import RemoteOptions, RemoteStage, add_remote
from perdure.engine.result import ABSENT, SpawnDocument, SpawnJob, child_content, input_bytes
from perdure.engine.stage import Stage, StageOptions, check_lease, check_positive
from perdure.engine.wiring import CONTEXT, DOCUMENT, FAILURE, GATHERED, INPUT, PREVIOUS, RESERVED, STAGE, wire
from perdure.errors import InputInvalid, PipelineInvalid, StageUnknown

__all__ = ["Hook", "Pipeline", "Stage", "find", "find_target", "load_module", "module_address"]

P = ParamSpec("P")
R = TypeVar("R")
AnyStage = Stage[..., Any]

#: Hooks and later generations put these words into the keys of follow-up jobs.
_TAKEN = re.compile(r"on_(dead|done)|.*-g\d+|repair-.*|.*-repaired")
KEY_LENGTH_MAX = 500
ATTEMPTS, BACKOFF_S = 3, 2.0


class Pipeline:
    """An ordered list of stages. `attempts` means total executions; each wait is twice the one before.

    `concurrency` gives its queue slots of its own in each worker, so many; otherwise queues share the worker's.
    `concurrency_key` names, for a document, what it shares a concurrency limit with; None for nothing. Of each key that
    `app.limit` says nothing about, `concurrency_per_key` run at once; when the stage `concurrency_until` is saved the
    document does not count any more. An app that has it has the pipelines in `then` too: those whose jobs its stages
    spawn. `attempts`, waits and `concurrency` may be functions that tell them. Attempts or waits that it does not say
    are those of the document's collection (`patience`), of any other 3 attempts, 2 and 4 seconds apart. Of a document
    that is a URL, `content_stage` names the stage whose output has the `content` and `media_type` that were fetched;
    the jobs of a pipeline that is `fetched` see these as the document's own.
    `tables`: statements that create the
    tables which its stages write with `Result(sql=…)`; they run whenever an app opens its store, so write them with
    IF NOT EXISTS.
    """

    attempts: Option[int] = Option()
    backoff_s: Option[float] = Option()
    backoff_cap_s: Option[float | None] = Option()
    concurrency: Option[int | None] = Option()

    _name_pattern: ClassVar[re.Pattern[str]] = NAME
    _kinds: ClassVar[frozenset[str]] = frozenset({DOCUMENT, CONTEXT, STAGE, INPUT, PREVIOUS, GATHERED})

    def __init__(
        self,
        name: str,
        *,
        queue: str = QUEUE_DEFAULT,
        attempts: int | Callable[[], int] | None = None,
        backoff_s: float | Callable[[], float] | None = None,
        backoff_cap_s: float | Callable[[], float] | None = None,
        jitter: bool = False,
        lease_s: float = 30,
        postpones_max: int = 100,
        age_max_s: float = 7 * 86400,
        concurrency: int | Callable[[], int] | None = None,
        concurrency_key: Callable[[Document], str | None] | None = None,
        concurrency_per_key: int | None = None,
        concurrency_until: str | None = None,
        then: Sequence[Pipeline] = (),
        content_stage: str | None = None,
        fetched: bool = False,
        tables: str = "",
    ) -> None:
        if not self._name_pattern.fullmatch(name):
            raise PipelineInvalid(f"pipeline name {name!r} must be {NAME_RULE}")
        if _TAKEN.fullmatch(name):
            raise PipelineInvalid(
                f"pipeline name {name!r} would collide with keys of follow-up jobs; choose another"
            )
        owner = f"pipeline {name}"
        if not NAME.fullmatch(queue):
            raise PipelineInvalid(f"{owner}: queue name {queue!r} must be {NAME_RULE}")
        self.name = name
        self.queue = queue
        self.says_attempts, self.says_waits = attempts is not None, (backoff_s, backoff_cap_s) != (None, None)
        self.attempts = ATTEMPTS if attempts is None else attempts
        self.backoff_s = BACKOFF_S if backoff_s is None else backoff_s
        self.backoff_cap_s, self.jitter = backoff_cap_s, jitter
        self.lease_s = lease_s
        self.postpones_max, self.age_max_s = postpones_max, age_max_s
        self.concurrency = concurrency
        self.concurrency_key, self.concurrency_per_key = concurrency_key, concurrency_per_key
        self.concurrency_until = concurrency_until
        check_positive(
            owner,
            attempts=self.attempts,
            lease_s=lease_s,
            age_max_s=age_max_s,
            backoff_cap_s=self.backoff_cap_s,
            concurrency=self.concurrency,
            concurrency_per_key=concurrency_per_key,
        )
        check_lease(owner, lease_s)
        if self.backoff_s < 0 or postpones_max < 0:
            raise PipelineInvalid(f"{owner}: backoff_s and postpones_max must not be negative")
        self.stages: list[AnyStage] = []
        self.hooks: dict[str, Pipeline] = {}
        self.then = tuple(then)
        self.content_stage, self.fetched = content_stage, fetched
        self.tables = tables

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: {' → '.join(stage.name for stage in self.stages) or 'no stages'}>"

    # --- defining ----------------------------------------------------------------------------

    @overload
    def stage(self, fn: Callable[P, R], /) -> Stage[P, R]: ...
    @overload
    def stage(
        self, fn: None = None, /, **options: Unpack[StageOptions]
    ) -> Callable[[Callable[P, R]], Stage[P, R]]: ...
    def stage(self, fn: Any = None, /, **options: Unpack[StageOptions]) -> Any:
        """Add the function as the next stage, under its own name: `@books.stage` or `@books.stage(version=2)`.

        PipelineInvalid if its parameters are not the document, the context or earlier stages, or do not fit.
        """
        names = sys._getframe(1).f_locals  # types defined beside the function, not only in its module
        if fn is not None:
            return self._add(fn, names, options)
        return lambda fn: self._add(fn, names, options)

    def remote_stage(self, name: str, **options: Unpack[RemoteOptions]) -> RemoteStage:
        """Add a stage that another service does: `event` tells it to, and it answers with `done` or `failed`.

        PipelineInvalid if the names do not fit.
        """
        return add_remote(self, name, sys._getframe(1).f_globals.get("__name__", ""), dict(options))

    def on_dead(self, fn: Callable[P, R]) -> Stage[P, R]:
        """Run this when a document is set aside: a job of its own, recorded with the death. (doc, failure, ctx)"""
        return self._add_hook("dead", fn, sys._getframe(1).f_locals)

    def on_done(self, fn: Callable[P, R]) -> Stage[P, R]:
        """Run this when a document is done: a job of its own, recorded with the end. (doc, failure, ctx)"""
        return self._add_hook("done", fn, sys._getframe(1).f_locals)

    def check(self, *, types: bool = False) -> None:
        """PipelineInvalid unless it can run; with `types`, also unless all that its stages give can be stored."""
        if not self.stages:
            raise PipelineInvalid(f"pipeline {self.name} has no stages")
        if self.concurrency_until is not None and self.at(self.concurrency_until) is None:
            raise PipelineInvalid(
                f"pipeline {self.name}: concurrency_until={self.concurrency_until!r} is no stage"
            )
        for pipeline in (self, *self.hooks.values()):
            for stage in pipeline.stages if types else ():
                stage.check_types()

    # --- reading -----------------------------------------------------------------------------

    @property
    def policy(self) -> Policy:
        """What its jobs start with: the attempts of its most patient stage; `Stage.policy` gives each its own."""
        return self.policy_of("")

    def attempts_of(self, collection: str) -> int:
        """Executions in all of a stage that does not say its own number."""
        given = None if self.says_attempts else patience(collection)
        return self.attempts if given is None else given.attempts

    def policy_of(self, collection: str) -> Policy:
        """What the jobs of documents of this collection start with."""
        given = None if self.says_waits else patience(collection)
        policy = Policy(
            attempts=max(self.attempts_of(collection), *(stage.attempts or 0 for stage in self.stages), 0),
            base_ms=int(1000 * self.backoff_s),
            cap_ms=None if self.backoff_cap_s is None else int(1000 * self.backoff_cap_s),
            jitter=self.jitter,
            postpones_max=self.postpones_max,
            age_max_ms=int(1000 * self.age_max_s),
            hooks=tuple(sorted(self.hooks)),
        )
        return policy if given is None else replace(policy, base_ms=given.base_ms, cap_ms=given.cap_ms)

    @property
    def module(self) -> str | None:
        """The address of the module its first stage is in; None if no other process could load it."""
        try:
            return module_address(self.stages[0].fn) if self.stages else None
        except PipelineInvalid:
            return None

    def at(self, name: str) -> AnyStage | None:
        """The stage of this name, or the one that used to have it."""
        return next((s for s in self.stages if s.name == name), None) or next(
            (s for s in self.stages if s.was == name), None
        )

    def limited(self, stage: AnyStage) -> bool:
        """Whether a job that stands there counts under its concurrency key."""
        last = None if self.concurrency_until is None else self.at(self.concurrency_until)
        return last is None or self.stages.index(stage) <= self.stages.index(last)

    def outputs_until(self, last: AnyStage | None = None) -> dict[str, Any]:
        """Names and output types of the stages so far, or up to and including `last`."""
        end = len(self.stages) if last is None else self.stages.index(last) + 1
        return {stage.name: stage.codec.type for stage in self.stages[:end]}

    # --- spawning ----------------------------------------------------------------------------

    def job(self, doc: Document, /, **input: Any) -> SpawnJob:
        """A follow-up job on the same document, for `Result(spawn=[...])`; its stages get `input`. InputInvalid."""
        self.check()
        raw = input_bytes(input, f"input of a {self.name} job")
        return SpawnJob(self.name, self.name, doc.id, raw, self.module)

    def child(
        self,
        key: str,
        *,
        text: str = ABSENT,
        data: bytes = ABSENT,
        json: Any = ABSENT,
        name: str = "",
        meta: Mapping[str, Any] | None = None,
        collection: str | None = None,
        refresh: bool = False,
    ) -> SpawnDocument:
        """A child document for this pipeline, for `Result(spawn=[...])`; the same key is the same child. With `refresh`
        one that has other content by now is processed again."""
        self.check()
        if not 0 < len(key) <= KEY_LENGTH_MAX:
            raise InputInvalid(f"the key of a child document has 1 to {KEY_LENGTH_MAX} characters")
        kind, content = child_content(text, data, json)
        raw_meta = input_bytes(dict(meta or {}), "meta of a child document")
        return SpawnDocument(self.name, key, kind, content, name, raw_meta, collection, self.module, refresh)

    # -----------------------------------------------------------------------------------------

    def _add(self, fn: Any, names: Mapping[str, Any], options: StageOptions) -> Any:
        if isinstance(fn, Stage):
            fn = fn.fn
        name = getattr(fn, "__name__", None)
        if not callable(fn) or not isinstance(name, str):
            raise PipelineInvalid(f"pipeline {self.name}: a stage is a named function, not {fn!r}")
        owner = f"stage {name} of pipeline {self.name}"
        if not NAME.fullmatch(name):
            raise PipelineInvalid(f"{owner}: its name must be {NAME_RULE}")
        if name in RESERVED:
            raise PipelineInvalid(
                f"{owner}: {name!r} as a parameter means something else; choose another name"
            )
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise PipelineInvalid(f"{owner} is a generator; return the whole output, loop with ctx.items")
        wiring = wire(owner, fn, self.outputs_until(), self._kinds, names)
        stage: AnyStage = Stage(self, fn, wiring, **options)
        self.check_names(owner, stage)
        self.stages.append(stage)
        with suppress(PipelineInvalid):  # what is typed at a prompt runs here, and only here
            register(module_address(fn), self)
        return stage

    def check_names(self, owner: str, stage: AnyStage) -> None:
        """PipelineInvalid where a stage of this name, present or former, is there already."""
        names = {other.name for other in self.stages}
        old_names = {other.was for other in self.stages}
        if stage.name in names:
            raise PipelineInvalid(f"{owner}: there is a stage of this name already")
        if stage.name in old_names:
            raise PipelineInvalid(f"{owner}: another stage says that this was its name")
        if stage.was is not None and stage.was in names | old_names | {stage.name}:
            raise PipelineInvalid(f"{owner}: was={stage.was!r} is another stage's name, or its own")

    def _add_hook(self, event: str, fn: Callable[P, R], names: Mapping[str, Any]) -> Stage[P, R]:
        if event in self.hooks:
            raise PipelineInvalid(f"pipeline {self.name} has an on_{event} already")
        hook = Hook(f"{self.name}.on_{event}", queue=self.queue, attempts=POLICY_HOOK.attempts)
        stage: Stage[P, R] = hook._add(fn, names, {})
        self.hooks[event] = hook
        return stage


class Hook(Pipeline):
    """The pipeline of one stage behind `on_dead` and `on_done`; its job's input is the failure as JSON, or null."""

    _name_pattern = re.compile(rf"{NAME.pattern}\.on_(dead|done)")
    _kinds = frozenset({DOCUMENT, CONTEXT, FAILURE})


def find(module: str, pipeline_name: str, stage_name: str) -> AnyStage:
    """The stage in this process, loading the module at that address if need be: PipelineUnknown, StageUnknown."""
    pipeline = find_pipeline(pipeline_name, module)
    stage = pipeline.at(stage_name)
    if stage is None:
        raise StageUnknown(f"pipeline {pipeline_name} in {module} has no stage {stage_name!r}")
    return stage


def find_target(target: str) -> AnyStage:
    """The stage at `module:pipeline.stage`, see Stage.target."""
    module, _, path = target.rpartition(":")
    pipeline_name, _, stage_name = path.rpartition(".")
    return find(module, pipeline_name, stage_name)
