"""How long and where the stages of the pipelines that come with Perdure may run; docs/architecture.md has the table.

Every one has a timeout. One that computes on foreign text or bytes runs in a cell, which can be killed and has a memory
bound, unless its input is small: a cell costs a tenth of a small document.
"""

from __future__ import annotations

STAGE_S = 1_800.0  # of a stage that only computes
SERVICE_S = 3_000.0  # of one call to a service with all its retries: 4 requests of 10 minutes, and waits
#: Of embedding, which saves every batch: hours are honest as long as one batch comes after the other.
EMBED_S, EMBED_STALL_S = 86_400.0, SERVICE_S
CONNECT_S = 7_200.0  # of comparing a document with all others, which is the store's work
#: Texts below are cut in a thread: the worst text of this size takes about a second.
CELL_BYTES = 256 << 10
CHUNK_MB = 4_096  # for a text of 256 MiB, its chunks, and both as JSON
