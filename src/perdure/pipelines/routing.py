"""Which of the built-in pipelines a document belongs to, by what is in it; the doors ask."""

from __future__ import annotations

from collections.abc import Container, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from perdure.errors import ExtraMissing
from perdure.pipelines.extract import sniff, sniff_file
from perdure.pipelines.extract.sniff import MAIL as MESSAGE
from perdure.pipelines.extract.sniff import MBOX

AUTO, DOCUMENT, IMAGE, MAIL = "auto", "document", "image", "mail"
ARCHIVES, IMAGES = "archives", "images"
#: Of what belongs to a pipeline, unless somebody names another.
COLLECTIONS = {MAIL: ARCHIVES, IMAGE: IMAGES}


def routed(entry: Mapping[str, Any], known: Container[str]) -> tuple[str, dict[str, Any]]:
    """The pipeline for the entry, of those that are known, and what is to be added to the entry: its media type as it
    was found in its content, and the collection of an image or an archive of mail."""
    found: dict[str, Any] = {}
    if (path := entry.get("path")) is not None:
        found["media_type"] = sniff_file(Path(path), entry.get("name", ""), entry.get("media_type", ""))
    elif (data := entry.get("data")) is not None:
        found["media_type"] = sniff(data, entry.get("name", ""), entry.get("media_type", ""))
    wanted = by_kind(found.get("media_type", ""), known)
    if wanted in COLLECTIONS and "collection" not in entry:
        found["collection"] = COLLECTIONS[wanted]
    return wanted, found


def by_kind(media_type: str, known: Container[str]) -> str:
    """The pipeline for what is of this type, of those that are known; DOCUMENT, known or not, takes all the rest.

    Raises: ExtraMissing if it is an image and the pipeline for images is not installed.
    """
    wanted = IMAGE if media_type.startswith("image/") else MAIL if media_type in (MBOX, MESSAGE) else DOCUMENT
    if wanted == IMAGE and IMAGE not in known and DOCUMENT in known and find_spec("PIL") is None:
        raise ExtraMissing(f"{media_type} is an image; to process images run: pip install 'perdure[images]'")
    return wanted if wanted in known else DOCUMENT
