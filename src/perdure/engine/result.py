"""What a stage gives back besides its value: rows, children, follow-up jobs, statements. Plain frozen values.

Stage code makes them, `Stage.collect` turns them into a `Produced`, and the runner commits that with the stage.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from perdure.core.chunk import Chunk, Connection, revision
from perdure.core.fingerprint import digest
from perdure.core.frozen import frozen
from perdure.core.naming import NAME, NAME_RULE
from perdure.core.words import words
from perdure.engine.codec import ANY, Codec, clean
from perdure.errors import InputInvalid, PerdureError, Permanent
from perdure.store.operations import ChunkSet, EmittedRow, NewChunk

T = TypeVar("T")

#: The row that says why a stage marked its document, by stage.
DEGRADED = "degraded"
DEGRADED_CHARS_MAX = 500

#: A row's key is part of an index, and an index holds no more.
ROW_KEY_BYTES_MAX = 2_000

Sql = tuple[str, tuple[object, ...]]


class Batch(list[T]):
    """Some neighbouring values of a sequence; `index` is the batch's number, from 0."""

    index: int  # type: ignore[assignment]  # a batch is asked for its number, not searched

    def __init__(self, values: Iterable[T] = (), index: int = 0) -> None:
        super().__init__(values)
        self.index = index


def batched(values: Iterable[T], size: int) -> Iterator[Batch[T]]:
    """Cut into batches of `size`; the last one may be shorter. The same values always give the same batches."""
    if size < 1:
        raise ValueError(f"a batch holds at least one value, not {size}")

    def cut() -> Iterator[Batch[T]]:
        batch: Batch[T] = Batch(index=0)
        for value in values:
            batch.append(value)
            if len(batch) == size:
                yield batch
                batch = Batch(index=batch.index + 1)
        if batch:
            yield batch

    return cut()


@dataclass(frozen=True, init=False)
class Row:
    """A row to store under a natural key: `Row("vectors", batch=3, data=[...])`. Written again, it overwrites."""

    name: str
    data: Any
    key: Mapping[str, str | int]

    def __init__(self, name: str, /, data: Any = None, **key: str | int) -> None:
        given: Mapping[str, Any] = key
        if not NAME.fullmatch(name):
            raise Permanent("row_invalid", f"row name {name!r} must be {NAME_RULE}")
        for field_name, value in given.items():
            if not isinstance(value, (str, int)):
                kind = type(value).__name__
                message = f"row {name}: key field {field_name} must be str, int or bool, not {kind}"
                raise Permanent("row_invalid", message)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "key", key)

    def emitted(self) -> EmittedRow:
        """The row as the store takes it; Unstorable if its data cannot be JSON."""
        key = {name: clean(value) if isinstance(value, str) else value for name, value in self.key.items()}
        text = json.dumps(key, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        if len(text.encode()) > ROW_KEY_BYTES_MAX:
            message = f"row {self.name}: its key has more than {ROW_KEY_BYTES_MAX} bytes; move some into data"
            raise Permanent("row_invalid", message)
        return EmittedRow(self.name, text, Codec(Any, f"data of row {self.name}").encode(self.data))


@frozen
class SpawnJob:
    """A follow-up job on the same document; `input` is JSON. Made by `Pipeline.job`."""

    pipeline: str
    name: str  # its job's key is doc-{document_id}/{name}
    document_id: str
    input: bytes = b"{}"
    module: str | None = None  # where the pipeline is defined, see address.load_module


@frozen
class SpawnDocument:
    """A child document. Its id follows from parent, pipeline and key, so a repeated spawn is the same child."""

    pipeline: str
    key: str
    kind: str  # text | bytes | json
    content: bytes
    name: str = ""
    meta: bytes = b"{}"
    collection: str | None = None  # None: the parent's
    module: str | None = None
    refresh: bool = False  # where there is one with other content, that starts again with this

    def document_id(self, parent_id: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, digest(parent_id, self.pipeline, self.key)))


Spawn = SpawnJob | SpawnDocument
#: What a stage gives on its way, committed with the item or the stage that gives it.
Emitted = EmittedRow | SpawnJob | SpawnDocument


@dataclass(frozen=True)
class Result(Generic[T]):
    """A stage's value with what shall be committed together with it.

    `spawn`: follow-up jobs and child documents; `rows`: rows besides those emitted on the way; `sql`: your own
    statements with their parameters, run in the transaction that saves the stage. `chunks`: all that the document is
    to be found by, instead of those it had; `connections`: all that its chunks have with those of other documents.
    None leaves what is there. `degraded`: why the value is less than it should be, a code first ("partial_text: …");
    the document is marked, and nothing repairs it by itself: a requeue runs the stage again.
    """

    value: T
    spawn: Sequence[Spawn] = field(default=(), kw_only=True)
    rows: Sequence[Row] = field(default=(), kw_only=True)
    sql: Sequence[tuple[str, Sequence[object]]] = field(default=(), kw_only=True)
    chunks: Sequence[Chunk] | None = field(default=None, kw_only=True)
    connections: Sequence[Connection] | None = field(default=None, kw_only=True)
    degraded: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        for part, kinds in _PARTS:
            if (given := getattr(self, part)) is None and part in ("chunks", "connections"):
                continue
            values = tuple(given)
            for value in values:
                if not isinstance(value, kinds):
                    raise _invalid(f"{part} holds a {type(value).__name__}")
            object.__setattr__(self, part, values)
        object.__setattr__(self, "sql", tuple(_statement(entry) for entry in self.sql))
        if not isinstance(self.degraded, str):
            raise _invalid("degraded is not a text")

    @staticmethod
    def of(returned: Any) -> Result[Any]:
        """What a stage returned, as a Result."""
        return returned if isinstance(returned, Result) else Result(returned)


_PARTS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("spawn", (SpawnJob, SpawnDocument)), ("rows", (Row,)), ("chunks", (Chunk,)), ("connections", (Connection,)),
)  # fmt: skip


@frozen
class Produced:
    """A stage's return, encoded: ready to be saved, able to travel between processes."""

    output: bytes
    rows: tuple[EmittedRow, ...] = ()
    spawn: tuple[Spawn, ...] = ()
    sql: tuple[Sql, ...] = ()
    chunks: ChunkSet | None = None
    connections: tuple[Connection, ...] | None = None
    degraded: bool = False


def chunk_set(chunks: Sequence[Chunk]) -> ChunkSet:
    """Chunks as the store takes them; Permanent(result_invalid) where they contradict each other."""
    cleaned = tuple(map(_cleaned, chunks))
    if len({c.id for c in cleaned}) < len(cleaned):
        raise _invalid("two chunks have the same id")
    for c in cleaned:
        if (c.model is None) != (c.vector is None) or len(c.vector or b"") % 4:
            raise _invalid(f"chunk {c.position} has no whole vector with the name of its model")
    return ChunkSet(revision(cleaned), tuple(NewChunk(c, " ".join(words(c.read))) for c in cleaned))


def _cleaned(c: Chunk) -> Chunk:
    id_, text, anchor, heading = clean(c.id), clean(c.text), clean(c.anchor), clean(c.heading)
    if (id_, text, anchor, heading) == (
        c.id,
        c.text,
        c.anchor,
        c.heading,
    ):  # as nearly always, and a copy takes its time
        return c
    return replace(c, id=id_, text=text, anchor=anchor, heading=heading)


#: The default of an argument for which None is a value.
ABSENT: Any = object()


def child_content(text: Any = ABSENT, data: Any = ABSENT, json: Any = ABSENT) -> tuple[str, bytes]:
    """Kind and bytes of a child's content; InputInvalid unless exactly one is given and can be stored."""
    given = [
        (kind, value)
        for kind, value in (("text", text), ("bytes", data), ("json", json))
        if value is not ABSENT
    ]
    if len(given) != 1:
        raise InputInvalid(f"a child document has one of text=, data= and json=, not {len(given)} of them")
    kind, value = given[0]
    if kind == "json":
        return kind, input_bytes(value, "json of a child document")
    if kind == "text" and isinstance(value, str):
        return kind, clean(value).encode()
    if kind == "bytes" and isinstance(value, (bytes, bytearray, memoryview)):
        return kind, bytes(value)
    wanted = {"text": "text= takes str", "bytes": "data= takes bytes"}[kind]
    raise InputInvalid(f"a child document's {wanted}, not {type(value).__name__}")


def input_bytes(value: Any, what: str) -> bytes:
    """JSON of something handed in; InputInvalid if it cannot be."""
    try:
        return ANY.encode(value)
    except PerdureError as error:
        raise InputInvalid(f"{what}: {error}") from error


def _statement(entry: Any) -> Sql:
    if isinstance(entry, (tuple, list)) and len(entry) == 2:
        text, params = entry
        if isinstance(text, str) and isinstance(params, (tuple, list)):
            return text, tuple(params)
    raise _invalid("sql holds something else than (statement, parameters)")


def _invalid(problem: str) -> Permanent:
    return Permanent("result_invalid", f"Result: {problem}")
