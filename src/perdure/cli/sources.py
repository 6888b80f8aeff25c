"""What `perdure add` was given, one thing at a time: files, all files of a directory, URLs, standard input, a text.

A directory is listed once, and while its files are added: nobody waits for the end of a long list. What cannot be a
document (a pipe, a link that leads nowhere, an empty file) is found too, with the reason.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from perdure.cli.saying import say
from perdure.core.frozen import frozen
from perdure.errors import InputInvalid, address_shown, redacted
from perdure.pipelines.mail.packing import pack
from perdure.service import AddOptions, AsyncPerdure

PIECE_BYTES = 1 << 20
BATCH = 256  # documents that are handed in together and share a transaction
BATCH_BYTES = 32 << 20  # of them, so that a Ctrl-C need not wait for gigabytes
STDIN = "stdin"  # its document is called so, unless there is a name

_MISSING = (errno.ENOENT, errno.ENOTDIR)
_SPECIAL = {
    stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device",
}  # fmt: skip


@frozen
class Found:
    """One thing: how to add it, or why it cannot be added."""

    source: str  # what to call it, fit to be printed
    entry: AddOptions
    size: int = 0
    error: str = ""
    code: str = ""


def refused(source: str, error: str, code: str) -> Found:
    """Something that is no document."""
    return Found(source, {}, 0, error, code)


def found(given: Sequence[str], own: frozenset[str] = frozenset()) -> Iterator[Found]:
    """Everything that the arguments stand for, in their order.

    A directory stands for its files, except hidden ones and the store's `own`; links in it to directories are left.
    """
    for one in given:
        if "://" in one:
            yield Found(shown(_without_secrets(one)), {"url": one})
        elif os.path.isdir(one):
            files = _walk(os.path.normpath(one), own)
            if (first := next(files, None)) is None:
                yield refused(shown(one), "there is no file in this directory", "file_missing")
            else:
                yield first
                yield from files
        else:
            yield _file(one)


def batches(things: Iterable[Found]) -> Iterator[list[Found]]:
    """The things, as many at a time as are worth a transaction."""
    batch: list[Found] = []
    size = 0
    for thing in things:
        if batch and size + thing.size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(thing)
        size += thing.size
        if len(batch) == BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def spooled(stream: BinaryIO, directory: Path, bytes_max: int) -> Found:
    """What the stream gives, as a file in the directory: a piece of it at a time is in memory, and of one that is too
    large no more is read than shows it."""
    path, size = directory / STDIN, 0
    with path.open("wb") as file:
        while piece := stream.read(min(PIECE_BYTES, bytes_max + 1 - size)):
            size += len(piece)
            if size > bytes_max:
                return refused(
                    "-",
                    f"standard input has more than {bytes_max} bytes, the most allowed",
                    "input_too_large",
                )
            file.write(piece)
    if not size:
        return refused("-", "standard input is empty", "document_empty")
    return Found("-", {"path": path, "name": STDIN}, size)


def packed(mail: str, directory: Path) -> Found:
    """A directory of messages as one archive: a file in our directory, whose key is the place of theirs."""
    source, place = shown(mail), os.path.abspath(mail)
    path = directory / f"{sum(1 for _ in directory.iterdir())}.mbox"
    try:
        with path.open("wb") as file:
            count = pack(Path(mail), file)
    except InputInvalid as error:
        return refused(source, str(error), str(error.code))
    except OSError as error:
        return refused(source, f"cannot be read: {error.strerror}", "file_unreadable")
    say(f"perdure: {source}: one archive of {count:,} files", file=sys.stderr)
    name = valid(os.path.basename(place))
    return Found(source, {"path": path, "name": name, "key": f"mbox:{place}"}, path.stat().st_size)


def texts(text: str) -> Found:
    """A text from the command line."""
    if not text.strip():
        return refused("--text", "the text is empty", "document_empty")
    return Found("--text", {"text": text}, len(text))


def own_files(app: AsyncPerdure) -> frozenset[str]:
    """The files and directories of the app's own store."""
    places = [getattr(app.blobs, "root", None), getattr(app.store.driver, "directory", None)]
    if (database := getattr(app.store.driver, "path", None)) is not None:
        places += [f"{database}{end}" for end in ("", "-wal", "-shm", "-journal")]
    return frozenset(os.path.realpath(place) for place in places if place is not None)


def shown(name: str) -> str:
    """The name as a line can show it: bytes that are no UTF-8, line ends and the like are replaced."""
    readable = valid(name)
    return (
        readable if readable.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in readable)
    )


def valid(name: str) -> str:
    """The name of a file, whose bytes need not be UTF-8, as text that can be stored."""
    return os.fsencode(name).decode(errors="replace")


def prompt(stream: BinaryIO) -> None:
    """Tell whoever sits there that we are waiting for them."""
    if stream.isatty():
        say("perdure: reading standard input; end it with Ctrl-D", file=sys.stderr)


def _walk(top: str, own: frozenset[str]) -> Iterator[Found]:
    waiting = [top]
    while waiting:
        directory = waiting.pop()
        try:
            with os.scandir(directory) as entries:
                listed = sorted((e.name, e.is_dir(follow_symlinks=False), e.is_symlink()) for e in entries)
        except OSError as error:
            yield refused(shown(directory), f"cannot be listed: {error.strerror}", "file_unreadable")
            continue
        real, deeper = os.path.realpath(directory), []
        for name, is_directory, is_link in listed:
            path = name if directory == "." else os.path.join(directory, name)
            if name.startswith(".") or os.path.join(real, name) in own:
                continue
            if is_directory:
                deeper.append(path)
            elif not (is_link and os.path.isdir(path)):  # it may lead back to where we came from
                yield _file(path)
        waiting += reversed(deeper)


def _file(path: str) -> Found:
    source = shown(path)
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno in _MISSING and os.path.islink(path):
            return refused(source, "is a link that leads nowhere", "file_missing")
        missing = error.errno in _MISSING
        why = "there is no such file; check the path" if missing else f"cannot be read: {error.strerror}"
        return refused(source, why, "file_missing" if missing else "file_unreadable")
    if not stat.S_ISREG(status.st_mode):
        kind = _SPECIAL.get(stat.S_IFMT(status.st_mode), "something else")
        return refused(source, f"is {kind}, not a file", "file_special")
    if not status.st_size and _is_empty(path):
        return refused(source, "is empty", "document_empty")
    return Found(source, {"path": path, "name": valid(os.path.basename(path))}, status.st_size)


def _without_secrets(url: str) -> str:
    """Return a URL as it may be printed; an @ of its path (`https://example.com/@name`) is not a user's."""
    host = url.partition("://")[2].partition("/")[0]
    return address_shown(url) if "@" in host else redacted(url)


def _is_empty(path: str) -> bool:
    """Whether nothing can be read from it: files of the kernel have a size of 0 and content all the same."""
    try:
        with open(path, "rb") as file:
            return not file.read(1)
    except OSError:
        return False  # why, is told when it is added
