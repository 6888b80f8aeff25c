"""A stage that tells whether another one ran beside it."""

from __future__ import annotations

import time
from pathlib import Path

from perdure import Document, Pipeline

heavy = Pipeline("heavy", attempts=1)
WAIT_S = 2.0


@heavy.stage(isolate=True)
def meet(doc: Document) -> bool:
    """Whether a second document was in work at the same time; the text begins with a directory of its own."""
    directory = Path(doc.text.split("\n", 1)[0])
    own = directory / doc.id
    own.touch()
    until_s = time.monotonic() + WAIT_S
    met = False
    while not met and time.monotonic() < until_s:
        met = len(list(directory.iterdir())) > 1
        time.sleep(0.01)
    time.sleep(0.1)  # so that the other sees it, too
    own.unlink()
    return met
