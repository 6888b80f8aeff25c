"""Blobs in a bucket of S3, or of anything that speaks it, through `obstore` (the extra `s3`).

Address: `s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=eu-central-1`. Credentials come from the usual
`AWS_*` variables. A bucket has no transactions: a put always sends the object again, which renews its age and repairs
it. A delete that looks at the age first could therefore take a put along that comes in between. So it only sets the
object aside (`prefix/aside/…`), where it is still read, and deletes it for good when it has been there for as long.
Abandoned multipart uploads are the bucket's own to expire (a lifecycle rule).

A client does not survive a fork: open it in the process that uses it.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import parse_qsl, urlsplit

from perdure.errors import (
    BLOBS_REFUSED,
    DependencyDown,
    ExtraMissing,
    RetryLater,
    SettingInvalid,
    StoreUnavailable,
    address_shown,
)
from perdure.store.blobs.base import (
    UNAVAILABLE,
    changed,
    corrupt,
    hash_aside,
    hash_file,
    is_digest,
    missing,
    required,
    verified,
)
from perdure.store.blobs.owning import MARK, Mark

if TYPE_CHECKING:
    from obstore import GetResult, ListStream, ObjectMeta
    from obstore.store import S3Config, S3Store

T = TypeVar("T")

#: Objects above this size are sent in parts of this size (S3 itself asks for at least 5 MiB).
PART_BYTES = 8 * 1024 * 1024

#: What a stream asks for at a time: no connection waits for a slow reader.
RANGE_BYTES = 2 * 1024 * 1024

#: How many parts of one object are on their way at once; with PART_BYTES it bounds the memory of a put.
PARTS_UNDERWAY = 4

#: Objects of a page of the listing: as many as S3 gives.
PAGE = 1000


class Guard(Protocol):
    """Repeats requests that fail, and keeps them back while the service is down. With one the client itself repeats
    only parts of an object, with these numbers: to begin again would cost too much there."""

    retries: int
    base_s: float
    cap_s: float

    async def upload(self, send: Callable[[], Awaitable[T]], in_parts: bool = False) -> T: ...
    async def download(self, fetch: Callable[[], Awaitable[T]]) -> T: ...


class S3Blobs:
    """Blobs in a bucket, as `prefix/ab/ab12…`. Without a guard the client repeats by itself, `retries_max` times."""

    inside = beside = False

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        endpoint: str | None = None,
        region: str | None = None,
        retries_max: int = 3,
        backoff_base_s: float = 1.0,
        guard: Guard | None = None,
    ) -> None:
        self._prefix = f"{prefix.strip('/')}/".lstrip("/")
        self._guard = guard
        numbers = (retries_max, backoff_base_s, 10.0)
        if guard is not None:
            numbers = (guard.retries, guard.base_s, guard.cap_s)
        self._patient = _client(bucket, endpoint, region, *numbers)
        self._store = self._patient if guard is None else _client(bucket, endpoint, region, 0, 1.0, 1.0)
        self.where = f"s3://{bucket}/{self._prefix}"

    @classmethod
    def from_url(cls, url: str, guard: Guard | None = None) -> S3Blobs:
        """The blobs at `s3://bucket/prefix?endpoint=…&region=…`; SettingInvalid for any other form."""
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        unknown = sorted(options.keys() - {"endpoint", "region"})
        if parts.scheme != "s3" or not parts.netloc or unknown or "@" in parts.netloc:
            raise SettingInvalid(
                f"{address_shown(url)!r} is not the address of a bucket: use s3://bucket/prefix?endpoint=URL&region=NAME"
                + (f" (unknown: {', '.join(unknown)})" if unknown else "")
            )
        endpoint, region = options.get("endpoint"), options.get("region")
        return cls(parts.netloc, parts.path, endpoint=endpoint, region=region, guard=guard)

    async def mark(self) -> Mark | None:
        with self._reported():
            try:
                found = await self._fetched(lambda: self._bytes(f"{self._prefix}{MARK}"))
                return Mark.from_bytes(found, self.where)
            except FileNotFoundError:
                return None

    async def set_mark(self, mark: Mark, over: bool = False) -> Mark:
        from obstore.exceptions import AlreadyExistsError, BaseError

        key, data = f"{self._prefix}{MARK}", mark.to_bytes()
        with self._reported():
            try:
                mode: Any = "overwrite" if over else "create"
                await self._sent(lambda: self._store.put_async(key, data, mode=mode))
            except AlreadyExistsError:
                pass
            except BaseError:
                # Some services know no conditional puts: only the moment between looking and putting is unguarded.
                if over:
                    raise
                if await self.mark() is None:
                    await self._sent(lambda: self._store.put_async(key, data))
        return await self.mark() or mark

    async def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        with self._reported():
            if len(data) > PART_BYTES:
                await self._sent_in_parts(digest, lambda: data)
            else:
                await self._sent(lambda: self._store.put_async(self._key(digest), data))
        return digest

    async def put_file(self, path: Path) -> tuple[str, int]:
        # The name must be known before the first byte is sent, so the file is read twice.
        digest, size = await asyncio.to_thread(hash_file, path)
        if size <= PART_BYTES:
            data = await asyncio.to_thread(path.read_bytes)
            if await hash_aside(data) != digest:
                raise changed(path)
            await self.put(data)
            return digest, size
        with self._reported():
            await self._sent_in_parts(digest, lambda: _read_again(path, digest))
        return digest, size

    async def get(self, digest: str) -> bytes:
        with self._reported(digest):
            data = await self._fetched(lambda: self._whole(digest))
        found = await hash_aside(data)
        if found != digest:
            raise corrupt(digest, found)
        return data

    def stream(self, digest: str) -> AsyncGenerator[bytes, None]:
        return verified(self._pieces(digest), digest)

    async def _pieces(self, digest: str) -> AsyncGenerator[bytes, None]:
        start = size = 0
        with self._reported(digest):
            size = await self._fetched(lambda: self._size(digest))
        while start < size:
            end = min(start + RANGE_BYTES, size)
            with self._reported(digest):
                piece = await self._fetched(lambda start=start, end=end: self._range(digest, start, end))  # type: ignore[misc]
            yield piece
            start = end

    async def path(self, digest: str) -> Path | None:
        return None

    async def open_copy(self, digest: str, directory: Path) -> Path:
        partial = directory / f".{required(digest)}.{uuid.uuid4().hex}"

        async def fetch() -> str:
            hashed = hashlib.sha256()
            with partial.open("wb") as file:  # from the beginning, whatever an earlier try left
                async for piece in (await self._open(digest)).stream(min_chunk_size=PART_BYTES):
                    hashed.update(piece)
                    await asyncio.to_thread(file.write, piece)
            return hashed.hexdigest()

        try:
            with self._reported(digest):
                found = await self._fetched(fetch)
            if found != digest:
                raise corrupt(digest, found)
            return partial.replace(directory / digest)
        finally:
            partial.unlink(missing_ok=True)

    async def exists(self, digest: str) -> bool:
        if not is_digest(digest):
            return False
        if await self._age_ms(self._key(digest)) is not None:
            return True
        return await self._age_ms(self._aside(digest)) is not None

    async def list(self, older_than_ms: int = 0) -> AsyncIterator[tuple[str, int]]:
        now = datetime.now(UTC)
        pages = self._pages()
        with self._reported():
            while objects := await pages():
                for each in objects:
                    digest = each["path"].rpartition("/")[2]
                    age_ms = _milliseconds(now - each["last_modified"])
                    known = is_digest(digest) and each["path"] in (self._key(digest), self._aside(digest))
                    if known and age_ms >= older_than_ms:
                        yield digest, age_ms

    async def delete(self, digest: str, older_than_ms: int = 0) -> bool:
        if not is_digest(digest):
            return False
        key, aside = self._key(digest), self._aside(digest)
        age_ms = await self._age_ms(key)
        found = age_ms if age_ms is not None else await self._age_ms(aside)
        if found is None or found < older_than_ms:
            return False
        with self._reported(digest):
            if age_ms is not None and older_than_ms > 0:
                await self._sent(lambda: self._store.copy_async(key, aside))
                await self._sent(lambda: self._store.delete_async(key))
                return True
            doomed = [key, aside] if older_than_ms == 0 else [aside]
            await self._sent(lambda: self._store.delete_async(doomed))
        return True

    async def tidy(self, older_than_ms: int) -> int:
        return 0

    async def _sent(self, send: Callable[[], Awaitable[T]]) -> T:
        return await (send() if self._guard is None else self._guard.upload(send))

    async def _fetched(self, fetch: Callable[[], Awaitable[T]]) -> T:
        return await (fetch() if self._guard is None else self._guard.download(fetch))

    async def _sent_in_parts(self, digest: str, content: Callable[[], bytes | AsyncIterator[bytes]]) -> None:
        def send() -> Awaitable[Any]:
            return self._patient.put_async(
                self._key(digest), content(), chunk_size=PART_BYTES, max_concurrency=PARTS_UNDERWAY
            )

        await (send() if self._guard is None else self._guard.upload(send, in_parts=True))

    def _pages(self) -> Callable[[], Awaitable[Sequence[ObjectMeta]]]:
        """Give the next page of the listing at each call, none at the end. One that fails is asked for once more, after
        the last object that was given."""
        stream: ListStream[Sequence[ObjectMeta]] | None = None
        last: str | None = None

        async def fetch() -> Sequence[ObjectMeta]:
            nonlocal stream
            if stream is None:
                stream = self._store.list(self._prefix or None, offset=last, chunk_size=PAGE)
            try:
                return await stream.__anext__()
            except StopAsyncIteration:
                return ()
            except BaseException:
                stream = None
                raise

        async def page() -> Sequence[ObjectMeta]:
            nonlocal last
            objects = await self._fetched(fetch)
            last = objects[-1]["path"] if objects else last
            return objects

        return page

    async def _bytes(self, key: str) -> bytes:
        return bytes(await (await self._store.get_async(key)).bytes_async())

    async def _whole(self, digest: str) -> bytes:
        return bytes(await (await self._open(digest)).bytes_async())

    async def _size(self, digest: str) -> int:
        try:
            return (await self._store.head_async(self._key(digest)))["size"]
        except FileNotFoundError:
            return (await self._store.head_async(self._aside(digest)))["size"]

    async def _range(self, digest: str, start: int, end: int) -> bytes:
        try:
            return bytes(await self._store.get_range_async(self._key(digest), start=start, end=end))
        except FileNotFoundError:  # it was set aside meanwhile
            return bytes(await self._store.get_range_async(self._aside(digest), start=start, end=end))

    async def _open(self, digest: str) -> GetResult:
        try:
            return await self._store.get_async(self._key(digest))
        except FileNotFoundError:
            return await self._store.get_async(self._aside(digest))

    async def _age_ms(self, key: str) -> int | None:
        with self._reported():
            try:
                head = await self._fetched(lambda: self._store.head_async(key))
            except FileNotFoundError:
                return None
        return _milliseconds(datetime.now(UTC) - head["last_modified"])

    def _key(self, digest: str) -> str:
        return f"{self._prefix}{required(digest)[:2]}/{digest}"

    def _aside(self, digest: str) -> str:
        return f"{self._prefix}aside/{required(digest)}"

    def _refused(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"the blobs in {self.where} refuse our key or its rights: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "to a valid key and start the program again, or give the key the right to list the bucket and to read, "
            f"write and delete its objects; the answer: {_first_line(error)}",
            code=BLOBS_REFUSED,
        )

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(
            f"the blobs in {self.where} cannot be reached: {_first_line(error)}", code=UNAVAILABLE
        )

    @contextmanager
    def _reported(self, digest: str | None = None) -> Iterator[None]:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except FileNotFoundError as error:  # what obstore raises for a missing key, and for a missing bucket
            if digest is not None:
                raise missing(digest) from error
            raise self._unavailable(error) from error
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise self._refused(error) from error
        except (BaseError, OSError, DependencyDown, RetryLater) as error:
            raise self._unavailable(error) from error


def _client(
    bucket: str,
    endpoint: str | None,
    region: str | None,
    retries_max: int,
    backoff_base_s: float,
    cap_s: float,
) -> S3Store:
    try:
        from obstore.exceptions import BaseError
        from obstore.store import S3Store
    except ImportError as error:
        raise ExtraMissing("blobs in S3 need an extra package: pip install 'perdure[s3]'") from error

    place: S3Config = {}
    if endpoint:
        place["endpoint"] = endpoint
    if region:
        place["region"] = region
    try:
        return S3Store(
            bucket,
            config=place,
            client_options={
                "allow_http": bool(endpoint and endpoint.startswith("http://")),
                "connect_timeout": timedelta(seconds=10),
                "read_timeout": timedelta(seconds=30),
                "timeout": timedelta(minutes=10),
            },
            retry_config={
                "max_retries": retries_max,
                "retry_timeout": timedelta(minutes=2),
                "backoff": {
                    "init_backoff": timedelta(seconds=backoff_base_s),
                    "max_backoff": timedelta(seconds=cap_s),
                    "base": 2,
                },
            },
        )
    except BaseError as error:  # of several lines, of which the first says it
        why = str(error).partition("\n")[0]
        raise SettingInvalid(
            f"the bucket {bucket} cannot be opened ({why}); set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or neither where the machine has a role"
        ) from error


async def _read_again(path: Path, digest: str) -> AsyncIterator[bytes]:
    """The file in parts; fails, and with it the upload, when it is no longer what was hashed."""
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        piece = await asyncio.to_thread(file.read, PART_BYTES)
        while piece:
            following = await asyncio.to_thread(file.read, PART_BYTES)
            hashed.update(piece)
            if not following and hashed.hexdigest() != digest:
                raise changed(path)
            yield piece
            piece = following


def _milliseconds(age: timedelta) -> int:
    return max(0, int(age.total_seconds() * 1000))


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
