"""An app for worker tests: its second stage waits until the file at `meta["gate"]` is there."""

from __future__ import annotations

import time
from pathlib import Path

from perdure import Document, Perdure, Pipeline

slow = Pipeline("slow")


@slow.stage
def first(doc: Document) -> int:
    return 1


@slow.stage
def second(doc: Document, first: int) -> int:
    while not Path(doc.meta["gate"]).exists():
        time.sleep(0.02)
    return first + 1


app = Perdure(pipelines=[slow])
