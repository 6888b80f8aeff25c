"""An app for tests of `perdure add --watch`: until the file at PERDURE_TEST_GATE is there one stage fails, and another
does not end; a third needs a service."""

from __future__ import annotations

import os
import time
from pathlib import Path

from perdure import Document, Perdure, Pipeline, Transient

busy = Pipeline("busy", backoff_s=0.5, attempts=50)
patient = Pipeline("patient")
needing = Pipeline("needing")
GATE = Path(os.environ.get("PERDURE_TEST_GATE", "/nowhere"))


@busy.stage
def ask(doc: Document) -> int:
    if not GATE.exists():
        raise Transient("the line is busy")
    return 1


@patient.stage
def wait(doc: Document) -> int:
    while not GATE.exists():
        time.sleep(0.02)
    return 1


@needing.stage(needs=["ocr"])
def read(doc: Document) -> int:
    return 1


app = Perdure(pipelines=[busy, patient, needing])
