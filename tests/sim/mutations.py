"""Bugs planted on purpose: a simulator that does not find them proves nothing. At least one for every promise."""

from __future__ import annotations

from tests.sim import (
    mutations_dead,
    mutations_index,
    mutations_leases,
    mutations_life,
    mutations_order,
    mutations_pairs,
    mutations_remote,
    mutations_scenes,
)
from tests.sim.planting import BUGS, Bug

__all__ = [
    "BUGS", "Bug", "mutations_dead", "mutations_index", "mutations_leases", "mutations_life", "mutations_order",
    "mutations_pairs", "mutations_remote", "mutations_scenes",
]  # fmt: skip
