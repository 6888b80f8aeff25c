"""Times as people type them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from perdure.errors import InputInvalid
from perdure.operate.choosing import age_ms


def moment(said: str | None) -> datetime | None:
    """A date or time (in UTC unless it names a zone), or how long ago (`2h`, `-3d`). Raises: InputInvalid."""
    if said is None:
        return None
    try:
        if re.match(r"\s*\d{4}-", said) is None:
            return datetime.now(UTC) - timedelta(milliseconds=age_ms(said.strip().removeprefix("-")))
        at = datetime.fromisoformat(said.strip())
    except (ValueError, OverflowError):
        raise InputInvalid(
            f"a time is written like 2030-01-31 or 2030-01-31T12:00:00Z, not {said!r}", code="time_invalid"
        ) from None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
