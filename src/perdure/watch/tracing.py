"""Whether spans are wanted. Light: what makes them is imported only then."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perdure.core.events import Events
from perdure.errors import ExtraMissing

if TYPE_CHECKING:
    from perdure.watch.traces import Parent, Traces

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def trace(asked: bool | None, events: Events, parent: Parent | None = None) -> Traces | None:
    """Make spans of these events if that is asked for or the environment says where to send them; ExtraMissing."""
    if asked is False or not (asked or any(map(os.environ.get, ENDPOINTS))):
        return None
    try:
        from perdure.watch.traces import Traces
    except ImportError:
        if asked is None:  # the variables are everybody's and may not be meant for us
            return None
        raise ExtraMissing("PERDURE_TRACES needs the extra otel: pip install 'perdure[otel]'") from None
    return Traces(events, parent)
