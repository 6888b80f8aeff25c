"""Ids that are abbreviated: the beginning of an id stands for the one document whose id begins so."""

from __future__ import annotations

import re

from perdure.errors import InputInvalid
from perdure.store.sql_store import SqlStore
from perdure.store.text import checked

DOCUMENT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
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
    if len(found) > 1:
        shown = ", ".join(id_ for _, id_ in found[:SHOWN_MAX]) + ", …" * (len(found) > SHOWN_MAX)
        raise InputInvalid(
            f"several documents have an id that begins with {document_id}: {shown}; give more of it",
            code="id_ambiguous",
        )
    return found[0] if found else None
