"""A client of the HTTP API, typed, plain and awaited.

    from perdure.client import Client

    with Client("http://127.0.0.1:3001", key="pk_…") as client:
        added = client.add(path="paper.pdf")
        client.wait(added.id)
        for hit in client.search("what it says"):
            print(hit.snippet)

    async with AsyncClient(...) as client:       # the same verbs, awaited

What fails for a moment is tried again, never earlier than the server asks; whatever creates something carries a key, so
that it is done once. ApiError has the server's stable code; ServerUnreachable means that no answer came.
"""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx2

from perdure.api.views import (
    Acted,
    Attempts,
    AttemptView,
    Chunks,
    ChunkView,
    DocumentDetail,
    DocumentView,
    Hits,
    HitView,
    Page,
    Taken,
    TakenAll,
)
from perdure.app import Portal
from perdure.calls import FullJitter, Policy
from perdure.core.state_words import ENDED
from perdure.errors import InputInvalid, PerdureError, address_shown

T = TypeVar("T")
Progress = Callable[[int, int], None]
WAIT_S = (0.1, 0.2, 0.4, 0.8, 1.5, 2.0)


class ApiError(PerdureError):
    """The server refused; `status` is HTTP's, `code` the stable one of the reference."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message, code=code)
        self.status = status


class ServerUnreachable(PerdureError, httpx2.TransportError):
    """No answer after all tries: the server is down, or the connection failed; `__cause__` is HTTP's error."""

    code = "server_unreachable"


class NotEnded(PerdureError):
    """The document did not end in the time that was given; it goes on."""

    code = "not_ended"


class AddOptions(TypedDict, total=False):
    """What `add` takes besides what is to be added."""

    name: str
    type: str
    collection: str
    pipeline: str
    meta: dict[str, Any]
    key: str
    dedupe: bool
    priority: int
    delay_s: float
    attempts: int


class AsyncClient:
    """See the module; every verb is awaited."""

    def __init__(
        self, url: str = "http://127.0.0.1:3001", *, key: str | None = None, timeout_s: float = 60.0, retries: int = 5,
    ) -> None:  # fmt: skip
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._address = address_shown(url)
        self._http = httpx2.AsyncClient(base_url=url, headers=headers, timeout=timeout_s)
        self._policy = Policy(
            f"perdure-{uuid.uuid4().hex[:8]}",
            retries=retries,
            backoff=FullJitter(0.2, 5.0),
            on_exhausted="raise",
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    # --- documents -------------------------------------------------------------------------------

    async def add(
        self, *, url: str | None = None, text: str | None = None, data: bytes | None = None,
        path: str | Path | None = None, once: str | None = None, on_progress: Progress | None = None,
        **options: Unpack[AddOptions],
    ) -> Taken:  # fmt: skip
        """Take a document in: one of url, text, data and path. `once` is its idempotency key, made up if not given;
        `on_progress` is told of bytes sent, and of how many there are."""
        _one_of(url=url, text=text, data=data, path=path)
        headers = {"Idempotency-Key": once or uuid.uuid4().hex}
        if path is None and data is None:
            body = {"url": url, "text": text, **options}
            asked = {"json": {k: v for k, v in body.items() if v is not None}, "headers": headers}
            return Taken.model_validate(await self._ask("POST", "/v3/documents", **asked))
        upload = _Upload(data, Path(path) if path is not None else None, on_progress)
        form = {k: json.dumps(v) if k == "meta" else str(v) for k, v in options.items() if v is not None}
        sent = self._told(self._policy.acall(self._send_file, upload, form, headers))
        return Taken.model_validate(await sent)

    async def add_many(self, documents: Sequence[dict[str, Any]], *, once: str | None = None) -> list[Taken]:
        """Up to 1,000 documents in one transaction; the answers are in order."""
        headers = {"Idempotency-Key": once or uuid.uuid4().hex}
        body = {"documents": list(documents)}
        found = await self._ask("POST", "/v3/documents/bulk", json=body, headers=headers)
        return TakenAll.model_validate(found).documents

    async def get(self, document_id: str, *, words: str | None = None) -> DocumentDetail:
        """Where the document stands; `words` names a system (`bullmq`, `images`) whose words its state is in."""
        asked = _query(words=words)
        return DocumentDetail.model_validate(await self._ask("GET", _path(document_id), params=asked))

    async def documents(self, **filters: Any) -> AsyncIterator[DocumentView]:
        """All documents that fit, those that came last first; filters as `GET /v3/documents` takes them."""
        filters = _query(**filters)
        after: str | None = None
        while True:
            asked = filters if after is None else {**filters, "after": after}
            page = Page.model_validate(await self._ask("GET", "/v3/documents", params=asked))
            for one in page.documents:
                yield one
            if (after := page.next) is None:
                return

    async def wait(
        self, document_id: str, timeout_s: float = 300.0, *, words: str | None = None
    ) -> DocumentDetail:
        """The document once it has ended; NotEnded if that takes longer."""
        loop, n = asyncio.get_running_loop(), 0
        until_s = loop.time() + timeout_s
        while True:
            found = await self.get(document_id, words=words)
            if found.state in ENDED:
                return found
            pause_s = WAIT_S[min(n, len(WAIT_S) - 1)]
            if loop.time() + pause_s > until_s:
                raise NotEnded(
                    f"document {document_id} is {found.state} after {timeout_s:g} s; it goes on, wait longer"
                )
            n += 1
            await asyncio.sleep(pause_s)

    async def attempts(self, document_id: str) -> list[AttemptView]:
        """Its history, oldest first."""
        found: list[AttemptView] = []
        asked: dict[str, str] = {}
        while True:
            page = Attempts.model_validate(
                await self._ask("GET", _path(document_id, "attempts"), params=asked)
            )
            found = page.attempts + found
            if page.next is None:
                return found
            asked = {"after": page.next}

    async def chunks(self, document_id: str) -> list[ChunkView]:
        """Its passages, in order."""
        found: list[ChunkView] = []
        after: str | None = None
        while True:
            asked = await self._ask("GET", _path(document_id, "chunks"), params=_query(after=after))
            page = Chunks.model_validate(asked)
            found += page.chunks
            if (after := page.next) is None:
                return found

    async def requeue(self, document_id: str, *, from_stage: str | None = None, reason: str = "") -> Acted:
        """Start a new generation of a document that has ended."""
        body = {"from_stage": from_stage, "reason": reason}
        return Acted.model_validate(await self._ask("POST", _path(document_id, "requeue"), json=body))

    async def cancel(self, document_id: str, *, reason: str = "") -> Acted:
        """End a document now."""
        asked = {"json": {"reason": reason}}
        return Acted.model_validate(await self._ask("POST", _path(document_id, "cancel"), **asked))

    async def delete(self, document_id: str, *, cancel: bool = False, reason: str = "") -> Acted:
        """Delete a document that has ended, with everything that is its own; with `cancel` one in progress is ended
        first."""
        sent, asked = 0, {"cancel": str(cancel).lower(), "reason": reason}

        async def send() -> Any:
            nonlocal sent
            sent += 1
            return _read(await self._http.request("DELETE", _path(document_id), params=asked))

        try:
            return Acted.model_validate(await self._told(self._policy.acall(send)))
        except ApiError as error:
            if error.code != "document_unknown" or sent == 1:
                raise
            return Acted(id=document_id, answer="purged")  # by a request whose answer was lost

    async def search(self, query: str, **filters: Any) -> list[HitView]:
        """The passages that fit best."""
        found = await self._ask("GET", "/v3/search", params=_query(q=query, **filters))
        return Hits.model_validate(found).hits

    async def request(self, method: str, path: str, **asked: Any) -> Any:
        """Any other route, as JSON; tried again and refused like all others."""
        return await self._ask(method, path, **asked)

    # --- asking ----------------------------------------------------------------------------------

    async def _ask(self, method: str, path: str, **asked: Any) -> Any:
        async def send() -> Any:
            return _read(await self._http.request(method, path, **asked))

        return await self._told(self._policy.acall(send))

    async def _told(self, asked: Coroutine[Any, Any, T]) -> T:
        """The answer; ApiError or ServerUnreachable instead of HTTP's own."""
        try:
            return await asked
        except httpx2.HTTPStatusError as error:
            raise _refusal(error.response, self._address) from None
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            raise ServerUnreachable(
                f"no answer from {self._address} ({error or type(error).__name__}); check the address and that it runs"
            ) from error

    async def _send_file(self, upload: _Upload, form: dict[str, str], headers: dict[str, str]) -> Any:
        with upload.open() as file:
            files: Any = {"file": (upload.name, file)}
            answer = await self._http.post("/v3/documents", files=files, data=form, headers=headers)
        return _read(answer)


def _one_of(**given: object) -> None:
    """Raises: InputInvalid, unless exactly one is given."""
    named = [name for name, value in given.items() if value is not None]
    if len(named) != 1:
        got = " and ".join(named) or "nothing"
        raise InputInvalid(f"hand in exactly one of {', '.join(given)}; got {got}")


def _query(**given: Any) -> dict[str, Any]:
    """What is given, as a query writes it."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in given.items()
        if value is not None
    }


def _path(document_id: str, *verb: str) -> str:
    """Where a document is; whatever its id is made of, it leads nowhere else."""
    return "/".join(("/v3/documents", quote(document_id, safe="").replace(".", "%2E"), *verb))


def _read(answer: httpx2.Response) -> Any:
    if answer.is_success:
        return answer.json() if answer.content else None
    raise httpx2.HTTPStatusError(f"answered {answer.status_code}", request=answer.request, response=answer)


def _refusal(answer: httpx2.Response, address: str) -> ApiError:
    try:
        said = answer.json()
        return ApiError(answer.status_code, str(said["code"]), f"{said['detail']} (from {address})")
    except (ValueError, KeyError, TypeError):
        told = f"{address} answered {answer.status_code}; is it a Perdure server? {answer.text[:300]}"
        return ApiError(answer.status_code, "unexpected", told.rstrip())


class _Upload:
    """What is sent as a file, from its beginning at every try."""

    def __init__(self, data: bytes | None, path: Path | None, on_progress: Progress | None) -> None:
        self.data, self.path, self.on_progress = data, path, on_progress
        self.name = path.name if path is not None else "upload"
        self.size = _size(path) if path is not None else len(data or b"")

    def open(self) -> _Told:
        return _Told(self)


def _size(path: Path) -> int:
    """The size of a file that can be read. Raises: InputInvalid."""
    if not path.is_file():
        raise InputInvalid(f"there is no file {path}; check the path", code="file_missing")
    try:
        with path.open("rb"):
            return path.stat().st_size
    except OSError as error:
        raise InputInvalid(f"{path} cannot be read: {error.strerror}", code="file_unreadable") from error


class _Told(io.RawIOBase):
    """A file that tells how much of it was read."""

    def __init__(self, upload: _Upload) -> None:
        self._upload = upload
        self._file: Any = (
            upload.path.open("rb") if upload.path is not None else io.BytesIO(upload.data or b"")
        )

    def read(self, size: int = -1) -> bytes:
        piece: bytes = self._file.read(size)
        if self._upload.on_progress is not None:
            self._upload.on_progress(self._file.tell(), self._upload.size)
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()


class Client:
    """The same verbs for plain code."""

    def __init__(
        self, url: str = "http://127.0.0.1:3001", *, key: str | None = None, timeout_s: float = 60.0, retries: int = 5,
    ) -> None:  # fmt: skip
        self._portal = Portal()
        self._client = AsyncClient(url, key=key, timeout_s=timeout_s, retries=retries)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._portal.call(self._client.close())
        self._portal.close()

    def add(
        self, *, url: str | None = None, text: str | None = None, data: bytes | None = None,
        path: str | Path | None = None, once: str | None = None, on_progress: Progress | None = None,
        **options: Unpack[AddOptions],
    ) -> Taken:  # fmt: skip
        """Take a document in: one of url, text, data and path."""
        asked = self._client.add(
            url=url, text=text, data=data, path=path, once=once, on_progress=on_progress, **options
        )
        return self._portal.call(asked)

    def add_many(self, documents: Sequence[dict[str, Any]], *, once: str | None = None) -> list[Taken]:
        """Up to 1,000 documents in one transaction; the answers are in order."""
        return self._portal.call(self._client.add_many(documents, once=once))

    def get(self, document_id: str, *, words: str | None = None) -> DocumentDetail:
        """Where the document stands; `words` names a system in whose words its state is answered."""
        return self._portal.call(self._client.get(document_id, words=words))

    def documents(self, **filters: Any) -> list[DocumentView]:
        """All documents that fit, those that came last first; filters as `GET /v3/documents` takes them."""

        async def all_() -> list[DocumentView]:
            return [one async for one in self._client.documents(**filters)]

        return self._portal.call(all_())

    def wait(self, document_id: str, timeout_s: float = 300.0, *, words: str | None = None) -> DocumentDetail:
        """The document once it has ended; NotEnded if that takes longer."""
        return self._portal.call(self._client.wait(document_id, timeout_s, words=words))

    def attempts(self, document_id: str) -> list[AttemptView]:
        """Its history."""
        return self._portal.call(self._client.attempts(document_id))

    def chunks(self, document_id: str) -> list[ChunkView]:
        """Its passages, in order."""
        return self._portal.call(self._client.chunks(document_id))

    def requeue(self, document_id: str, *, from_stage: str | None = None, reason: str = "") -> Acted:
        """Start a new generation of a document that has ended."""
        return self._portal.call(self._client.requeue(document_id, from_stage=from_stage, reason=reason))

    def cancel(self, document_id: str, *, reason: str = "") -> Acted:
        """End a document now."""
        return self._portal.call(self._client.cancel(document_id, reason=reason))

    def delete(self, document_id: str, *, cancel: bool = False, reason: str = "") -> Acted:
        """Delete a document that has ended, with everything that is its own."""
        return self._portal.call(self._client.delete(document_id, cancel=cancel, reason=reason))

    def search(self, query: str, **filters: Any) -> list[HitView]:
        """The passages that fit best."""
        return self._portal.call(self._client.search(query, **filters))

    def request(self, method: str, path: str, **asked: Any) -> Any:
        """Any other route, as JSON."""
        return self._portal.call(self._client.request(method, path, **asked))
