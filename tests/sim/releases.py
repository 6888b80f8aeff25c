"""The pipelines of the two releases that run side by side; they differ in `maps`."""

from __future__ import annotations

from perdure.engine.pipeline import Pipeline
from tests.sim import maps_first, maps_second
from tests.sim.documents import ALIKE
from tests.sim.maps import labels

FIRST: tuple[Pipeline, ...] = (*ALIKE, labels, maps_first.maps)
SECOND: tuple[Pipeline, ...] = (*ALIKE, labels, maps_second.maps)
RELEASES = (FIRST, SECOND)
#: Of a fleet that is only being upgraded: a worker that has one pipeline.
PART = ALIKE[:1]
#: Pipeline and stage → its place; a stage that was renamed keeps it.
STAGES = {
    pipeline.name: {stage.name: n for n, stage in enumerate(pipeline.stages)}
    for each in SECOND
    for pipeline in (each, *each.hooks.values())
}
STAGES["maps"]["colour"] = STAGES["maps"]["tint"]


def wanting(pipeline: str, saved: set[str]) -> list[str]:
    """The stages that are missing for a document to be done, in the release that lacks fewest."""
    stages = [
        [stage.name for stage in each.stages]
        for release in RELEASES
        for each in release
        if each.name == pipeline
    ]
    return min(([name for name in names if name not in saved] for names in stages), key=len)
