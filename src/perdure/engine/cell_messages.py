"""What a run of a stage in a cell says to its worker, and the worker's check of every word of it.

The functions at the top make messages in the cell. `Checker` reads them in the worker: a cell may be under the control
of the file that it read, so each part must have its type, its form and its measure, and the run as a whole its bounds.
It names pipelines only by name, and statements only if its stage declared them.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeVar

from perdure.core.chunk import Chunk, Connection, revision
from perdure.core.frozen import frozen
from perdure.core.naming import NAME
from perdure.engine import wire
from perdure.engine.items import KEY_LENGTH_MAX
from perdure.engine.result import (
    ROW_KEY_BYTES_MAX,
    Emitted,
    Produced,
    Spawn,
    SpawnDocument,
    SpawnJob,
    Sql,
)
from perdure.engine.wire import Malformed, TooLarge
from perdure.errors import Permanent
from perdure.store.operations import ChunkSet, EmittedRow, NewChunk

T = TypeVar("T")

#: Of one run: what it saves and emits on the way and at its end.
ITEMS_MAX = 1_000_000
EMITTED_MAX = 10_000_000
BYTES_MAX = 16 << 30
#: Of one output, row or input: as many values as this many commas and brackets can separate. Nothing else runs in the
#: worker while one is read, so a run has a bound of its own.
JSON_VALUES_MAX = 20_000_000
RUN_VALUES_MAX = 60_000_000
VALUES_SURE = 1_000_000  # so many cost little, even if they are in texts
_SEPARATORS = (b",", b"[", b"{")
COUNTED_BYTES = 256 << 10  # at a time
TEXT_MAX = 10_000
REQUESTS_MAX = 1_000
NUMBER_MAX = (1 << 31) - 1

#: Parameters of statements that are not plain: how they are written, and read again.
_SCALARS: dict[str, tuple[type, Callable[[str], object]]] = {
    "datetime": (dt.datetime, dt.datetime.fromisoformat),
    "date": (dt.date, dt.date.fromisoformat),
    "time": (dt.time, dt.time.fromisoformat),
    "decimal": (Decimal, Decimal),
    "uuid": (uuid.UUID, uuid.UUID),
}


# --- in the cell -----------------------------------------------------------------------------


def answer(produced: Produced, emitted: Sequence[Emitted]) -> bytes:
    """What the stage gave. Raises: Permanent(result_invalid) where a parameter of a statement is not plain."""
    p = produced
    return wire.encode(
        [
            p.output, [_emitted(row) for row in p.rows], [_emitted(one) for one in p.spawn],
            [[text, [_parameter(value) for value in values]] for text, values in p.sql],
            None if p.chunks is None else [_new_chunk(one) for one in p.chunks.chunks],
            None if p.connections is None else [connection(one) for one in p.connections],
            p.degraded, [_emitted(one) for one in emitted],
        ]
    )  # fmt: skip


def _new_chunk(new: NewChunk) -> list[Any]:
    c = new.chunk
    return [
        c.id,
        c.position,
        c.start,
        c.end,
        c.text,
        c.anchor,
        c.page,
        c.model,
        c.vector,
        c.heading,
        new.words,
    ]


def ask(verb: str, *parts: Any) -> bytes:
    """Something that is asked of the worker, or told."""
    return wire.encode([verb, *parts])


def item(key: str, value: bytes, emitted: Sequence[Emitted]) -> bytes:
    """An item to be saved."""
    return ask("item", key, value, [_emitted(one) for one in emitted])


def connection(one: Connection) -> list[Any]:
    return [one.chunk_id, one.other_document_id, one.other_id, one.score, one.model]


def _emitted(one: Emitted) -> list[Any]:
    if isinstance(one, EmittedRow):
        return ["row", one.name, one.key, one.data]
    if isinstance(one, SpawnJob):
        return ["job", one.pipeline, one.name, one.input]
    return [
        "child", one.pipeline, one.key, one.kind, one.content, one.name, one.meta, one.collection, one.refresh,
    ]  # fmt: skip


def _parameter(value: Any) -> Any:
    for name, (type_, _) in _SCALARS.items():
        if isinstance(value, type_):
            return {name: value.isoformat() if hasattr(value, "isoformat") else str(value)}
    if isinstance(value, list | tuple):
        return [_parameter(part) for part in value]
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    message = f"Result: a parameter of a statement is a {type(value).__name__}, which cannot leave a process of its own"
    raise Permanent("result_invalid", message)


# --- in the worker ---------------------------------------------------------------------------


@frozen
class Asked:
    """A request of a cell: its verb and what belongs to it, in order."""

    verb: str
    parts: tuple[Any, ...] = ()


class Checker:
    """Reads the messages of one run. Each method raises Malformed (TooLarge where an honest stage gives too much), and
    Permanent for a statement that was not declared.

    `statements` are those that the stage may give; None for a stage that could as well have run in the worker.
    """

    def __init__(self, document_id: str, statements: frozenset[str] | None) -> None:
        self.document_id = document_id
        self.statements = statements
        self.items = self.emitted = self.bytes = self.values = 0

    def answer(self, body: bytes) -> tuple[Produced, list[Emitted]]:
        """What the stage gave."""
        return self._guarded(self._answer, body)

    def asked(self, body: bytes) -> Asked:
        """What the cell asks."""
        return self._guarded(self._asked, body)

    def _guarded(self, read: Callable[[Any], T], body: bytes) -> T:
        self.bytes += len(body)
        _must_fit(self.bytes, BYTES_MAX, "bytes in one run")
        try:
            return read(wire.decode(body))
        except (Malformed, Permanent):
            raise
        except Exception as error:  # whatever a forged value does to a check, the message is at fault
            raise Malformed(f"{type(error).__name__} while it was read") from error

    def _answer(self, found: Any) -> tuple[Produced, list[Emitted]]:
        output, rows, spawn, sql, chunks, connections, degraded, emitted = _list(found, 8)
        _must(type(degraded) is bool, "a mark that is neither true nor false")
        produced = Produced(
            self._json(output),
            tuple(self._row(one) for one in _list(rows)),
            tuple(self._spawn(one) for one in _list(spawn)),
            tuple(self._sql(one) for one in _list(sql)),
            None if chunks is None else _chunks(chunks),
            None if connections is None else tuple(map(_connection, _list(connections))),
            degraded,
        )
        return produced, self._emissions(emitted)

    def _asked(self, found: Any) -> Asked:
        verb, *parts = _list(found)
        match verb:
            case "item":
                key, value, emitted = _list(parts, 3)
                self.items += 1
                _must_fit(self.items, ITEMS_MAX, "items")
                text = _text(key, KEY_LENGTH_MAX)
                _must(bool(text) and "\0" not in text, "a key of an item that cannot be")
                return Asked(verb, (text, self._json(value), self._emissions(emitted)))
            case "nearest" | "connect":
                threshold, each = _list(parts, 2)
                _must(
                    type(threshold) in (int, float) and math.isfinite(threshold),
                    "a threshold that is no number",
                )
                return Asked(verb, (float(threshold), _number(each)))
            case "calls":
                return Asked(verb, _calls(parts))
            case "progress" | "begun":
                return Asked(verb, tuple(_list(parts, 0)))
        raise Malformed("an unknown verb")

    def _emissions(self, found: Any) -> list[Emitted]:
        return [self._row(one) if _list(one)[0] == "row" else self._spawn(one) for one in _list(found)]

    def _count(self) -> None:
        self.emitted += 1
        _must_fit(self.emitted, EMITTED_MAX, "rows, jobs and documents")

    def _json(self, found: Any, kind: type = object) -> bytes:
        """These bytes, if they are JSON as a store and its readers take it."""
        from pydantic_core import from_json

        raw = _bytes(found)
        count = _values(raw)
        self.values += count
        _must_fit(count, JSON_VALUES_MAX, "commas and brackets in one value")
        _must_fit(self.values, RUN_VALUES_MAX, "values in one run")
        one = b"".join((b"[", raw, b"]"))  # copied once, and others have their turns before it is read
        (value,) = from_json(one, allow_inf_nan=True, cache_strings="none")
        _must(isinstance(value, kind), "JSON of another kind")
        return raw

    def _row(self, found: Any) -> EmittedRow:
        self._count()
        kind, name, key, data = _list(found, 4)
        _must(kind == "row", "not a row")
        fields = json.loads(_text(key, ROW_KEY_BYTES_MAX))
        _must(type(fields) is dict, "a row whose key is not one")
        _must(
            all(type(value) in (str, int, bool) for value in fields.values()), "a row whose key is not plain"
        )
        canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        _must(
            canonical == key and len(key.encode()) <= ROW_KEY_BYTES_MAX,
            "a row whose key is written otherwise",
        )
        return EmittedRow(_name(name), key, self._json(data))

    def _spawn(self, found: Any) -> Spawn:
        self._count()
        if _list(found)[0] == "job":
            _, pipeline, name, given = _list(found, 4)
            return SpawnJob(_name(pipeline), _name(name), self.document_id, self._json(given))
        kind, pipeline, key, form, content, name, meta, collection, refresh = _list(found, 9)
        _must(kind == "child" and form in ("text", "bytes", "json"), "something unknown that is spawned")
        _must(type(refresh) is bool, "a child that is refreshed or not")
        content = self._json(content) if form == "json" else _bytes(content)
        return SpawnDocument(
            _name(pipeline), _text(key, KEY_LENGTH_MAX), form, content, _text(name), self._json(meta, dict),
            None if collection is None else _text(collection), None, refresh,
        )  # fmt: skip

    def _sql(self, found: Any) -> Sql:
        text, parameters = _list(found, 2)
        if self.statements is not None and text not in self.statements:
            raise Permanent("statement_undeclared", UNDECLARED)
        return _text(text, 1 << 20), tuple(map(_scalar, _list(parameters)))


UNDECLARED = (
    "Result: a stage in a process of its own gave a statement that it did not declare; "
    "name its text in the stage's option statements=[…]"
)


def _must(holds: bool, problem: str) -> None:
    if not holds:
        raise Malformed(problem)


def _must_fit(count: int, most: int, what: str) -> None:
    if count > most:
        raise TooLarge(f"more than {most:,} {what}")


def _list(found: Any, length: int | None = None) -> list[Any]:
    _must(
        type(found) is list and (length is None or len(found) == length),
        "a list that is none, or of other length",
    )
    listed: list[Any] = found
    return listed


def _text(found: Any, most: int = TEXT_MAX) -> str:
    _must(type(found) is str and len(found) <= most, "a text that is none, or too long")
    return str(found)


def _name(found: Any) -> str:
    _must(NAME.fullmatch(_text(found)) is not None, "a name that cannot be")
    return str(found)


def _bytes(found: Any) -> bytes:
    _must(type(found) is bytes, "bytes that are none")
    return bytes(found)


def _number(found: Any, most: int = NUMBER_MAX) -> int:
    _must(type(found) is int and 0 <= found <= most, "a number that cannot be")
    return int(found)


def _values(raw: bytes) -> int:
    """How many values there can be in this JSON, as its commas and brackets tell; those in texts are none."""
    found = _separators(raw, 0, len(raw))
    if found <= VALUES_SURE:
        return found
    bare, at, found = raw.replace(rb"\\", b"").replace(rb"\"", b""), 0, 0
    while at >= 0:
        text = bare.find(b'"', at)
        found += _separators(bare, at, len(bare) if text < 0 else text)
        at = bare.find(b'"', text + 1) + 1 or -1 if text >= 0 else -1
    return found


def _separators(raw: bytes, start: int, end: int) -> int:
    """The commas and brackets from start to end, counted in pieces: nothing else runs in the worker meanwhile."""
    return sum(
        raw.count(each, at, min(at + COUNTED_BYTES, end))
        for at in range(start, end, COUNTED_BYTES)
        for each in _SEPARATORS
    )


def _scalar(found: Any) -> object:
    if type(found) is list:
        return [_scalar(part) for part in found]
    if type(found) is not dict:
        return found
    ((name, text),) = found.items()
    return _SCALARS[name][1](_text(text, 1_000))


def _chunks(found: Any) -> ChunkSet:
    chunks = tuple(map(_chunk, _list(found)))
    _must(len({new.chunk.id for new in chunks}) == len(chunks), "two chunks of one id")
    return ChunkSet(revision(tuple(new.chunk for new in chunks)), chunks)


def _chunk(found: Any) -> NewChunk:
    id_, position, start, end, text, anchor, page, model, vector, heading, words = _list(found, 11)
    _must((model is None) == (vector is None), "a chunk with half a vector")
    if vector is not None:
        _must(len(_bytes(vector)) % 4 == 0, "a chunk with half a number")
        _text(model)
    chunk = Chunk(
        _text(id_), _number(position), _number(start), _number(end), _text(text, 1 << 28), _text(anchor),
        None if page is None else _number(page), model, vector, _text(heading, 1 << 20),
    )  # fmt: skip
    return NewChunk(chunk, _text(words, 1 << 28))


def _connection(found: Any) -> Connection:
    chunk_id, other_document_id, other_id, score, model = _list(found, 5)
    _must(type(score) in (int, float) and math.isfinite(score), "a score that is no number")
    return Connection(_text(chunk_id), _text(other_document_id), _text(other_id), float(score), _text(model))


def connections(body: bytes) -> list[Connection]:
    """What the worker answered to `nearest`, in the cell."""
    return [Connection(*one) for one in wire.decode(body)]


def _calls(parts: list[Any]) -> tuple[Mapping[str, int], bool | None, dict[str, Any]]:
    requests, probed, reports = _list(parts, 3)
    _must(type(requests) is dict and len(requests) <= REQUESTS_MAX, "requests that are none")
    counted = {_text(name, 200): _number(count) for name, count in requests.items()}
    _must(probed is None or type(probed) is bool, "a probe that ended in neither way")
    _must(type(reports) is dict, "reports that are none")
    return counted, probed, reports
