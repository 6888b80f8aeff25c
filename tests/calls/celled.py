"""A stage that asks a service from a process of its own."""

from __future__ import annotations

from perdure import Document, Pipeline
from perdure.calls import Dependency, FullJitter, Policy
from perdure.calls.dependency import DEPENDENCIES

NAME = "celled-service"
policy = Policy(
    NAME, retries=2, backoff=FullJitter(0, 0), dependency=DEPENDENCIES.setdefault(NAME, Dependency(NAME))
)
scans = Pipeline("scans", attempts=1)


def away() -> str:
    raise ConnectionRefusedError("nobody is there")


@scans.stage(isolate=True, needs=[NAME])
def scan(doc: Document) -> str:
    return policy.call(away)
