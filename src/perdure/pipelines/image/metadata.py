"""The record of what is to be seen on an image, and the one that stands for it until somebody has looked.

The names of the fields are those of the stored record.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from perdure.core.frozen import frozen

UNKNOWN = "unknown"


@frozen
class Colors:
    """Colours by name, as somebody would name them."""

    dominant: tuple[str, ...]
    palette: tuple[str, ...]


@frozen
class Composition:
    """How the image is built; `orientation` is landscape, portrait, square or unknown."""

    orientation: str
    subject: str
    background: str


@frozen
class Metadata:
    """What is to be seen on an image."""

    description: str
    detailedDescription: str
    tags: tuple[str, ...]
    categories: tuple[str, ...]
    objects: tuple[str, ...]
    colors: Colors
    mood: str
    style: str
    composition: Composition
    searchableText: str

    def record(self) -> dict[str, Any]:
        """As plain JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def searchable_by(self, text: str) -> Metadata:
        """The same, to be found by this text."""
        return replace(self, searchableText=text)


FALLBACK = Metadata(
    description="Image uploaded successfully. AI metadata generation pending.",
    detailedDescription="Detailed description will be generated soon.",
    tags=("unprocessed",),
    categories=("uncategorized",),
    objects=(),
    colors=Colors((), ()),
    mood=UNKNOWN,
    style=UNKNOWN,
    composition=Composition("landscape", UNKNOWN, UNKNOWN),
    searchableText="unprocessed uncategorized",
)
