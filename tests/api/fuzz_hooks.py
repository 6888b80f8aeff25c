"""Hooks of schemathesis, which loads this file in a process of its own."""

from __future__ import annotations

import re
import uuid
from typing import Any

import schemathesis


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """No two steps of scenarios share a key: the second one would be answered with what the first one made, which may
    be deleted by then. Keys that are no keys stay, and so do those of single requests."""
    headers: Any = case.headers or {}
    key = headers.get("Idempotency-Key")
    stateful = case.meta is not None and case.meta.phase.name == "stateful"
    if stateful and isinstance(key, str) and re.fullmatch(r"[\x21-\x7e]{1,200}", key):
        headers["Idempotency-Key"] = uuid.uuid4().hex
