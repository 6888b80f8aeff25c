"""Times and sizes as people say them."""

from __future__ import annotations

import pytest

from perdure.cli.words import clock, shown, since, size, span, until


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0 ms"), (999, "999 ms"), (1_000, "1.0 s"), (9_940, "9.9 s"), (59_999, "59 s"), (60_000, "1.0 min"),
        (3_599_999, "59 min"), (3_600_000, "1.0 h"), (172_799_999, "47 h"), (172_800_000, "2 days"),
    ],
)  # fmt: skip
def test_a_length_of_time(ms: int, said: str) -> None:
    assert span(ms) == said


def test_moments_are_told_from_now() -> None:
    assert (since(1_000, 4_000, "ago"), since(None, 4_000, "ago")) == ("3.0 s ago", "")
    assert since(5_000, 4_000) == "0 ms"  # another clock may be ahead
    assert (until(64_000, 4_000), until(4_000, 4_000), until(1, 4_000)) == ("in 1.0 min", "now", "now")
    assert clock(0) == "1970-01-01 00:00:00Z"


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (2_500_000, "2.5 MB"), (10**9, "1.0 GB")],
)
def test_a_size(number: int, said: str) -> None:
    assert size(number) == said


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("sqlite:////tmp/a.db", "sqlite:////tmp/a.db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://me:a%40b@host:1/db?x=1", "postgresql://me:***@host:1/db?x=1"),
        ("postgresql://host/db?password=a&x=1", "postgresql://host/db?password=***&x=1"),
    ],
)
def test_an_address_without_its_password(store: str, said: str) -> None:
    assert shown(store) == said
