"""Times and sizes as people say them."""

from __future__ import annotations

from datetime import UTC, datetime

from perdure.errors import address_shown


def clock(ms: int) -> str:
    """A moment, in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def since(ms: int | None, now_ms: int, suffix: str = "") -> str:
    """How long ago; nothing for None."""
    return "" if ms is None else f"{span(max(0, now_ms - ms))} {suffix}".rstrip()


def until(ms: int, now_ms: int) -> str:
    """When, from now."""
    return f"in {span(ms - now_ms)}" if ms > now_ms else "now"


def span(ms: int) -> str:
    """A length of time, as short as it can be said."""
    if ms < 1_000:
        return f"{ms} ms"
    for unit, size_ms, next_ms in (
        ("s", 1_000, 60_000),
        ("min", 60_000, 3_600_000),
        ("h", 3_600_000, 172_800_000),
    ):
        if ms < next_ms:
            return f"{ms / size_ms:.1f} {unit}" if ms < 10 * size_ms else f"{ms // size_ms} {unit}"
    return f"{ms // 86_400_000} days"


def size(number: int) -> str:
    """Bytes."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number} B"


def when(ms: int, now_ms: int) -> str:
    """A moment as a clock shows it, with its date where that is another day; in UTC."""
    at, now = (datetime.fromtimestamp(at_ms / 1000, UTC) for at_ms in (ms, now_ms))
    return at.strftime("%H:%M:%SZ" if at.date() == now.date() else "%Y-%m-%d %H:%M:%SZ")


def count(number: int, noun: str) -> str:
    """`1 document`, `2 documents`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


LINE_MAX = 160


def line(text: str) -> str:
    """What came from elsewhere, on one line and not too long."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= LINE_MAX else f"{flat[: LINE_MAX - 1]}…"


def shown(store: str) -> str:
    """A store's address as it may be seen by others: without its password."""
    return address_shown(store)
