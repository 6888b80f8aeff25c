"""Calls to services that fail: whether, when and how often to try again, and when it is better not to.

Usable by itself; see docs/calls.md.
"""

from __future__ import annotations

from perdure.calls import presets
from perdure.calls.binding import SdkRetries, bind
from perdure.calls.breaker import Breaker
from perdure.calls.budget import Budget
from perdure.calls.classify import classify
from perdure.calls.dependency import Dependency, dependency
from perdure.calls.events import CallEvent, subscribe
from perdure.calls.jitter import FullJitter
from perdure.calls.limiter import Limiter
from perdure.calls.policy import Policy
from perdure.calls.scope import correlation, remaining
from perdure.calls.timing import Timing
from perdure.calls.verdict import Kind, Verdict
from perdure.core.knobs import Knobs

__all__ = [
    "Breaker", "Budget", "CallEvent", "Dependency", "FullJitter", "Kind", "Knobs", "Limiter", "Policy", "SdkRetries",
    "Timing", "Verdict", "bind", "classify", "correlation", "dependency", "presets", "remaining", "subscribe",
]  # fmt: skip
