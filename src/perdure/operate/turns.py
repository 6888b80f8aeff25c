"""Why requests of a stage wait for their turn at a service, in words."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.operate.words import until
from perdure.store.records import DependencyRecord


def slows(service: DependencyRecord) -> bool:
    """Whether requests wait although the service is not down: it is limited or paused."""
    asked_less = service.limit_per_s is not None or service.paused_until_ms is not None
    return service.since_ms is None and asked_less


def at_services(slow: Iterable[DependencyRecord], now_ms: int) -> str:
    """The services with the reason and the bound of each; empty: requests wait nowhere."""
    return " and at ".join(_at(service, now_ms) for service in slow)


def _at(service: DependencyRecord, now_ms: int) -> str:
    if service.paused_until_ms is not None:
        bound = f"requests go out again {until(service.paused_until_ms, now_ms)}"
    else:
        bound = f"all workers together may make {service.limit_per_s or 0:.3g} requests a second"
    return f"{service.name}, which is {service.state} ({service.reason}; {bound})"
