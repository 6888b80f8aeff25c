"""Whoever floods the server waits for it himself."""

from __future__ import annotations

import pytest

from tests.api.flooding import field


@pytest.mark.long
def test_others_wait_at_most_twice_as_long_and_are_never_refused(store_url: str) -> None:
    with field(store_url) as here:
        here.waits_s(5)  # until the worker is there
        alone = here.waits_s(40)
        with here.flood(documents=5000, threads=8):
            beside = here.waits_s(40)
        usual_s, flooded_s = (found[int(len(found) * 0.95)] for found in (alone, beside))
        print(
            f"P95 from add to done: {usual_s * 1000:.0f} ms alone, {flooded_s * 1000:.0f} ms beside a flood"
        )
        print(f"answers 429: {dict(here.refused)}")
        assert here.refused["flood"] > 0
        assert here.refused["quiet"] == here.refused["calm"] == 0
        assert flooded_s <= 2 * usual_s
