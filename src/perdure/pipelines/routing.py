"""Which of the built-in pipelines a document belongs to, by what is in it; the doors ask."""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from perdure.pipelines.extract import sniff, sniff_file
from perdure.pipelines.extract.sniff import MBOX

AUTO, DOCUMENT, IMAGE, MAIL = "auto", "document", "image", "mail"


def routed(entry: Mapping[str, Any], known: Container[str]) -> tuple[str, dict[str, Any]]:
    """The pipeline for the entry, of those that are known, and what is to be added to the entry: its media type as it
    was found in its content, and the collection of an archive of mail."""
    found: dict[str, Any] = {}
    if (path := entry.get("path")) is not None:
        found["media_type"] = sniff_file(Path(path), entry.get("name", ""), entry.get("media_type", ""))
    elif (data := entry.get("data")) is not None:
        found["media_type"] = sniff(data, entry.get("name", ""), entry.get("media_type", ""))
    kind = found.get("media_type", "")
    wanted = IMAGE if kind.startswith("image/") else MAIL if kind == MBOX else DOCUMENT
    if wanted not in known:
        return DOCUMENT, found
    if wanted == MAIL and "collection" not in entry:
        found["collection"] = "archives"
    return wanted, found
