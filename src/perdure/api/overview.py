"""What operators see, as types: the same facts and times (milliseconds since 1970) as `perdure status --json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.operate.audit import Check
from perdure.operate.groups import Group
from perdure.operate.urgency import Problem
from perdure.store.auditing import Audited, Balance
from perdure.store.records import DependencyRecord, Kpi, OutboxRecord

MS = 1_790_000_000_000


def _example(**facts: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [facts]})


class Changed(BaseModel):
    """What is so from now on."""

    name: str = Field(examples=["documents"])
    state: Literal["paused", "running", "down", "up"]
    warning: str | None = Field(default=None, description="Why the name may be a typo.")


class QueueView(BaseModel):
    """A queue: what waits in it and for what, since when, and who serves it."""

    model_config = _example(
        name="documents", paused=False, ready=12, running=3, waiting=1, held=0, over_limit=0, stopped=0, remote=0,
        ready_since_ms=MS, workers=1,
    )  # fmt: skip
    name: str
    paused: bool
    ready: int
    running: int
    waiting: int = Field(description="For their time.")
    held: int = Field(description="For a service that is down.")
    over_limit: int = Field(description="For room under a concurrency limit.")
    stopped: int = Field(description="Because the queue is paused.")
    remote: int = Field(description="Of the running ones: in another service.")
    ready_since_ms: int | None
    workers: int = Field(description="That are alive and serve it.")


class Queues(BaseModel):
    queues: list[QueueView]


class ShareView(BaseModel):
    """Documents that a worker has in hand for an organisation, and the large ones of them."""

    model_config = _example(org="acme", in_hand=2, large=1)
    org: str
    in_hand: int
    large: int


class WorkerView(BaseModel):
    """A worker; `alive` is False where its process is gone without saying so. `silent_since_ms` is since when its
    event loop has stood still, null while it runs. `slots`, `large_slots` and `sandbox` are null until it says so."""

    model_config = _example(
        id=7, name="host-4242", queues=["documents"], alive=True, in_hand=3, started_ms=MS, beat_ms=MS + 60_000,
        silent_since_ms=None, late_writes_refused=0, slots=3, large_slots=1,
        organisations=[{"org": "acme", "in_hand": 2, "large": 1}, {"org": "beta", "in_hand": 1, "large": 0}],
        sandbox="in force",
    )  # fmt: skip
    id: int
    name: str
    queues: list[str]
    alive: bool
    in_hand: int
    started_ms: int
    beat_ms: int
    silent_since_ms: int | None
    late_writes_refused: int
    slots: int | None = Field(description="For documents of one size, small or large.")
    large_slots: int | None = Field(description="Besides, where small and large documents wait.")
    organisations: list[ShareView] = Field(description="What each of them has of the documents in hand.")
    sandbox: Literal["in force", "not available", "off", "not used"] | None = Field(
        description="Of the cells that read files; not used: no stage asks for one."
    )


class Workers(BaseModel):
    workers: list[WorkerView]


class Dependencies(BaseModel):
    """Services that stages need, and how calls to them went in the last 24 hours."""

    model_config = _example(
        dependencies=[
            {
                "name": "openai", "state": "down", "since_ms": MS, "reason": "http_503", "held_by": "breaker",
                "held": 40, "probe_at_ms": MS + 4_000, "probes": 1, "ramp_per_s": None, "nominal_per_s": 12.5,
                "tokens": 0.0, "tokens_max": 10.0, "limit_per_s": None, "paused_until_ms": None,
                "success_share": 0.0, "breaker": "open", "rate_per_s": 0.0, "in_flight": 0,
            }
        ],
        calls=[
            {
                "api_name": "openai", "operations": 1200, "retry_rate": 0.02, "success_after_retry": 0.9,
                "retries_per_retried": 1.1, "p95_added_ms": 2100, "failure_rate": 0.002,
            }
        ],
    )  # fmt: skip
    dependencies: list[DependencyRecord]
    calls: list[Kpi]


class DeadFacts(BaseModel):
    """How many documents and (by name) follow-up jobs are dead, and the largest groups of them."""

    documents: int
    follow_ups: dict[str, int]
    groups: list[Group]


class StuckFacts(BaseModel):
    """What the last sweep found not to get on."""

    documents: int
    since_ms: int | None
    starved: int
    checked_ms: int | None


class EscalationFacts(BaseModel):
    """Who should look, why, and by when."""

    tier: int
    name: str
    why: str
    answer_by_ms: int | None
    settle_by_ms: int | None
    runbook: str


class Overview(BaseModel):
    """The whole store at one moment, what needs a person first."""

    headline: str = Field(examples=["All well: 3 running, 1,204 done."])
    problems: list[Problem]
    now_ms: int
    documents: dict[str, int] = Field(description="By state.", examples=[{"running": 3, "done": 1204}])
    next_due_ms: int | None
    late_writes_refused: int
    fallbacks: dict[str, int] = Field(examples=[{"degraded": 2, "repaired": 2}])
    queues: list[QueueView]
    workers: list[WorkerView]
    dependencies: list[DependencyRecord]
    calls: list[Kpi]
    dead: DeadFacts
    stuck: StuckFacts
    escalation: EscalationFacts
    audit: Audited
    outbox: OutboxRecord
    durability: dict[str, str] = Field(
        description="What the database itself has set for commits.",
        examples=[{"synchronous_commit": "on", "fsync": "on"}],
    )


class ActView(BaseModel):
    """What somebody (or `breaker`, or a parent document) did, to what, and why."""

    model_config = _example(
        id=812, at_ms=MS, who="key backend", verb="pause", org=None, target="documents", reason="a pause"
    )
    id: int
    at_ms: int
    who: str
    verb: str
    org: str | None
    target: str
    reason: str


class Acts(BaseModel):
    """Acts, the newest first; hand `next` in as `after` for the following ones."""

    acts: list[ActView]
    next: int | None


class LastAudit(BaseModel):
    """The last looks: at the balance alone (workers do, each minute), and at everything."""

    balance: Balance
    difference: int = Field(description="Accepted and not there; 0 is as it should be.", examples=[0])
    last: Audited


class AuditView(BaseModel):
    """What an audit found: `clean` where nobody has to do anything."""

    clean: bool
    difference: int
    balance: Balance
    states: dict[str, int]
    checks: list[Check]
    looked_at: int = Field(description="Rows.")
