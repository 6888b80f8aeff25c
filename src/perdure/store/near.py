"""What is looked for among vectors, and what is found: the same whoever searches, this process or the server."""

from __future__ import annotations

from perdure.core.frozen import frozen


@frozen
class Which:
    """The vectors of one organisation that one model made."""

    org: str
    model: str
    dimensions: int


@frozen
class Among:
    """Which chunks count: those of a collection, of one document, or of every document but one."""

    collection: str | None = None
    document: str | None = None
    but: str | None = None


@frozen
class Near:
    """A chunk by its number, and its cosine with what was looked for."""

    score: float
    num: int
