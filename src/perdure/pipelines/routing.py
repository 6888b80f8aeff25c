"""Which of the built-in pipelines a document belongs to, by what is in it; the doors ask."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from perdure.pipelines.extract import sniff, sniff_file
from perdure.pipelines.extract.sniff import MBOX

AUTO, DOCUMENT, IMAGE, MAIL = "auto", "document", "image", "mail"
ARCHIVES = "archives"  # the collection of archives of mail


def routed(entry: Mapping[str, Any], known: Container[str]) -> tuple[str, dict[str, Any]]:
    """The pipeline for the entry, of those that are known, and what is to be added to the entry: its media type as it
    was found in its content, and the collection of an archive of mail."""
    found: dict[str, Any] = {}
    if (path := entry.get("path")) is not None:
        found["media_type"] = sniff_file(Path(path), entry.get("name", ""), entry.get("media_type", ""))
    elif (data := entry.get("data")) is not None:
        found["media_type"] = sniff(data, entry.get("name", ""), entry.get("media_type", ""))
    wanted = by_kind(found.get("media_type", ""), known)
    if wanted == MAIL and "collection" not in entry:
        found["collection"] = ARCHIVES
    return wanted, found


def by_kind(media_type: str, known: Container[str]) -> str:
    """The pipeline for what is of this type, of those that are known; DOCUMENT, known or not, takes all the rest."""
    wanted = IMAGE if media_type.startswith("image/") else MAIL if media_type == MBOX else DOCUMENT
    return wanted if wanted in known else DOCUMENT
