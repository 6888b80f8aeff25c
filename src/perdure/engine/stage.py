"""One stage of a pipeline: the user's function with its options, its inputs, its contracts and its types."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar

from perdure.core.frozen import frozen
from perdure.core.gathered import Gathered
from perdure.core.lane import lane_of
from perdure.core.model import Job, Policy
from perdure.core.naming import NAME, NAME_RULE
from perdure.core.outcome import Failure
from perdure.engine.address import module_address
from perdure.engine.codec import Codec
from perdure.engine.context import Context
from perdure.engine.document import Document
from perdure.engine.option import Option
from perdure.engine.result import DEGRADED, DEGRADED_CHARS_MAX, Produced, Result, Row, chunk_set
from perdure.engine.wiring import CONTEXT, DOCUMENT, FAILURE, GATHERED, INPUT, PREVIOUS, STAGE, Wiring, wire
from perdure.errors import InputInvalid, PerdureError, Permanent, PipelineInvalid, Transient

if TYPE_CHECKING:
    from perdure.engine.pipeline import Pipeline

#: Seconds that a run may take, and may show no progress; None: any time.
Limits = tuple[float | None, float | None]
P = ParamSpec("P")
R = TypeVar("R")
Check = TypeVar("Check", bound=Callable[..., bool])
Fall = TypeVar("Fall", bound=Callable[..., Any])

LEASE_S_MAX = 24 * 86_400  # in milliseconds it must fit into 32 bits


class StageOptions(TypedDict, total=False):
    """What `@pipeline.stage(...)` takes."""

    version: int  # raise it when the code changes what it gives: saves of other versions are not taken up
    timeout: float | None  # seconds one run may take
    stall: float | None  # seconds it may show no progress
    isolate: bool  # in a process of its own that can be killed
    # there if what it reads of earlier stages has at least this many bytes
    isolate_from: int | Callable[[], int | None] | None
    sandbox: bool  # which can reach no network and no file but its own
    statements: Iterable[str]  # that such a process may give in Result(sql=...)
    memory_mb: int  # of that process
    cpu_s: int | None  # of that process
    reuse: int  # runs that such a process serves, one after the other, as long as all go well
    preload: Iterable[str]  # modules that it finds imported; each process would import them anew
    # dependencies, or what tells them; the document is held while one of them is down
    needs: Iterable[str] | Callable[[], tuple[str, ...]]
    lease_s: float | None
    attempts: int | Callable[[], int] | None
    backoff_s: float | None
    model: str | Callable[[], str | None] | None  # saves of another model are not taken up
    was: str | None  # its name before it was renamed
    # gather only for a document that was fetched and where this holds of an earlier stage's output: (stage, test)
    gathers_if: tuple[str, Callable[[Any], bool]] | None


@frozen
class Contract:
    """What must hold before the stage is saved."""

    name: str
    check: Callable[..., bool]
    wiring: Wiring


@frozen
class Fallback:
    """What stands in for a stage that cannot be had."""

    fn: Callable[..., Any]
    wiring: Wiring
    is_async: bool


class Stage(Generic[P, R]):
    """Made by `@pipeline.stage`. Called like the function it was made from, it simply runs it."""

    needs: Option[tuple[str, ...]] = Option()
    attempts: Option[int | None] = Option()
    isolate_from: Option[int | None] = Option()

    def __init__(
        self,
        pipeline: Pipeline,
        fn: Callable[P, R],
        wiring: Wiring,
        *,
        version: int = 1,
        timeout: float | None = None,
        stall: float | None = None,
        isolate: bool = False,
        isolate_from: int | Callable[[], int | None] | None = None,
        sandbox: bool = False,
        statements: Iterable[str] = (),
        memory_mb: int = 2048,
        cpu_s: int | None = None,
        reuse: int = 1,
        preload: Iterable[str] = (),
        needs: Iterable[str] | Callable[[], tuple[str, ...]] = (),
        lease_s: float | None = None,
        attempts: int | Callable[[], int] | None = None,
        backoff_s: float | None = None,
        model: str | Callable[[], str | None] | None = None,
        was: str | None = None,
        gathers_if: tuple[str, Callable[[Any], bool]] | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name: str = fn.__name__
        self.pipeline = pipeline
        self.wiring = wiring
        self.is_async = inspect.iscoroutinefunction(fn)
        self.version, self.was = version, was
        self.timeout, self.stall = timeout, stall  # as it says itself; see `limits`
        self.isolate, self.isolate_from = isolate, isolate_from
        self.wants_cells = isolate or isolate_from is not None  # for some of its runs
        self.sandbox = sandbox
        self.statements = frozenset([statements] if isinstance(statements, str) else statements)
        self.memory_mb, self.cpu_s = memory_mb, cpu_s
        self.reuse, self.preload = reuse, tuple(preload)
        self.needs = needs if callable(needs) else (needs,) if isinstance(needs, str) else tuple(needs)
        self.lease_s, self.attempts, self.backoff_s, self.model = lease_s, attempts, backoff_s, model
        self.contracts: list[Contract] = []
        self.substitute: Fallback | None = None
        self.reads = wiring.sources  # the stages that it or a contract of it reads
        self.wants_context = CONTEXT in wiring.inputs.values()
        self.wants_previous = PREVIOUS in wiring.inputs.values()
        self.gathers, self.gathers_if = GATHERED in wiring.inputs.values(), gathers_if
        self.codec = Codec(wiring.output, f"what stage {self.name} gives")
        self._codecs: dict[str, Codec] = {}  # of what it reads
        self._check_options()
        self.lease_ms = int(1000 * (lease_s or pipeline.lease_s))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.fn(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Stage {self.pipeline.name}.{self.name} version {self.version}>"

    @property
    def inputs(self) -> dict[str, str]:
        """Parameter → where its value comes from: document, context, stage, input, failure, previous or gathered."""
        return self.wiring.inputs

    @property
    def sources(self) -> tuple[str, ...]:
        """The stages it reads, in parameter order: what its input hash is made of."""
        return self.wiring.sources

    @property
    def contract_sources(self) -> frozenset[str]:
        """The stages its contracts read besides itself."""
        return frozenset(name for contract in self.contracts for name in contract.wiring.sources) - {
            self.name
        }

    def limits(self, default: Limits) -> Limits:
        """Seconds that one run may take, and may show no progress: as the stage says, or else the default."""
        if self.timeout is not None or self.stall is not None:
            return self.timeout, self.stall
        return default

    @property
    def lane(self) -> str:
        """Where its jobs stand; no document is held for a stage that has a fallback."""
        return lane_of(self.needs, soft=self.substitute is not None)

    @property
    def target(self) -> str:
        """Its address for a fresh process, see pipeline.find_target: `module:pipeline.stage`."""
        return f"{module_address(self.fn)}:{self.pipeline.name}.{self.name}"

    def model_name(self) -> str | None:
        """The model its output depends on, asked anew each time."""
        return self.model() if callable(self.model) else self.model

    def policy(self, job: Job) -> Policy:
        """The job's policy with this stage's own settings; a document that brought its own keeps them."""
        base = job.policy
        if base.pinned:
            return base
        # the job's budget is that of its most patient stage
        usual = self.pipeline.attempts_of(job.collection or "" if "/" not in job.key else "")
        attempts = self.attempts if self.attempts is not None else min(base.attempts, usual)
        base_ms = base.base_ms if self.backoff_s is None else int(1000 * self.backoff_s)
        return replace(base, attempts=attempts, base_ms=base_ms)

    def ensure(self, check: Check) -> Check:
        """A completion contract: unless it returns true the stage is not saved and the attempt fails."""
        name = getattr(check, "__name__", str(check))
        owner = f"contract {name} of stage {self.name}"
        function: Any = check
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise PipelineInvalid(f"{owner} must be a plain function")
        outputs = self.pipeline.outputs_until(self)
        wiring = wire(owner, check, outputs, frozenset({DOCUMENT, STAGE}), sys._getframe(1).f_locals)
        self.contracts.append(Contract(name, check, wiring))
        self.reads = (*self.sources, *sorted(self.contract_sources - set(self.sources)))
        return check

    def fallback(self, fn: Fall) -> Fall:
        """What the stage gives when the service it needs is down or its last attempt has failed: the document goes on,
        `degraded`, and a job of its own runs the stage again when the service is back. (doc, failure, earlier stages)

        A document is never held for a stage that has one.
        """
        owner = f"fallback {getattr(fn, '__name__', fn)} of stage {self.name}"
        if self.substitute is not None:
            raise PipelineInvalid(f"stage {self.name} has a fallback already")
        outputs = {
            name: kind for name, kind in self.pipeline.outputs_until(self).items() if name != self.name
        }
        kinds = frozenset({DOCUMENT, STAGE, INPUT, FAILURE})
        wiring = wire(owner, fn, outputs, kinds, sys._getframe(1).f_locals)
        if strange := set(wiring.sources) - set(self.sources):
            raise PipelineInvalid(f"{owner} reads {', '.join(sorted(strange))}, which the stage does not")
        self.substitute = Fallback(fn, wiring, inspect.iscoroutinefunction(fn))
        return fn

    def stand_in(
        self, document: Document, values: Mapping[str, Any], job_input: bytes | None, failure: Failure
    ) -> Callable[[], Any]:
        """The fallback, ready to be called."""
        assert self.substitute is not None
        given: dict[str, Any] = {}
        for name, kind in self.substitute.wiring.inputs.items():
            if kind == INPUT:
                given[name] = Codec(self.substitute.wiring.types[name], "the input").decode(
                    job_input or b"{}"
                )
            else:
                given[name] = {DOCUMENT: document, FAILURE: failure}.get(kind) or values[name]
        return functools.partial(self.substitute.fn, **given)

    def load(self, parameter: str, raw: bytes) -> Any:
        """The saved output of the stage `parameter`, as this stage (or a contract of it) wants it: InputInvalid."""
        codec = self._codecs.get(parameter)
        if codec is None:
            codec = self._codecs[parameter] = self._codec_of(parameter)
        return codec.decode(raw)

    def _codec_of(self, parameter: str) -> Codec:
        if parameter == PREVIOUS:
            return self.codec
        if parameter == GATHERED:
            return Codec(Gathered, "what the document spawned")
        producer = self.pipeline.at(parameter)
        if producer is not None and producer.codec.type is not Any:
            return producer.codec
        return Codec(self.wiring.types.get(parameter, Any), f"the saved output of {parameter}")

    def arguments(
        self, document: Document, context: Context | None, values: Mapping[str, Any], job_input: bytes | None
    ) -> dict[str, Any]:
        """What to call `fn` with; `values` holds the loaded outputs of `sources` and, if there is one, what the stage
        saved in an earlier generation; `context` what it may want."""
        given: dict[str, Any] = {}
        for name, kind in self.inputs.items():
            if kind == STAGE:
                given[name] = values[name]
            elif kind == DOCUMENT:
                given[name] = document
            elif kind == CONTEXT:
                given[name] = context
            elif kind in (PREVIOUS, GATHERED):
                given[name] = values.get(kind)
            else:
                given[name] = self._job_input(name, kind, job_input)
        return given

    def collect(self, returned: Any) -> tuple[Produced, Any]:
        """What the stage returned, ready to be saved, and its value as the next stage is to see it."""
        if not isinstance(returned, Result):
            try:
                output, value = self.codec.saved(returned)
            except PerdureError:
                if not inspect.isawaitable(returned):
                    raise
                message = f"stage {self.name} returned an awaitable; write it as async def"
                raise Permanent("result_invalid", message) from None
            return Produced(output), value
        output, value = self.codec.saved(returned.value)
        rows = tuple(row.emitted() for row in returned.rows)
        sql = tuple((text, tuple(params)) for text, params in returned.sql)
        chunks = None if returned.chunks is None else chunk_set(returned.chunks)
        connections = None if returned.connections is None else tuple(returned.connections)
        if returned.degraded:
            why = {"why": returned.degraded[:DEGRADED_CHARS_MAX]}
            rows += (Row(DEGRADED, stage=self.name, data=why).emitted(),)
        degraded = bool(returned.degraded)
        return Produced(output, rows, tuple(returned.spawn), sql, chunks, connections, degraded), value

    def verify(self, document: Document, values: Mapping[str, Any]) -> None:
        """Transient(contract_broken) unless every contract holds; `values` has this stage's own value too."""
        for contract in self.contracts:
            inputs = contract.wiring.inputs
            given = {name: document if kind == DOCUMENT else values[name] for name, kind in inputs.items()}
            if not contract.check(**given):
                raise Transient(
                    f"contract {contract.name} of stage {self.name} does not hold", code="contract_broken"
                )

    def _job_input(self, name: str, kind: str, raw: bytes | None) -> Any:
        if kind == FAILURE:
            known = json.loads(raw or b"null")
            return None if known is None else Failure(**known)
        try:
            return Codec(self.wiring.types[name], f"the input of stage {self.name}").decode(raw or b"{}")
        except InputInvalid as error:
            raise Permanent("input_invalid", str(error)) from error

    def check_types(self) -> None:
        """PipelineInvalid where a type it saves or takes as input cannot be stored."""
        self.codec.check()
        for name, kind in self.inputs.items():
            if kind in (INPUT, STAGE):
                Codec(self.wiring.types[name], f"parameter {name!r} of stage {self.name}").check()

    def _check_options(self) -> None:
        owner = f"stage {self.name}"
        if self.version < 1:
            raise PipelineInvalid(f"{owner}: version must be 1 or more, not {self.version!r}")
        check_positive(
            owner,
            timeout=self.timeout,
            stall=self.stall,
            memory_mb=self.memory_mb,
            cpu_s=self.cpu_s,
            reuse=self.reuse,
            lease_s=self.lease_s,
            attempts=self.attempts,
        )
        if self.isolate_from is not None and self.isolate_from < 0:
            raise PipelineInvalid(f"{owner}: isolate_from must be 0 or more, not {self.isolate_from!r}")
        check_lease(owner, self.lease_s)
        if self.reuse > 1 and not self.wants_cells:
            raise PipelineInvalid(
                f"{owner}: reuse is for stages that run in a process of their own (isolate=True)"
            )
        if self.sandbox and not self.isolate:
            raise PipelineInvalid(f"{owner}: sandbox is for stages with isolate=True")
        if self.backoff_s is not None and self.backoff_s < 0:
            raise PipelineInvalid(f"{owner}: backoff_s must not be negative")
        for name in (*self.needs, *([] if self.was is None else [self.was])):
            if not NAME.fullmatch(name):
                raise PipelineInvalid(f"{owner}: the name {name!r} must be {NAME_RULE}")


def check_lease(owner: str, lease_s: float | None) -> None:
    """PipelineInvalid where it is longer than every store can keep."""
    if lease_s is not None and lease_s > LEASE_S_MAX:
        raise PipelineInvalid(
            f"{owner}: lease_s must be at most {LEASE_S_MAX} (24 days), not {lease_s!r}; it is renewed while the stage "
            "runs, so a long stage needs no long lease"
        )


def check_positive(owner: str, **settings: object) -> None:
    """PipelineInvalid names the first setting that is given and not above 0."""
    for name, value in settings.items():
        if value is not None and not (isinstance(value, int | float) and value > 0):
            raise PipelineInvalid(f"{owner}: {name} must be a number above 0, not {value!r}")
