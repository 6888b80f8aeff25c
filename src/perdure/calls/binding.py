"""Turn off the retries that client libraries do on their own, so that a call is one request.

Two layers that both retry multiply: three tries of ours around a client that tries three times are nine requests.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

REDIRECTS_MAX = 10
ADVICE = "set its own retries to 0 where it is made"


class SdkRetries(UserWarning):
    """A client may retry by itself and we cannot stop it; the message says what can."""


def bind(client: Any) -> bool:
    """Set the client's own retries to 0. False, with a warning that says what to do, where that cannot be done."""
    advice = _turned_off(client)
    if advice is None:
        return True
    warnings.warn(f"cannot turn off the retries of {named(client)}: {advice}", SdkRetries, stacklevel=2)
    return False


def retries(client: Any) -> bool:
    """Whether this client is one that we know and that retries by itself as it is set up now. Changes nothing."""
    for cls in type(client).__mro__:
        asked = _LOUD.get(f"{cls.__module__.partition('.')[0]}.{cls.__name__}")
        if asked is not None:
            try:
                return bool(asked(client))
            except Exception:  # this version of it is made differently inside
                return False
    return False


def named(client: object) -> str:
    """The class of a client, with its module."""
    return f"{type(client).__module__}.{type(client).__qualname__}"


def _turned_off(client: Any) -> str | None:
    """None when its retries are off, else what to do."""
    for cls in type(client).__mro__:
        turn_off = _KINDS.get(f"{cls.__module__.partition('.')[0]}.{cls.__name__}")
        if turn_off is not None:
            try:
                return turn_off(client)
            except (AttributeError, KeyError):  # this version of it is made differently inside
                return ADVICE
    return _ADVICE.get(_package(client), ADVICE)


# --- one function per kind of client ---------------------------------------------------------


def _sdk(client: Any) -> str | None:
    """openai, anthropic: their own retries, and those of the HTTP client beneath."""
    client.max_retries = 0
    http = getattr(client, "_client", None)
    return None if http is None else _httpx(http)


def _httpx(client: Any) -> str | None:
    transports = [client._transport, *client._mounts.values()]
    foreign = [type(one).__name__ for one in transports if one is not None and not _quiet(one)]
    return f"look at its transport {foreign[0]}" if foreign else None


def _quiet(transport: Any) -> bool:
    """Whether this transport makes one attempt from now on."""
    pool = getattr(transport, "_pool", None)
    if pool is None:  # not one that connects; those of others may do anything
        return _package(transport) in {"httpx", "httpx2"}
    for holder in (pool, *getattr(pool, "_connections", ())):
        if hasattr(holder, "_retries"):
            holder._retries = 0
    return True


def _genai(client: Any) -> str | None:
    """google-genai: its own retries, and the one of its awaited requests that only its options turn off."""
    api, genai = client._api_client, sys.modules["google.genai"]
    api._http_options.retry_options = genai.types.HttpRetryOptions(attempts=1)
    stop = sys.modules["tenacity"].stop_after_attempt(1)
    api._retry, api._async_retry = api._retry.copy(stop=stop), api._async_retry.copy(stop=stop)
    return None


def _storage(client: Any) -> str | None:
    """storage3, the storage of Supabase: those of the HTTP client beneath."""
    return _httpx(client.session)


def _requests(session: Any) -> str | None:
    for adapter in session.adapters.values():
        if not hasattr(adapter, "max_retries"):
            return f"look at its adapter {type(adapter).__name__}"
        adapter.max_retries = sys.modules["urllib3"].Retry(0, read=False)
    return None


def _urllib3_manager(manager: Any) -> str | None:
    manager.connection_pool_kw["retries"] = _one_attempt()
    for key in manager.pools.keys():  # noqa: SIM118  (it is not a dict: only its keys can be asked for)
        pool = manager.pools.get(key)
        if pool is not None:
            pool.retries = _one_attempt()
    return None


def _urllib3_pool(pool: Any) -> str | None:
    pool.retries = _one_attempt()
    return None


def _one_attempt() -> Any:
    """No retry of any kind, while redirects are still followed; without a total, Retry-After is not obeyed either."""
    return sys.modules["urllib3"].Retry(
        total=None, connect=0, read=False, status=0, other=0, redirect=REDIRECTS_MAX
    )


def _botocore(client: Any) -> str | None:
    """Its retries are wired in when it is made: all we can do is to look."""
    retries = client.meta.config.retries or {}
    if retries.get("total_max_attempts") == 1 or retries.get("max_attempts") == 0:
        return None
    return 'make it with botocore.config.Config(retries={"total_max_attempts": 1})'


def _aiohttp(session: Any) -> str | None:
    """It repeats a request of its own accord when a kept connection turns out to be closed."""
    session._retry_connection = False
    return None


def _package(thing: object) -> str:
    return type(thing).__module__.partition(".")[0]


_KINDS: dict[str, Callable[[Any], str | None]] = {
    "openai.BaseClient": _sdk,
    "anthropic.BaseClient": _sdk,
    "httpx.BaseClient": _httpx,
    "httpx2.BaseClient": _httpx,
    "requests.Session": _requests,
    "urllib3.PoolManager": _urllib3_manager,
    "urllib3.HTTPConnectionPool": _urllib3_pool,
    "botocore.BaseClient": _botocore,
    "aiohttp.ClientSession": _aiohttp,
    "google.Client": _genai,
    "storage3.SyncStorageBucketAPI": _storage,
    "storage3.AsyncStorageBucketAPI": _storage,
}
_ADVICE = {
    "google": "pass retry=None to each of its methods; google-genai: HttpRetryOptions(attempts=1)",
    "obstore": 'make the store with retry_config={"max_retries": 0}',
}


def _attempts(api: Any) -> bool:
    """Of the part of google-genai that makes the requests: without options it repeats some of the awaited ones."""
    options = api._http_options.retry_options
    return options is None or options.attempts != 1


def _pool_retries(pool: Any) -> bool:
    told = pool.retries if pool.retries is not None else 3  # what urllib3 does unless it is told
    return bool(getattr(told, "total", told) or getattr(told, "connect", 0) or getattr(told, "read", 0))


_LOUD: dict[str, Callable[[Any], bool]] = {
    "openai.BaseClient": lambda client: client.max_retries > 0,
    "anthropic.BaseClient": lambda client: client.max_retries > 0,
    "httpx.BaseClient": lambda client: client._transport._pool._retries > 0,
    "httpx2.BaseClient": lambda client: client._transport._pool._retries > 0,
    "requests.Session": lambda session: any(a.max_retries.total for a in session.adapters.values()),
    "urllib3.HTTPConnectionPool": _pool_retries,
    "botocore.BaseClient": lambda client: _botocore(client) is not None,
    "google.Client": lambda client: _attempts(client._api_client),
    "google.BaseApiClient": _attempts,
}
