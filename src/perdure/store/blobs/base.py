"""What every blob store promises, and the two ways a blob can disappoint."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

from perdure.errors import StoreError
from perdure.store.blobs.owning import Mark

#: How much of a file is in memory at once while it is hashed, copied or stored.
CHUNK_BYTES = 1024 * 1024

#: The code of StoreUnavailable where the place of the blobs cannot be reached.
UNAVAILABLE = "blobs_unavailable"

_DIGEST = re.compile(r"[0-9a-f]{64}")


class BlobMissing(StoreError):
    """No blob has this hash: it was never put, or it was collected after no row named it."""

    code = "blob_missing"


class BlobCorrupt(StoreError):
    """What is stored under this hash has another hash. Putting the right bytes again repairs it."""

    code = "blob_corrupt"


class Blobs(Protocol):
    """Content-addressed bytes. Whatever `put` answered survives a crash of this process and of its host.

    A blob's *age* counts from its last put, so one that is put again is young again and is not collected before a
    row names it. Hashes are SHA-256 in lower-case hex. StoreUnavailable when the place cannot be reached.
    """

    where: str  # for people
    inside: bool  # rows of the store itself
    beside: bool  # in the store's own directory, which moves with it

    async def mark(self) -> Mark | None:
        """Whose the place is; None where nobody has marked it."""
        ...

    async def set_mark(self, mark: Mark, over: bool = False) -> Mark:
        """Mark the place unless it has a mark other than `over`; return the mark that it has now."""
        ...

    async def put(self, data: bytes) -> str:
        """Store the bytes and return their hash. Putting them again stores nothing, repairs, and renews the age."""
        ...

    async def put_file(self, path: Path) -> tuple[str, int]:
        """Store a file of any size, a piece at a time; its hash and size."""
        ...

    async def get(self, digest: str) -> bytes:
        """The bytes, verified: BlobMissing, BlobCorrupt."""
        ...

    def stream(self, digest: str) -> AsyncGenerator[bytes, None]:
        """The bytes in pieces of a few MB at most, for a reader that may be slow: nothing else is held between two of
        them. The last piece comes only if all of them are right: BlobMissing, BlobCorrupt."""
        ...

    async def path(self, digest: str) -> Path | None:
        """The blob's own file where the store has one: for reading only, not verified. Else None."""
        ...

    async def open_copy(self, digest: str, directory: Path) -> Path:
        """A verified copy of the blob in `directory`, for the caller to keep or change: BlobMissing, BlobCorrupt."""
        ...

    async def exists(self, digest: str) -> bool:
        """Whether there is a blob with this hash."""
        ...

    def list(self, older_than_ms: int = 0) -> AsyncIterator[tuple[str, int]]:
        """Hash and age in milliseconds of every blob at least that old; deleting on the way is fine."""
        ...

    async def delete(self, digest: str, older_than_ms: int = 0) -> bool:
        """Delete the blob unless it became younger than that meanwhile; whether it was deleted, or is about to be."""
        ...

    async def tidy(self, older_than_ms: int) -> int:
        """Remove what interrupted puts left behind and is at least that old; how many leftovers there were."""
        ...


def is_digest(text: str) -> bool:
    """Whether this can be the hash of a blob (and so is safe as a file name)."""
    return _DIGEST.fullmatch(text) is not None


def required(digest: str) -> str:
    """The digest itself; BlobMissing when no blob can have that name."""
    if not is_digest(digest):
        raise BlobMissing(f"{digest!r} is not the hash of a blob")
    return digest


def hash_file(path: Path) -> tuple[str, int]:
    """Hash and size of a file, read a piece at a time."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            digest.update(piece)
            size += len(piece)
    return digest.hexdigest(), size


async def hash_aside(data: bytes) -> str:
    """Hash of the bytes, computed in a thread: the event loop serves others meanwhile."""
    return (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()


async def verified(pieces: AsyncGenerator[bytes, None], digest: str) -> AsyncGenerator[bytes, None]:
    """The same pieces, the last one only if all of them have this hash. Raises: BlobCorrupt."""
    found, held = hashlib.sha256(), b""
    async with aclosing(pieces):
        async for piece in pieces:
            await asyncio.to_thread(found.update, piece)
            if held:
                yield held
            held = piece
    if found.hexdigest() != digest:
        raise corrupt(digest, found.hexdigest())
    if held:
        yield held


def missing(digest: str) -> BlobMissing:
    """The error for a blob that is not there."""
    return BlobMissing(f"blob {digest} does not exist")


def corrupt(digest: str, found: str) -> BlobCorrupt:
    """The error for a blob whose bytes have another hash."""
    return BlobCorrupt(f"blob {digest} is damaged: its bytes have the hash {found}")


def changed(path: Path) -> StoreError:
    """The error for a file that changed between being hashed and being stored."""
    return StoreError(f"{path} changed while it was being stored; nothing was kept")
