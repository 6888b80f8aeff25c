"""Hundreds of seeded worlds in which nothing may go wrong, and planted bugs that must be found in them.

`make sim SEEDS=20000` plays more; a seed that fails is replayed with `simulate(seed)`.
"""

from __future__ import annotations

import os

import pytest

from tests.sim.mutations import MUTATIONS, Mutation
from tests.sim.run import simulate

SEEDS = int(os.environ.get("SEEDS", "500"))
CHUNK = 25
CAUGHT_WITHIN = 200


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_a_promise(first: int) -> None:
    stories = [simulate(seed) for seed in range(first, min(first + CHUNK, SEEDS))]
    assert [story for story in stories if story.error] == []
    assert sum(story.documents for story in stories) > len(stories)


def test_a_seed_is_the_same_story_every_time() -> None:
    assert [simulate(seed) for seed in (7, 8, 9)] == [simulate(seed) for seed in (7, 8, 9)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_planted_bug_is_found(mutation: Mutation) -> None:
    with mutation():
        found = next((seed for seed in range(CAUGHT_WITHIN) if simulate(seed).error), None)
    assert found is not None, f"{mutation.__name__} was not found within {CAUGHT_WITHIN} seeds"
