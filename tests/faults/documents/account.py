"""What the store holds of documents, by their names instead of their ids, so that two runs can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from perdure.core.chunk import Completeness, Connection, chunk_id
from perdure.pipelines.connect import EACH
from perdure.pipelines.document import documents
from perdure.service import AddOptions
from tests.faults.fleet import Fleet

#: A chunk: position, place in the text, anchor, text. A pair: name and position of either side.
Passage = tuple[int, int, int, str, str]
Pair = tuple[tuple[str, int], tuple[str, int]]
Look = Callable[..., Coroutine[Any, Any, list[Connection]]]


def add(fleet: Fleet, entries: Mapping[str, AddOptions], org: str) -> dict[str, str]:
    """Take documents in, by name; name → id."""
    given: list[AddOptions] = [{**entry, "name": name, "org": org} for name, entry in entries.items()]
    added = fleet.ask(fleet.app.add_many(given, pipeline=documents))
    assert {one.answer for one in added} == {"added"}
    return {name: one.id for name, one in zip(entries, added, strict=True)}


def passages(fleet: Fleet, org: str, ids: Mapping[str, str]) -> dict[str, list[Passage]]:
    """The chunks of each document, whose ids must follow from the document and its text, all of them embedded."""
    found: dict[str, list[Passage]] = {}
    for name, id_ in ids.items():
        chunks = fleet.ask(fleet.app.chunks(id_, org))
        text = fleet.ask(fleet.app.output(id_, "extract", org)).markdown
        content_hash = hashlib.sha256(text.encode()).hexdigest()
        for chunk in chunks:
            assert chunk.id == chunk_id(id_, content_hash, chunk.position, chunk.text), name
            assert text[chunk.start : chunk.end] == chunk.text, name
        complete = fleet.ask(fleet.app.store.completeness(org, id_))
        assert complete == Completeness(len(chunks), len(chunks), len(chunks)), name
        found[name] = [(c.position, c.start, c.end, c.anchor, c.text) for c in chunks]
    return found


def pairs(fleet: Fleet, org: str, ids: Mapping[str, str]) -> dict[Pair, float]:
    """All that is connected and how much, as anybody is shown it; each pair from both sides."""
    return _named(fleet, org, ids, fleet.app.connections)


def fresh_pairs(fleet: Fleet, org: str, ids: Mapping[str, str]) -> dict[Pair, float]:
    """All that would be connected if it were looked for now; each pair from both sides."""

    def nearest(id_: str, *, org: str) -> Coroutine[Any, Any, list[Connection]]:
        return fleet.app.store.nearest(org, id_, each=EACH)

    found = _named(fleet, org, ids, nearest)
    return found | {(there, here): score for (here, there), score in found.items()}


def _named(fleet: Fleet, org: str, ids: Mapping[str, str], look: Look) -> dict[Pair, float]:
    """What `look` finds for each document; every chunk that it tells of must be there."""
    places: dict[str, tuple[str, int]] = {}
    for name, id_ in ids.items():
        places |= {chunk.id: (name, chunk.position) for chunk in fleet.ask(fleet.app.chunks(id_, org))}
    found = [one for id_ in ids.values() for one in fleet.ask(look(id_, org=org))]
    return {(places[one.chunk_id], places[one.other_id]): one.score for one in found}


def wait_until_quiet(fleet: Fleet, within_s: float) -> float:
    """Until no job is left, follow-ups included; how long that took."""
    return fleet.wait(
        lambda: not any(fleet.tally().queues.values()), "every job to end", within_s, look_s=0.1
    )


def assert_sound(fleet: Fleet) -> None:
    """Nothing refers to what is not there, and nobody ever tried to write such a thing."""
    if fleet.url.startswith("sqlite"):
        assert fleet.query("PRAGMA foreign_key_check") == []
    for worker in fleet.workers:
        assert "foreign key" not in worker.said.lower()
        assert "foreignkey" not in worker.said.lower()
