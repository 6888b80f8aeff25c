"""An organisation that floods the server is refused; the others are not. `benchmarks/flood.py` measures their waits."""

from __future__ import annotations

import pytest

from tests.api.flooding import field


@pytest.mark.long
def test_others_end_and_are_never_refused_beside_a_flood(store_url: str) -> None:
    with field(store_url) as here:
        here.waits_s(5)  # until the worker is there
        with here.flood(documents=5000, threads=8):
            waits_s = here.waits_s(40)
        assert len(waits_s) == 80  # of two organisations
        assert here.refused["flood"] > 0
        assert here.refused["quiet"] == here.refused["calm"] == 0
