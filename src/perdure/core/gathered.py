"""What became of all that a document spawned, for the stage that gathers it."""

from __future__ import annotations

from dataclasses import field

from perdure.core.frozen import frozen


@frozen
class Gathered:
    """Child documents by pipeline and state (`done`, `dead`, `cancelled`), and how each follow-up job ended.

    `degraded`: how many of the children of each pipeline have something that a fallback gave."""

    documents: dict[str, dict[str, int]]
    jobs: dict[str, str]
    degraded: dict[str, int] = field(default_factory=dict)

    def count(self, state: str) -> int:
        """How many children and jobs ended so."""
        ended = list(self.jobs.values())
        return ended.count(state) + sum(states.get(state, 0) for states in self.documents.values())

    @property
    def failed(self) -> int:
        """How many did not end well."""
        return self.count("dead") + self.count("cancelled")
