"""Dead documents brought back from a file that `export` wrote: dead, with their history, ready to be requeued.

Every line is checked on its own; what is wrong with one keeps no other from being imported.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

from perdure.core.frozen import frozen
from perdure.core.model import Policy, job_key
from perdure.engine.intake import keep
from perdure.errors import Unstorable
from perdure.operate.export import FORMAT
from perdure.operate.lines import DeadPart, Line, Read, lines, opened
from perdure.store.archive import Archived, Values
from perdure.store.blobs import Blobs, own
from perdure.store.blobs.base import hash_file
from perdure.store.sql_store import SqlStore

BATCH = 100
BATCH_BYTES = 8 * 1024 * 1024


@frozen
class Answer:
    """What became of a line: `imported`, `exists`, `exists as ID` or `refused: why`."""

    number: int
    id: str
    answer: str


async def restore(
    store: SqlStore, blobs: Blobs, source: str | Path, by: str, reason: str = ""
) -> AsyncGenerator[list[Answer], None]:
    """Import what is in the file, some lines at a time, in the name of whoever does it."""
    await own(store, blobs)
    with tempfile.TemporaryDirectory(prefix="perdure-import-") as room, opened(str(source)) as file:
        reading = lines(file, Path(room))
        while some := await asyncio.to_thread(_some, reading):
            batch: list[tuple[Read, Archived]] = []
            for read, digest in some:
                try:
                    batch.append((read, await _archived(read, digest, blobs)))
                except _Refused as refused:
                    yield [Answer(read.number, read.id, f"refused: {refused}")]
                finally:
                    if isinstance(read.content, Path):
                        read.content.unlink(missing_ok=True)
            if batch:
                yield await _restore(store, batch, by, reason)


def _some(reading: Iterator[Read]) -> list[tuple[Read, str]]:
    """The next lines, as many as are written together, and the hashes of their content."""
    some: list[tuple[Read, str]] = []
    size = 0
    for read in reading:
        content = read.content
        some.append((read, "" if content is None else _hash(content)))
        size += 0 if read.line is None else 4_096 * len(read.line.attempts)
        size += len(content) if isinstance(content, bytes) else 0
        if len(some) == BATCH or size > BATCH_BYTES or isinstance(content, Path):
            break
    return some


async def _restore(store: SqlStore, batch: list[tuple[Read, Archived]], by: str, reason: str) -> list[Answer]:
    try:
        answers = await store.restore([archived for _, archived in batch], by, reason)
    except Unstorable as refused:
        if len(batch) == 1:
            answers = [f"refused: {refused}"]
        else:  # whichever it was, it fails alone
            return [answer for one in batch for answer in await _restore(store, [one], by, reason)]
    return [Answer(r.number, r.id, answer) for (r, _), answer in zip(batch, answers, strict=True)]


class _Refused(Exception):
    pass


async def _archived(read: Read, digest: str, blobs: Blobs) -> Archived:
    """What is written for a line; its content is stored already."""
    line = read.line
    if line is None:
        raise _Refused(read.problem)
    if line.perdure != FORMAT:
        raise _Refused(f"it has the format {line.perdure}, and this program reads {FORMAT}: upgrade it")
    if line.state != "dead" or line.dead is None:
        raise _Refused(f"only dead documents are imported, and this one was {line.state}")
    if read.content is None:
        raise _Refused(f"its content was not exported: {line.content_error or 'there is none'}")
    if digest != line.content_sha256:
        raise _Refused("its content is damaged: it has another hash than it had when it was exported")
    inline: bytes | None = None
    blob: str | None = None
    if isinstance(read.content, Path):
        blob, _ = await blobs.put_file(read.content)
    else:
        inline, blob = await keep(read.content, blobs)
    try:
        return _rows(line, line.dead, inline, blob)
    except UnicodeEncodeError:
        raise _Refused("meta is not valid Unicode (lone surrogate)") from None


def _hash(content: bytes | Path) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else hash_file(content)[0]


def _rows(line: Line, dead: DeadPart, inline: bytes | None, blob: str | None) -> Archived:
    d, died_ms = line.document, dead.died_ms
    which = {"org": line.org, "document_id": line.id}
    common = {"pipeline": d.pipeline, "generation": d.generation}
    document = d.model_dump() | {
        "org": line.org, "id": line.id, "inline": inline, "blob": blob, "meta": _dumped(d.meta).encode(),
        "state": "dead", "error_code": dead.error_code, "error_message": dead.message,
        "error_meta": None if dead.meta is None else json.dumps(dead.meta), "finished_ms": died_ms,
    }  # fmt: skip
    job = _job(line, dead) | which | common
    told = dead.model_dump(exclude={"message", "meta"}) | which | common | {"collection": d.collection}
    attempts = [
        a.model_dump() | which | {"requests": None if a.requests is None else json.dumps(a.requests)}
        for a in line.attempts
    ]
    return Archived(document, job, told, attempts, [act.model_dump() for act in line.acts])


def _job(line: Line, dead: DeadPart) -> Values:
    """The job as it ended; one that was exported without gets what its death tells of it."""
    died_ms = dead.died_ms
    made: Values = {
        "queue": dead.queue, "lane": dead.lane, "stage": dead.stage, "priority": 0, "lease_ms": 30_000,
        "attempts": dead.attempts, "attempts_max": max(dead.attempts, Policy().attempts), "claims": dead.attempts,
        "crashes": 0, "policy": None, "limit_key": None, "created_ms": line.document.created_ms,
    }  # fmt: skip
    if line.job is not None:
        policy = None if line.job.policy is None else _dumped(line.job.policy)
        made = line.job.model_dump() | {"policy": policy}
    return made | {
        "key": job_key(line.id), "state": "dead", "run_at_ms": died_ms, "finished_ms": died_ms,
    }  # fmt: skip


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
