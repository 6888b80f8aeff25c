"""Lease tokens: made by the client, new for every claim, so that a claim whose reply was lost can be read back."""

from __future__ import annotations

import secrets

from perdure.core.clock import wall_ms


def new_token() -> int:
    """A 63-bit number nobody else has: milliseconds and chance."""
    return (wall_ms() << 22 | secrets.randbits(22)) & (2**63 - 1)
