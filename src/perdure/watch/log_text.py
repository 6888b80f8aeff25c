"""A log line for people: time, level, event, then the facts that it has; traces follow on lines of their own."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from datetime import datetime
from typing import Any

#: Facts of several lines.
TRACES = ("exception", "stack")


def line(_logger: Any, _method: str, facts: MutableMapping[str, Any]) -> str:
    """Return the line; nothing in it is obeyed by a terminal, and no value begins a line that looks like ours."""
    at = datetime.fromisoformat(facts.pop("timestamp")).astimezone()
    level, event = facts.pop("level").upper(), _shown(facts.pop("event"), quoted=False)
    traces = [facts.pop(name) for name in TRACES if facts.get(name)]
    said = [f"{name}={_shown(value)}" for name, value in facts.items() if value is not None]
    first = f"{at:%H:%M:%S} {level:<7} {event}{'  ' if said else ''}{' '.join(said)}"
    below = (f"    {_shown(row, quoted=False)}" for trace in traces for row in str(trace).splitlines())
    return "\n".join((first, *below))


def _shown(value: Any, quoted: bool = True) -> str:
    """Return a value on one line: plain if it is one word, in quotes if it has spaces, escaped if it must be."""
    if not isinstance(value, str):
        return json.dumps(value, default=str)
    if not value.isprintable():
        return json.dumps(value)
    return json.dumps(value, ensure_ascii=False) if quoted and (" " in value or not value) else value
