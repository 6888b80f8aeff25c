"""The policies `storage_upload` and `storage_download` around the requests of blobs that lie in a bucket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from perdure.calls import presets
from perdure.calls.policy import Policy
from perdure.core.scope import WORK
from perdure.errors import RateLimited

T = TypeVar("T")

PATIENCE_S = 60.0  # for our own limiter: to put a document off costs more than to wait


class StorageGuard:
    """Repeats requests to a bucket as `STORAGE_RETRY_*` says; what the blobs want of it is `store.blobs.s3.Guard`.

    The engine reads and writes blobs, not a stage: no document is charged, and an outage is the store's own.
    """

    def __init__(self) -> None:
        self._up, self._down = presets.storage_upload(), presets.storage_download()
        self._in_parts = self._up.but(retries=0)
        self.retries, self.base_s, self.cap_s = (
            self._up.retries,
            self._up.backoff.base_s,
            self._up.backoff.cap_s,
        )

    async def upload(self, send: Callable[[], Awaitable[T]], in_parts: bool = False) -> T:
        """Send; with `in_parts` the client repeats each part by itself, and the whole is sent once."""
        return await _outside(self._in_parts if in_parts else self._up, send)

    async def download(self, fetch: Callable[[], Awaitable[T]]) -> T:
        """Fetch; the function may run several times, each from the beginning."""
        return await _outside(self._down, fetch)


async def _outside(policy: Policy, request: Callable[[], Awaitable[T]]) -> T:
    """Make the request as if no stage were running; a turn that comes late is waited for."""
    left_s, token = PATIENCE_S, WORK.set(None)
    try:
        while True:
            try:
                return await policy.acall(request)
            except RateLimited as error:
                left_s -= error.delay_s
                if not error.ours or left_s < 0:
                    raise
                await policy.timing.asleep(error.delay_s)
    finally:
        WORK.reset(token)
