"""The work in hand: which job's stage the code that runs now belongs to. Set by the engine, read by the calls."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(slots=True)
class Work:
    """One run of a stage. Whoever makes a request for it counts it in `requests`, under the dependency's name.

    `probe` names a dependency that this run may call although it is down: what comes of that tells whether the service
    is back. Whoever finds out says so in `probed`; where nobody does, the engine goes by how the stage ended.
    """

    job_id: str  # its key, `doc-{id}`
    document_id: str
    org: str
    pipeline: str
    stage: str
    attempt: int
    needs: tuple[str, ...] = ()
    probe: str | None = None
    requests: dict[str, int] = field(default_factory=dict)  # of the whole claim so far
    probed: bool | None = None
    deadline_s: float | None = None  # monotonic: its calls must be over by then
    allowed_s: float = 0.0  # monotonic: when the store last said that what it needs is up
    kept: dict[str, int] = field(
        default_factory=dict
    )  # requests that were made when something was last saved
    repeated: dict[str, int] = field(default_factory=dict)  # requests since then that were retries

    def count(self, dependency: str) -> int:
        """A request went out; how many that makes."""
        self.requests[dependency] = made = self.requests.get(dependency, 0) + 1
        return made

    def repeats(self, dependency: str) -> None:
        """A request that failed is made again."""
        self.repeated[dependency] = self.repeated.get(dependency, 0) + 1

    def saved(self) -> None:
        """Something was saved, or the stage begins: calls that were made before are not made again."""
        self.kept = dict(self.requests)
        self.repeated = {}

    def unsaved(self, dependency: str) -> int:
        """Calls to it that ended since something was saved. The next run makes them again if this one ends badly."""
        made = self.requests.get(dependency, 0) - self.kept.get(dependency, 0)
        return max(0, made - self.repeated.get(dependency, 0))


class Messenger(Protocol):
    """Brings what a part of the program knows to a cell, and what it learned there, before the cell ends, home."""

    def pack(self, slots: int = 1) -> object:
        """In a worker with this number of slots: the facts that a cell should know, as plain values."""

    def over(self) -> None:
        """In the worker: a cell for which something was packed has ended."""

    def unpack(self, packed: Any) -> None:
        """In the cell: what the worker knew."""

    def away(self, dependency: str) -> bool:
        """In the worker: whether it knows that this service is away."""

    def report(self) -> object:
        """In the cell: what there is to tell, as plain values; None for nothing."""

    def learn(self, report: Any, work: Work) -> None:
        """In the worker: what a cell told of this work. Raises: ValueError, TypeError for what no cell can tell."""


#: By name; whoever has something to carry puts a messenger here when it is imported.
MESSENGERS: dict[str, Messenger] = {}

#: In a cell: what the worker packed, for a messenger whose module the stage imports late.
PACKED: dict[str, Any] = {}

#: None outside of stage code.
WORK: ContextVar[Work | None] = ContextVar("perdure_work", default=None)
