"""Python's garbage collector in a process that only runs stages: left alone it takes a fifth of the time of a drain."""

from __future__ import annotations

import gc

OBJECTS = 30_000  # made since the last look; 700 by default


def calm_collector() -> None:
    """Look less often, and never again at what was imported. For processes that we start."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, 20, 20)
