"""Whatever is asked, the server does not fail, and what it answers is what its OpenAPI document says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.api.fuzzing import fuzz


@pytest.mark.full
def test_a_few_hundred_requests_of_every_kind(store_url: str, tmp_path: Path) -> None:
    count = fuzz(store_url, tmp_path, 3, "--phases", "examples,fuzzing", "--seed", "1")
    assert sum(count.values()) >= 100
    assert not [status for status in count if status >= 500]
    assert count[200]
    assert count[201]


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_many_requests_of_every_kind(store_url: str, tmp_path: Path) -> None:
    count = fuzz(store_url, tmp_path, int(os.environ.get("EXAMPLES", "300")))
    print(f"{sum(count.values())} requests: {dict(sorted(count.items()))}")
    assert not [status for status in count if status >= 500]
