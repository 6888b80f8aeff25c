"""The app of the demo's workers: the one that comes with Perdure, in a queue of its own and with a turnstile.

Only workers import this: it changes the pipelines of its process.
"""

from __future__ import annotations

import os

from perdure import Document, Perdure, Pipeline
from perdure.cli import builtin
from perdure.core.scope import WORK
from perdure.demo.fleet import RUN_VARIABLE
from perdure.demo.turnstile import counted
from perdure.engine.pipeline import Hook
from perdure.pipelines.document import extract
from perdure.pipelines.extract.pdf import PdfReader

#: For the bomb, which would otherwise be stopped at a gigabyte.
CELL_MB = 320

presence = Pipeline("demo-turnstile")


@presence.stage
def stand(doc: Document) -> None:
    """Never runs. Cells know the modules of all pipelines: through this one they have the turnstile, too."""


def _document() -> str:
    work = WORK.get()
    return work.document_id if work is not None else "-"


shipped = [p for p in builtin.app.service.pipelines.values() if not isinstance(p, Hook)]
app = Perdure(pipelines=[*shipped, presence])
for pipeline in app.service.pipelines.values():
    pipeline.queue = os.environ[RUN_VARIABLE]
extract.memory_mb = CELL_MB
PdfReader.read = counted(PdfReader.read, _document)  # type: ignore[method-assign]
