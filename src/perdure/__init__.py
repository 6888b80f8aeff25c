"""Perdure processes documents and never loses one.

Reading order, the path of a document: app → engine.intake → store.operations, store.flusher, store.apply →
engine.worker → engine.runner, engine.execution → core.outcome → engine.keeper, engine.sweeper.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.app import AsyncPerdure, Perdure, Summary
    from perdure.core.gathered import Gathered
    from perdure.engine.context import Context
    from perdure.engine.document import Document
    from perdure.engine.pipeline import Pipeline
    from perdure.engine.result import Result, Row, batched
    from perdure.errors import DependencyDown, PerdureError, Permanent, RateLimited, RetryLater, Transient

__version__ = "0.1.0"

_HOMES = {
    "Perdure": "app", "AsyncPerdure": "app", "Summary": "app",
    "Pipeline": "engine.pipeline", "Document": "engine.document", "Context": "engine.context",
    "Gathered": "core.gathered", "Result": "engine.result", "Row": "engine.result", "batched": "engine.result",
    "PerdureError": "errors", "Transient": "errors", "RetryLater": "errors", "RateLimited": "errors",
    "DependencyDown": "errors", "Permanent": "errors",
}  # fmt: skip

__all__ = [
    "AsyncPerdure", "Context", "DependencyDown", "Document", "Gathered", "Perdure", "PerdureError", "Permanent",
    "Pipeline", "RateLimited", "Result", "RetryLater", "Row", "Summary", "Transient", "batched",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imported at first use, so that a command answers at once and a cell starts light."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"perdure.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")
