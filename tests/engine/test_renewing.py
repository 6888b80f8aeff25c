"""When a lease is renewed: in time, whatever the phase of the looks at it."""

from __future__ import annotations

import pytest

from perdure.engine.keeper import ALIVE_S, renew_after_ms

LOOK_MS = int(ALIVE_S * 1000)


@pytest.mark.parametrize("lease_ms", [1_000, 1_250, 1_500, 2_000, 3_000, 5_000, 30_000, 600_000])
def test_a_lease_is_renewed_before_it_is_given_up(lease_ms: int) -> None:
    """Also if the first beat that is due takes a tenth of a second."""
    for phase_ms in range(LOOK_MS):
        due_ms = next(
            look_ms for look_ms in range(phase_ms, lease_ms, LOOK_MS) if look_ms >= renew_after_ms(lease_ms)
        )
        assert due_ms + 100 <= lease_ms * 2 // 3


def test_a_lease_of_usual_length_is_renewed_after_a_third_of_it_or_ten_seconds() -> None:
    assert [renew_after_ms(s * 1_000) for s in (3, 15, 30, 600)] == [1_000, 5_000, 10_000, 10_000]
