"""Finding connections: what the chunks of a document are like in other documents, a job that follows its processing.

The document is done without it. A pair is found if one of its chunks is among the nearest of the other, and read from
either side; what leads to content that was superseded goes, and whoever was processed last looks anew.
"""

from __future__ import annotations

from typing import Any

from perdure import Context, Document, Pipeline, Result
from perdure.core.frozen import frozen

#: More than anybody wants to see: the nearest of one side need not be those of the other, which may have come before.
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


@detect_connections.stage
async def connect(ctx: Context, input: Asked) -> Result[int]:
    """For each chunk its nearest ones in other documents, instead of those that were found before."""
    found = await ctx.anearest(each=EACH) if input.chunk_count else []
    return Result(len(found), connections=found)
