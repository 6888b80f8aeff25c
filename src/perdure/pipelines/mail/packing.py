"""A directory of messages as one mbox, so that it is an archive like any other: a Maildir, or .eml files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import BinaryIO

from perdure.errors import InputInvalid
from perdure.pipelines.mail.archive import message_files

#: The same for all, so that the same messages give the same archive.
FROM_LINE = b"From - Thu Jan  1 00:00:00 1970\n"
PIECE_BYTES = 1 << 20

_HEADER = re.compile(rb"[!-9;-~]+[ \t]*:")
_TO_QUOTE = re.compile(rb">*From ")


def is_maildir(path: Path) -> bool:
    """Whether this is one, by the directories in it."""
    return all((path / name).is_dir() for name in ("cur", "new"))


def pack(directory: Path, target: BinaryIO) -> int:
    """Write its messages as an mbox, by name; how many. InputInvalid if there is none.

    `open_archive` gives them back as they are in their files.
    """
    names = message_files(directory)
    if not names:
        message = "there is no message in this directory: it is no Maildir, and no file in it ends in .eml"
        raise InputInvalid(message, code="file_missing")
    for name in names:
        with (directory / name).open("rb") as message_file:
            _append(message_file, target)
    return len(names)


def _append(source: BinaryIO, target: BinaryIO) -> None:
    target.write(FROM_LINE)
    begins, last = True, b""
    while piece := source.readline(PIECE_BYTES):
        if not last and not _HEADER.match(piece):
            target.write(
                b"\n"
            )  # or the line before would begin no message, and this be a part of the last one
        if begins and _TO_QUOTE.match(piece):
            target.write(b">")
        target.write(piece)
        begins, last = piece.endswith(b"\n"), piece
    target.write(b"\n" if begins else b"\n\n")
