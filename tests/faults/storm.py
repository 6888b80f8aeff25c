"""Pipelines of the chaos campaign: stages of every kind, forks, short leases, and documents that fail by themselves."""

from __future__ import annotations

import os

from perdure import Context, Document, Perdure, Pipeline, Result
from tests.faults import forking, voyage
from tests.faults.record import Run
from tests.faults.stages import STORE_VARIABLE

FAILING_ATTEMPTS = 2

failing = Pipeline("failing", backoff_s=0.2, attempts=FAILING_ATTEMPTS)


@failing.stage
async def begin(doc: Document, ctx: Context) -> Result[int]:
    return Run(doc, "begin").finish(ctx, 1)


@failing.stage
def fail(doc: Document, begin: int, ctx: Context) -> Result[int]:
    Run(doc, "fail")
    raise ValueError("fails by itself")


#: Name of a pipeline → the stages that leave an effect in each of its documents that is done.
EFFECTS = {
    "voyage": voyage.STAGES,
    "hasty": voyage.STAGES,
    "harbour": [voyage.LANDING],
    "pooled": ["square"],
    "terminated": ["terminate"],
}
PIPELINES = [*voyage.ALL, forking.pooled, forking.terminated, failing]
app = Perdure(os.environ.get(STORE_VARIABLE, "sqlite:///not-opened.db"), pipelines=PIPELINES)
