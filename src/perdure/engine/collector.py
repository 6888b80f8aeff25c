"""Python's garbage collector in a process that only runs stages: left alone it takes a fifth of the time of a drain."""

from __future__ import annotations

import gc

OBJECTS = 50_000  # made since the last look, some 10 MB of them


def calm_collector() -> None:
    """Look less often, and never again at what was imported. Only for processes that are ours from end to end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, 20, 20)
