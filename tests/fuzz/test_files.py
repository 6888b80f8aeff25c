"""The short form of `make fuzz-files`: damaged files are read or refused with a documented code."""

from __future__ import annotations

import asyncio

import pytest

from tests.fuzz import corpus, mutate
from tests.fuzz.campaign import Campaign, cases


@pytest.mark.parametrize("kind", corpus.KINDS)
def test_a_seed_gives_the_same_file_again(kind: str) -> None:
    files = [mutate.case(kind, seed) for seed in range(5)]
    assert files == [mutate.case(kind, seed) for seed in range(5)]
    assert len({*files, *corpus.samples(kind)}) > len(corpus.samples(kind))


@pytest.mark.full
def test_damaged_files_are_read_or_refused() -> None:
    account = asyncio.run(Campaign().run(cases(corpus.KINDS, 0, 10 * len(corpus.KINDS), None)))
    assert not account.findings
    assert account.outcomes.total() == 10 * len(corpus.KINDS)
    assert sum(count for (_, outcome), count in account.outcomes.items() if outcome == "read") > 15
