"""Finding connections: what the chunks of a document are like in other documents, a job that follows its processing.

The document is done without it. A pair is connected if one of its chunks is among the nearest of the other; when the
jobs of all documents have run that is so for every pair, whatever the order in which they came, came again or ran.
"""

from __future__ import annotations

from typing import Any

from perdure import Context, Document, Pipeline
from perdure.core.frozen import frozen
from perdure.pipelines.bounds import CONNECT_S

EACH = 20
TRIGGER = "document-processing-complete"

detect_connections = Pipeline("detect_connections", queue="connections")


@frozen
class Asked:
    """What the job is given."""

    document_id: str
    chunk_count: int
    trigger: str = TRIGGER


def asked(doc: Document, chunk_count: int) -> dict[str, Any]:
    """The input of a job for this document."""
    return {"document_id": doc.id, "chunk_count": chunk_count, "trigger": TRIGGER}


@detect_connections.stage(timeout=CONNECT_S)
async def connect(ctx: Context, input: Asked) -> int:
    """How many there are. Also if it has no chunks: those that it had are missing elsewhere."""
    return await ctx.aconnect(each=EACH)
