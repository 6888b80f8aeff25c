"""Blobs: bytes named by their SHA-256, written before the row that names them.

What came in and what a stage made lives here when it is too large for a row. Three places, one protocol:
a directory beside the SQLite file, a table in PostgreSQL, or a bucket that speaks S3.

Reading order: base (the promises), directory, table, s3, checked. Called by intake and the runner, and by
retention, which collects what no row has named for a day.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from perdure.errors import SettingInvalid, address_shown, hide_password
from perdure.store.blobs.base import BlobCorrupt, BlobMissing, Blobs
from perdure.store.blobs.checked import CheckedBlobs
from perdure.store.blobs.directory import DirectoryBlobs
from perdure.store.blobs.owning import own, take_over
from perdure.store.blobs.s3 import Guard, S3Blobs
from perdure.store.blobs.table import TableBlobs

__all__ = [
    "BlobCorrupt",
    "BlobMissing",
    "Blobs",
    "CheckedBlobs",
    "DirectoryBlobs",
    "S3Blobs",
    "TableBlobs",
    "open_blobs",
    "own",
    "take_over",
]


def open_blobs(
    url: str | None, default: Callable[[], Blobs], guard: Callable[[], Guard] | None = None
) -> Blobs:
    """The blob store at `url` (`s3://bucket/prefix`, `file:///directory` or a path); without one, `default()`. The
    guard is made for a bucket only.

    Nothing is contacted yet: a wrong form is SettingInvalid here, an unreachable place fails at first use.
    """
    if not url:
        return default()
    hide_password(url)
    wrong = SettingInvalid(
        f"blobs cannot be kept at {address_shown(url)!r}: use s3://bucket/prefix, file:///directory or a path"
    )
    try:
        parts = urlsplit(url)
    except ValueError:
        raise wrong from None
    if parts.scheme == "s3":
        return S3Blobs.from_url(url, None if guard is None else guard())
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return DirectoryBlobs(Path(unquote(parts.path)))
    if "://" not in url:
        return DirectoryBlobs(Path(url).absolute())
    raise wrong
