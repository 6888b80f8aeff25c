"""Documents and jobs: their states, the legal moves between them, and what a job carries.

A *document* is what was handed in. A *job* is one run of a pipeline over it: key `doc-{document_id}`, follow-up jobs
of the same document `doc-{id}/{name}`. An *attempt* is one claim of a job that ended. A *generation* starts with an
operator's requeue and has a fresh attempt budget.
"""

from __future__ import annotations

import json
from dataclasses import field, fields
from enum import StrEnum

from perdure.core.backoff import Backoff
from perdure.core.frozen import frozen

ORG_DEFAULT = "default"
QUEUE_DEFAULT = "documents"


class State(StrEnum):
    """Where a job is. `held` is not stored: it is `queued` in a lane that is down."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    PARKED = "parked"  # over its concurrency limit; shown as queued
    HELD = "held"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


TERMINAL = frozenset({State.DONE, State.DEAD, State.CANCELLED})

_LIVE = {State.QUEUED, State.PARKED, State.WAITING}
_ENDS = {State.DEAD, State.CANCELLED}

#: Every legal move of a job; from a terminal state only an operator's requeue leads on, into a new generation.
MOVES: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.RUNNING} | _LIVE | _ENDS),
    State.RUNNING: frozenset({State.DONE} | _LIVE | _ENDS),
    State.WAITING: frozenset(_LIVE | _ENDS),
    State.PARKED: frozenset(_LIVE | _ENDS),
    State.HELD: frozenset({State.QUEUED} | _ENDS),
    State.DONE: frozenset(_LIVE),
    State.DEAD: frozenset(_LIVE),
    State.CANCELLED: frozenset(_LIVE),
}

States = frozenset[State]

_PENDING = frozenset({State.QUEUED, State.PARKED, State.WAITING, State.HELD})
_RUNNING = frozenset({State.RUNNING})
_DONE = frozenset({State.DONE})

#: Words of other systems that filters accept: (states, stage or None). Every state is one of pending, processing,
#: completed and failed.
ALIASES: dict[str, tuple[States, str | None]] = {
    "pending": (_PENDING, None),
    "processing": (_RUNNING, None),
    "fetching": (_RUNNING, "fetch"),
    "completed": (_DONE, None),
    "complete": (_DONE, None),
    "processed": (_DONE, None),
    "failed": (frozenset(_ENDS), None),
    "failed_max_retries": (frozenset({State.DEAD}), None),
    "extracting": (_RUNNING, "extract"),
    "extracted": (_RUNNING, "chunk"),
    "saving_markdown": (_RUNNING, "extract"),
    "markdown_saved": (_RUNNING, "chunk"),
    "chunking": (_RUNNING, "chunk"),
    "chunked": (_RUNNING, "embed"),
    "embedding": (_RUNNING, "embed"),
    "embedded": (_RUNNING, "index"),
}


def state_filter(word: str) -> tuple[States, str | None]:
    """The states (and the stage) that a filter word means; ValueError lists the accepted words."""
    lowered = word.strip().lower()
    if lowered in ALIASES:
        return ALIASES[lowered]
    try:
        return frozenset({State(lowered)}), None
    except ValueError:
        known = ", ".join([*State, *ALIASES])
        raise ValueError(f"unknown state {word!r}; one of: {known}") from None


@frozen
class Policy:
    """How often and how long a job is tried. `attempts` means total executions."""

    attempts: int = 3
    base_ms: int = 2_000
    cap_ms: int | None = None
    jitter: bool = False
    postpones_max: int = 100
    age_max_ms: int = 7 * 86_400_000
    hooks: tuple[str, ...] = ()
    pinned: bool = False  # the document brought its own; stages do not override it

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.base_ms, self.cap_ms, self.jitter)

    def to_text(self) -> str | None:
        """Compact JSON of what differs from the defaults; None when nothing does."""
        changed = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) != f.default}
        return json.dumps(changed, separators=(",", ":")) if changed else None

    @classmethod
    def from_text(cls, text: str | None) -> Policy:
        if text is None:
            return POLICY_DEFAULT
        known = {f.name for f in fields(cls)}  # a newer release may have written more
        given = {name: value for name, value in json.loads(text).items() if name in known}
        if "hooks" in given:
            given["hooks"] = tuple(given["hooks"])
        return cls(**given)


POLICY_DEFAULT = Policy()
#: Of the jobs behind `on_dead` and `on_done`: more patient than the document they tell about.
POLICY_HOOK = Policy(attempts=5, cap_ms=300_000)


@frozen
class Job:
    """A claimed job as its worker sees it; `token` fences every write made for it."""

    id: int
    org: str
    key: str
    document_id: str
    pipeline: str
    queue: str
    lane: str
    stage: str
    token: int
    generation: int
    attempts: int
    claims: int
    postpones: int
    releases: int
    crashes: int
    postponed_ms: int
    suspect: bool
    attempts_max: int
    policy: Policy
    claimed_ms: int
    lease_ms: int
    fresh_from: str | None = None
    priority: int = 0
    input: bytes | None = None  # the job's own input, for follow-up jobs
    limit_key: str | None = None
    worker: int = 0
    holds: int = 0
    progress_ms: int | None = None  # of the last save
    probe: str | None = None  # lent: its next stage may run although this dependency is down
    remote: str | None = None  # of the last stage that was handed over, see `Handover`
    flickers: int = 0  # times in a row that a call failed which may have failed by accident
    collection: str | None = field(default=None, compare=False)  # its document's, where it was claimed

    @property
    def handed_over(self) -> bool:
        """Whether another service works on it: it runs, but in no worker of ours."""
        return self.worker == 0 and self.remote is not None

    @property
    def resumed(self) -> bool:
        """Whether something may have been saved by an earlier claim."""
        return self.generation > 1 or (self.claims > 1 and self.progress_ms is not None) or repairs(self.key)


#: When a job is due that waits for what it spawned: nobody knows, a sweep finds out.
GATHERING_MS = 9_000_000_000_000_000

#: Ends the name of a stage that is to run anew alone; those after it run where what they read has changed.
ONLY = " only"


#: Begins the name of a follow-up job that does properly what a stage did by its fallback.
REPAIR = "repair-"


def repairs(key: str) -> bool:
    """Whether the job of this key repairs a document."""
    return "/" in key and key.partition("/")[2].startswith(REPAIR)


#: Ends the name of a follow-up job that a repair spawned.
REPAIRED = "-repaired"
#: The jobs that tell of a document's end.
HOOKS = ("on_done", "on_dead")


def is_gathered(name: str) -> bool:
    """Whether a document's completeness depends on the follow-up job of this name."""
    return not (name.startswith(REPAIR) or name.endswith(REPAIRED) or name in HOOKS)


def job_name(key: str, generation: int) -> str:
    """The name of a follow-up job without the number of its generation, of which the first has none."""
    name = key.partition("/")[2]
    return name.removesuffix(f"-g{generation}") if generation > 1 else name


def job_key(document_id: str, name: str | None = None) -> str:
    """`doc-{document_id}`, for a follow-up job `doc-{document_id}/{name}`."""
    return f"doc-{document_id}/{name}" if name else f"doc-{document_id}"
