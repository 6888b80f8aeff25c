"""Ids that are abbreviated: the beginning of an id stands for the one document whose id begins so."""

from __future__ import annotations

import re
from collections.abc import Iterable

from perdure.errors import InputInvalid
from perdure.store.sql_store import SqlStore
from perdure.store.text import checked

DOCUMENT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
BEGINNING = re.compile(r"[0-9a-f][0-9a-f-]{5,35}")
CHARS_MIN = 6
SHOWN_MAX = 5  # candidates that an error names


async def whole(store: SqlStore, document_id: str, org: str | None) -> tuple[str, str] | None:
    """The organisation and the whole id of a document, looked for in `org` alone if that is given; None if there is
    none. One that is whole already costs no look-up where its organisation is known. Raises: InputInvalid."""
    if DOCUMENT_ID.fullmatch(document_id):
        owner = org or await store.find(document_id)
        return None if owner is None else (owner, document_id)
    found = await store.find_like(checked(document_id, "the id"), org, SHOWN_MAX + 1)
    same = [key for key in found if key[1] == document_id]  # another system's id, which may have any form
    if same or len(document_id) < CHARS_MIN:
        return same[0] if same else None
    id_ = only(document_id, "documents", [key[1] for key in found])
    return next((key for key in found if key[1] == id_), None)


async def whole_target(store: SqlStore, target: str) -> str:
    """The target of acts that is meant: as given if there are acts on it, else the whole id of the document, deleted or
    not, whose id begins so. Raises: InputInvalid."""
    if DOCUMENT_ID.fullmatch(target) or await store.acts(1, target=checked(target, "the target")):
        return target
    found = await whole(store, target, None)
    if found is not None or not BEGINNING.fullmatch(target):
        return target if found is None else found[1]
    return only(target, "documents", await store.acted_on_like(target, SHOWN_MAX + 1))


def only(beginning: str, what: str, ids: Iterable[str]) -> str:
    """The one of the ids that begins so, or is it; as given if none does. Raises: InputInvalid if several do."""
    found = sorted(id_ for id_ in ids if id_.startswith(beginning))
    if len(found) > 1 and beginning not in found:
        shown = ", ".join(found[:SHOWN_MAX]) + ", …" * (len(found) > SHOWN_MAX)
        message = f"several {what} have an id that begins with {beginning}: {shown}; give more of it"
        raise InputInvalid(message, code="id_ambiguous")
    return found[0] if len(beginning) >= CHARS_MIN and found else beginning
