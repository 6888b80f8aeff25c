"""Where a document can lose its worker on its way, and what must be true of it afterwards."""

from __future__ import annotations

from collections import Counter

from tests.faults.fleet import Fleet

APP = "tests.faults.documents.watched:app"
STALL_VARIABLE = "FAULTS_STALL_S"
BATCH_VARIABLE = "FAULTS_BATCH"  # chunks that are embedded at a time
BATCH = 4
LINGER_VARIABLE = "FAULTS_LINGER_S"  # how long connections that were found may wait until they are saved
CRASHES, HANGS = "crashes", "hangs"  # what documents are called that do so

STAGES = ("fetch", "extract", "chunk", "embed", "index", "connect")
#: Right after the save before (`begin`), with a part or a batch in hand, and right before the save (`end`).
PLACES = (
    *(f"{stage}:{where}" for stage in STAGES for where in ("begin", "end")),
    "extract:item-2",
    "embed:item-1",
)
CHAPTERS = 6
BATCHES = 2


def expected_runs(*places: str, chapters: int = CHAPTERS, batches: int = BATCHES) -> Counter[str]:
    """How often each stage, part and batch is done if all is lost once at each of these places."""
    runs = Counter(STAGES)
    runs.update(f"extract:item-{n}" for n in range(1, chapters + 1))
    runs.update(f"embed:item-{n}" for n in range(batches))
    for place in places:
        runs[place.partition(":")[0]] += 1
        if ":item-" in place:
            runs[place] += 1  # the one in hand, and no other
    return runs


def runs(fleet: Fleet, name: str) -> Counter[str]:
    """What was done for the document, by the ledger."""
    lines = [line for line in fleet.ledger if line.document == name]
    found = Counter(line.stage for line in lines if line.event == "start")
    return found + Counter(line.event for line in lines if ":item-" in line.event)
