"""What is remembered with a job while another service works on it: whoever takes it back has no pipeline at hand."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, replace

from perdure.core.frozen import frozen
from perdure.core.model import Job, Policy

#: The code of a failure that nobody told us of.
UNANSWERED = "unanswered"


@frozen
class Handover:
    """The events that go out and come back, what the stage was given, and how patient we are with it."""

    stage: str
    event: str
    done: str
    failed: str
    collection: str
    version: int
    input_hash: str
    lease_ms: int
    attempts: int
    base_ms: int
    cap_ms: int | None = None
    jitter: bool = False
    model: str | None = None

    def to_text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def of(cls, job: Job) -> Handover | None:
        """That of a job which another service works on; None while it is ours."""
        return cls.last(job) if job.handed_over else None

    @classmethod
    def last(cls, job: Job) -> Handover | None:
        """The last one of the job, whoever has it now."""
        return cls.from_text(job.remote)

    @classmethod
    def from_text(cls, text: str | None) -> Handover | None:
        if text is None:
            return None
        known = {f.name for f in fields(cls)}  # a newer release may have written more
        return cls(**{name: value for name, value in json.loads(text).items() if name in known})

    def policy(self, base: Policy) -> Policy:
        """The job's policy with what holds for this stage."""
        return replace(
            base, attempts=self.attempts, base_ms=self.base_ms, cap_ms=self.cap_ms, jitter=self.jitter
        )
