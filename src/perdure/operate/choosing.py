"""Which dead documents and follow-up jobs are meant: by id, by what they are, by why and when they died."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import field, replace
from itertools import chain
from typing import Any, TypedDict

from perdure.core.failed_words import WORDS, meant
from perdure.core.frozen import frozen
from perdure.core.model import ALIASES
from perdure.errors import InputInvalid
from perdure.operate.known_options import refuse_unknown
from perdure.operate.nearest import nearest
from perdure.operate.whole_ids import whole
from perdure.store.dead import Key, Place, Where
from perdure.store.records import DeadRecord
from perdure.store.sql_store import SqlStore
from perdure.store.text import checked

FAILED = ".failed"
FETCH = "fetch"
SAME = (
    "org",
    "collection",
    "pipeline",
    "queue",
    "stage",
    "error_type",
    "code",
    "job",
)  # as the store has them
UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


class DeadOptions(TypedDict, total=False):
    """Which dead documents and follow-up jobs; all that is given must hold."""

    org: str
    collection: str
    pipeline: str
    queue: str
    stage: str
    error_type: str
    code: str
    group: str  # a fingerprint, or as much of its beginning as tells it apart
    job: str  # only follow-up jobs of this name, such as detect_connections
    failed: str  # `NAME.failed`: NAME is a stage (or another word for it), a collection, a pipeline or a follow-up job
    older_than: str | float  # since its death: seconds, or `90s`, `30m`, `2h`, `3d`, `1w`
    newer_than: str | float


@frozen
class Choice:
    """The documents that are meant: these keys, or all that `where` fits. `words` say so."""

    where: Where
    words: str
    keys: tuple[Key, ...] | None = None
    refused: tuple[tuple[str, str], ...] = field(default=())  # ids that are not dead, and what to answer


async def choose(
    store: SqlStore, options: DeadOptions, ids: Sequence[str] = (), known: Iterable[str] = ()
) -> Choice:
    """What is meant; InputInvalid for what cannot be."""
    _check_options(options)
    if not ids:
        where = await resolved(store, options, known)
        words = " ".join(f"{name}={value}" for name, value in options.items() if value is not None)
        return Choice(where, words or "all dead documents")
    if more := sorted(set(options) - {"org"}):
        raise InputInvalid(f"name documents or choose them by {', '.join(more)}, not both")
    keys: list[Key] = []
    refused: list[tuple[str, str]] = []
    for id_ in dict.fromkeys(ids):
        key = await whole(store, id_, options.get("org"))
        status = await store.status(*key) if key is not None else None
        if status is None:
            refused.append((id_, "refused: no such document"))
        elif status.state != "dead" and not await store.dead_of(status.org, status.id):
            refused.append((id_, f"refused: the document is {status.state}, not dead"))
        else:
            keys.append((status.org, status.id))
    return Choice(Where(), " ".join(ids)[:1_000], tuple(dict.fromkeys(keys)), tuple(refused))


def _check_options(options: DeadOptions) -> None:
    refuse_unknown("the choice of dead documents", options, DeadOptions, code="where_unknown")


async def resolved(store: SqlStore, options: DeadOptions, known: Iterable[str] = ()) -> Where:
    """The options as the store takes them; `known` are names that stages, pipelines and jobs have beside those that
    the store knows."""
    _check_options(options)
    same: dict[str, Any] = {name: checked(value, name) for name, value in options.items() if name in SAME}
    where = Where(**same)
    if (group := options.get("group")) is not None:
        where = replace(where, group=await _fingerprint(store, group, where.org))
    if (failed := options.get("failed")) is not None:
        where = replace(where, names=names_of(failed))
        await _check_names(store, failed, where, known)
    older, newer = options.get("older_than"), options.get("newer_than")
    if older is not None or newer is not None:
        now_ms = await store.now_ms()
        where = replace(
            where,
            before_ms=None if older is None else now_ms - age_ms(older),
            since_ms=None if newer is None else now_ms - age_ms(newer),
        )
    return where


async def _fingerprint(store: SqlStore, prefix: str, org: str | None) -> str:
    wanted = prefix.strip().lower()
    if not re.fullmatch("[0-9a-f]{1,16}", wanted):
        raise InputInvalid(
            f"a group is named by how its fingerprint begins, not by {prefix!r}", code="group_unknown"
        )
    found = await store.dead_groups_like(wanted, org)
    if not found:
        raise InputInvalid(
            f"no dead document is of a group {wanted}; see the groups of dead documents", code="group_unknown"
        )
    if len(found) > 1:
        raise InputInvalid(f"several groups begin with {wanted}; give more of it", code="group_ambiguous")
    return found[0]


async def _check_names(store: SqlStore, failed: str, where: Where, known: Iterable[str]) -> None:
    """InputInvalid for a name that no stage, collection, pipeline or follow-up job has; it names nothing of other
    organisations than the one that is meant."""
    names = where.names
    words = {FETCH, *(stage for _, stage in ALIASES.values() if stage is not None), *chain(*WORDS.values())}
    if words & set(names) or set(known) & set(names):
        return
    found = await store.names(names, where.org)
    if not set(names) & found:
        message = f"nothing is called {failed.removesuffix(FAILED)!r}; {nearest(names[0], {*known, *words, *found})}"
        raise InputInvalid(message, code="name_unknown")


def names_of(failed: str) -> tuple[str, ...]:
    """What NAME in `NAME.failed` may be called here: `chunking.failed` means the stage `chunk`, too."""
    name = checked(failed, "the name").strip().removesuffix(FAILED)
    if not name:
        raise InputInvalid(f"{failed!r} names nothing; write it as parsing.failed or archives.failed")
    return meant(name)


def age_ms(age: str | float) -> int:
    """`90s`, `30m`, `2h`, `3d`, `1w` or a number of seconds, as milliseconds."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*+([a-z]*)\s*", str(age).lower())
    if not found or (found[2] or "s") not in UNITS_S or not math.isfinite(float(found[1])):
        raise InputInvalid(f"an age is written like 90s, 30m, 2h, 3d or 1w, not {age!r}", code="age_invalid")
    return int(min(float(found[1]) * UNITS_S[found[2] or "s"] * 1_000, 1e14))


async def pages(store: SqlStore, choice: Choice, size: int) -> AsyncIterator[list[DeadRecord]]:
    """Those that are dead, some at a time. What dies or is requeued meanwhile makes none come twice or be left out."""
    if choice.keys is not None:
        for n in range(0, len(choice.keys), size):
            yield [one for key in choice.keys[n : n + size] for one in await dead_of(store, key)]
        return
    after: Place | None = None
    while page := await store.dead(choice.where, after, size):
        yield page
        after = place(page[-1])


async def documents_of(store: SqlStore, choice: Choice) -> Choice:
    """The same without follow-up jobs: only documents are exported and purged. Raises: InputInvalid."""
    if choice.keys is None:
        if choice.where.job:
            told = "follow-up jobs are neither exported nor purged, only documents are; leave out job"
            raise InputInvalid(told, code="where_unknown")
        return replace(choice, where=replace(choice.where, job=""))
    dead = {key: await store.dead_one(*key) is not None for key in choice.keys}
    alive = tuple(
        (id_, "refused: the document is not dead, a follow-up job of it is")
        for (_, id_), is_ in dead.items()
        if not is_
    )
    return replace(
        choice, keys=tuple(key for key, is_ in dead.items() if is_), refused=(*choice.refused, *alive)
    )


async def count(store: SqlStore, choice: Choice) -> int:
    """How many there are; of a document that is not dead, its follow-up jobs that are."""
    if choice.keys is None:
        return await store.dead_count(choice.where)
    return sum([len(await dead_of(store, key)) for key in choice.keys])


async def dead_of(store: SqlStore, key: Key) -> list[DeadRecord]:
    """The document of this key if it is dead, else its follow-up jobs that are."""
    found = await store.dead_of(*key)
    return found[:1] if found and not found[0].job else found


def place(one: DeadRecord) -> Place:
    return one.died_ms, one.org, one.id, one.job, one.generation


def cursor(where: Place) -> str:
    """A place in the list as one word."""
    return base64.urlsafe_b64encode(json.dumps(where).encode()).decode().rstrip("=")


def placed(word: str) -> Place:
    """The place that the word stands for; InputInvalid."""
    try:
        value: Any = json.loads(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)))
        died_ms, org, id_, job, generation = value
        if any(not isinstance(number, int) or not 0 <= number < 2**53 for number in (died_ms, generation)):
            raise ValueError(word)
        return (
            died_ms,
            checked(org, "the organisation"),
            checked(id_, "the id"),
            checked(job, "the job"),
            generation,
        )
    except (ValueError, TypeError, binascii.Error):
        raise no_place() from None


def no_place() -> InputInvalid:
    """The error for a page that is to begin after an id which no list can have had."""
    message = "that is no place in the list; use what the last page gave for `after`"
    return InputInvalid(message, code="cursor_invalid")
