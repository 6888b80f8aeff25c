"""Which dead documents are meant: by id, by what they are, by why and when they died."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import field, replace
from typing import Any, TypedDict

from perdure.core.frozen import frozen
from perdure.core.model import ALIASES
from perdure.errors import InputInvalid
from perdure.store.dead import Key, Place, Where
from perdure.store.records import DeadRecord
from perdure.store.sql_store import SqlStore
from perdure.store.text import checked

FAILED = ".failed"
SAME = ("org", "collection", "pipeline", "queue", "stage", "error_type", "code")  # as the store has them
DOCUMENT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}


class DeadOptions(TypedDict, total=False):
    """Which dead documents; all that is given must hold."""

    org: str
    collection: str
    pipeline: str
    queue: str
    stage: str
    error_type: str
    code: str
    group: str  # a fingerprint, or as much of its beginning as tells it apart
    failed: str  # `NAME.failed`: NAME is a stage (or another word for it), a collection or a pipeline
    older_than: str | float  # since its death: seconds, or `90s`, `30m`, `2h`, `3d`, `1w`
    newer_than: str | float


@frozen
class Choice:
    """The documents that are meant: these keys, or all that `where` fits. `words` say so."""

    where: Where
    words: str
    keys: tuple[Key, ...] | None = None
    refused: tuple[tuple[str, str], ...] = field(default=())  # ids that are not dead, and what to answer


async def choose(store: SqlStore, options: DeadOptions, ids: Sequence[str] = ()) -> Choice:
    """What is meant; InputInvalid for what cannot be."""
    if not ids:
        where = await resolved(store, options)
        words = " ".join(f"{name}={value}" for name, value in options.items() if value is not None)
        return Choice(where, words or "all dead documents")
    if more := sorted(set(options) - {"org"}):
        raise InputInvalid(f"name documents or choose them by {', '.join(more)}, not both")
    keys: list[Key] = []
    refused: list[tuple[str, str]] = []
    for id_ in dict.fromkeys(ids):
        org = options.get("org") or await store.find(id_)
        status = await store.status(org, id_) if org is not None else None
        if status is None:
            refused.append((id_, "refused: no such document"))
        elif status.state != "dead":
            refused.append((id_, f"refused: the document is {status.state}, not dead"))
        else:
            keys.append((status.org, id_))
    return Choice(Where(), " ".join(ids)[:1_000], tuple(keys), tuple(refused))


async def resolved(store: SqlStore, options: DeadOptions) -> Where:
    """The options as the store takes them."""
    if unknown := sorted(set(options) - set(DeadOptions.__annotations__)):
        known = ", ".join(DeadOptions.__annotations__)
        message = f"dead documents are chosen by {known}, not by {', '.join(unknown)}"
        raise InputInvalid(message, code="where_unknown")
    same: dict[str, Any] = {name: checked(value, name) for name, value in options.items() if name in SAME}
    where = Where(**same)
    if (group := options.get("group")) is not None:
        where = replace(where, group=await _fingerprint(store, group, where.org))
    if (failed := options.get("failed")) is not None:
        where = replace(where, names=names_of(failed))
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
            f"no dead document is of a group {wanted}; `perdure dead groups` lists them", code="group_unknown"
        )
    if len(found) > 1:
        raise InputInvalid(f"several groups begin with {wanted}; give more of it", code="group_ambiguous")
    return found[0]


def names_of(failed: str) -> tuple[str, ...]:
    """What NAME in `NAME.failed` may be called here: `chunking.failed` means the stage `chunk`, too."""
    name = checked(failed, "the name").strip().removesuffix(FAILED)
    if not name:
        raise InputInvalid(f"{failed!r} names nothing; write it as parsing.failed or archives.failed")
    stage = ALIASES[name.lower()][1] if name.lower() in ALIASES else None
    return (name,) if stage in (None, name) else (name, stage or name)


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
            found = [await store.dead_one(*key) for key in choice.keys[n : n + size]]
            yield [one for one in found if one is not None]
        return
    after: Place | None = None
    while page := await store.dead(choice.where, after, size):
        yield page
        after = place(page[-1])


async def count(store: SqlStore, choice: Choice) -> int:
    """How many there are."""
    return await store.dead_count(choice.where) if choice.keys is None else len(choice.keys)


def place(one: DeadRecord) -> Place:
    return one.died_ms, one.org, one.id


def cursor(where: Place) -> str:
    """A place in the list as one word."""
    return base64.urlsafe_b64encode(json.dumps(where).encode()).decode().rstrip("=")


def placed(word: str) -> Place:
    """The place that the word stands for; InputInvalid."""
    try:
        value: Any = json.loads(base64.urlsafe_b64decode(word + "=" * (-len(word) % 4)))
        died_ms, org, id_ = value
        if not isinstance(died_ms, int) or not 0 <= died_ms < 2**53:
            raise ValueError(word)
        return died_ms, checked(org, "the organisation"), checked(id_, "the id")
    except (ValueError, TypeError, binascii.Error):
        raise no_place() from None


def no_place() -> InputInvalid:
    """The error for a page that is to begin after an id which no list can have had."""
    message = "that is no place in the list; use what the last page gave for `after`"
    return InputInvalid(message, code="cursor_invalid")
