"""What types, codes, statuses, errnos and SQLSTATEs mean. Data only; `classify` decides which of them counts.

Types are named `package.Class`, by the package's first name, so that no client library is imported to know its errors.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from perdure.calls.verdict import Verdict


def _away(reason: str, *, processed: bool = True, outage: bool = True) -> Verdict:
    return Verdict("retryable", reason, processed=processed, outage=outage)


def _throttled(reason: str = "rate_limit") -> Verdict:
    return Verdict("rate_limited", reason, processed=False)


def _never(reason: str) -> Verdict:
    return Verdict("permanent", reason)


def _each(words: str, verdict: Verdict) -> dict[str, Verdict]:
    return dict.fromkeys(words.split(), verdict)


def _of(packages: str, names: dict[str, Verdict]) -> dict[str, Verdict]:
    return {f"{package}.{name}": verdict for package in packages.split() for name, verdict in names.items()}


CONNECTION = _away("connection")
CONNECT = _away("connect", processed=False)
CONNECT_TIMEOUT = _away("connect_timeout", processed=False)
REFUSED = _away("connection_refused", processed=False)
RESET = _away("connection_reset")
DISCONNECTED = _away("disconnected")
CUT = _away("response_cut")
DNS = _away("dns", processed=False)
POOL_TIMEOUT = _away("pool_timeout", processed=False, outage=False)  # our pool was full: nothing was sent
PROXY = _away("proxy")
READ_TIMEOUT = _away("read_timeout")
WRITE_TIMEOUT = _away("write_timeout")
TIMEOUT = _away("timeout")
TLS = _away("tls")
BUSY = _away("busy", processed=False, outage=False)
CERTIFICATE = _never("certificate")
CONSTRAINT = _never("constraint")
INVALID_REQUEST = _never("invalid_request")
INVALID_URL = _never("invalid_url")
PROGRAMMING = _never("programming_error")
QUOTA = _never("quota")
REDIRECTS = _never("too_many_redirects")
VALIDATION = _never("validation")
MALFORMED = Verdict("unknown", "response_malformed")

#: Reasons that only say where it failed; a cause that knows more takes their place.
VAGUE = frozenset({"connection", "connect", "timeout", "tls", "proxy"})
#: Reasons that lie with our own code. As causes they say nothing: they were merely being handled meanwhile.
OURS = frozenset({"programming_error", "validation", "cancelled"})

_HTTPX = {
    "ConnectError": CONNECT, "ConnectTimeout": CONNECT_TIMEOUT, "PoolTimeout": POOL_TIMEOUT,
    "ReadTimeout": READ_TIMEOUT, "WriteTimeout": WRITE_TIMEOUT, "TimeoutException": TIMEOUT,
    "NetworkError": CONNECTION, "ProxyError": PROXY, "RemoteProtocolError": DISCONNECTED,
    "LocalProtocolError": INVALID_REQUEST, "UnsupportedProtocol": INVALID_URL, "InvalidURL": INVALID_URL,
    "TooManyRedirects": REDIRECTS,
}  # fmt: skip
_REQUESTS = {
    "ConnectionError": CONNECTION, "ConnectTimeout": CONNECT_TIMEOUT, "ReadTimeout": READ_TIMEOUT, "Timeout": TIMEOUT,
    "SSLError": TLS, "ProxyError": PROXY, "ChunkedEncodingError": CUT, "TooManyRedirects": REDIRECTS,
    "InvalidURL": INVALID_URL, "MissingSchema": INVALID_URL, "InvalidSchema": INVALID_URL,
    "InvalidHeader": INVALID_REQUEST, "JSONDecodeError": MALFORMED,
}  # fmt: skip
_URLLIB3 = {
    "NewConnectionError": CONNECT, "NameResolutionError": DNS, "ConnectTimeoutError": CONNECT_TIMEOUT,
    "ReadTimeoutError": READ_TIMEOUT, "TimeoutError": TIMEOUT, "ProtocolError": CONNECTION, "IncompleteRead": CUT,
    "InvalidChunkLength": CUT, "SSLError": TLS, "ProxyError": PROXY, "EmptyPoolError": POOL_TIMEOUT,
    "LocationValueError": INVALID_URL,
}  # fmt: skip
_BOTOCORE = {
    "EndpointConnectionError": CONNECT, "ConnectTimeoutError": CONNECT_TIMEOUT, "ReadTimeoutError": READ_TIMEOUT,
    "ConnectionClosedError": DISCONNECTED, "ProxyConnectionError": PROXY, "SSLError": TLS,
    "ResponseStreamingError": CUT, "IncompleteReadError": CUT, "HTTPClientError": CONNECTION,
    "ConnectionError": CONNECTION, "ParamValidationError": VALIDATION, "ValidationError": VALIDATION,
    "NoCredentialsError": _never("credentials"), "PartialCredentialsError": _never("credentials"),
}  # fmt: skip
_AIOHTTP = {
    "ClientConnectorDNSError": DNS, "ClientConnectorCertificateError": CERTIFICATE, "ClientConnectorSSLError": TLS,
    "ClientProxyConnectionError": PROXY, "ClientConnectorError": CONNECT, "ConnectionTimeoutError": CONNECT_TIMEOUT,
    "SocketTimeoutError": READ_TIMEOUT, "ServerTimeoutError": TIMEOUT, "ServerDisconnectedError": DISCONNECTED,
    "ClientPayloadError": CUT, "ClientConnectionError": CONNECTION, "ServerFingerprintMismatch": CERTIFICATE,
    "InvalidURL": INVALID_URL, "TooManyRedirects": REDIRECTS,
}  # fmt: skip
_PYTHON = {
    "builtins.ConnectionRefusedError": REFUSED, "builtins.ConnectionResetError": RESET,
    "builtins.ConnectionAbortedError": _away("connection_aborted"), "builtins.BrokenPipeError": _away("broken_pipe"),
    "builtins.ConnectionError": CONNECTION, "builtins.TimeoutError": TIMEOUT,
    "socket.gaierror": DNS, "socket.herror": DNS, "asyncio.IncompleteReadError": CUT,
    "ssl.SSLCertVerificationError": CERTIFICATE, "ssl.SSLError": TLS,
    "ssl.SSLEOFError": _away("tls_cut"), "ssl.SSLZeroReturnError": _away("tls_cut"),
    "http.RemoteDisconnected": DISCONNECTED, "http.IncompleteRead": CUT, "http.BadStatusLine": DISCONNECTED,
    "http.InvalidURL": INVALID_URL, "json.JSONDecodeError": MALFORMED,
    **_of("builtins", _each(
        "TypeError LookupError AttributeError NameError ImportError AssertionError ArithmeticError "
        "NotImplementedError RecursionError BufferError ReferenceError StopIteration StopAsyncIteration", PROGRAMMING)),
    "builtins.ValueError": VALIDATION, "pydantic_core.ValidationError": VALIDATION,
}  # fmt: skip
_DATABASES = {
    "apsw.BusyError": BUSY, "apsw.LockedError": BUSY, "apsw.ConstraintError": CONSTRAINT,
    "sqlite3.IntegrityError": CONSTRAINT, "psycopg.OperationalError": CONNECTION,
    "psycopg2.OperationalError": CONNECTION, "psycopg_pool.PoolTimeout": POOL_TIMEOUT,
    "sqlalchemy.TimeoutError": POOL_TIMEOUT,
}  # fmt: skip
TYPES: dict[str, Verdict] = {
    **_of("httpx httpx2 httpcore httpcore2", _HTTPX),
    **_of("requests", _REQUESTS), **_of("urllib3", _URLLIB3), **_of("botocore", _BOTOCORE), **_of("aiohttp", _AIOHTTP),
    **_of("openai anthropic", {"APITimeoutError": TIMEOUT, "APIConnectionError": CONNECTION}),
    **_of("google", {"TransportError": CONNECTION}),
    **_PYTHON, **_DATABASES,
}  # fmt: skip

#: Packages whose messages are their own words, not a document's: the only ones whose messages are looked at.
SPEAKING = frozenset(
    "aiohttp anthropic asyncpg botocore google grpc httpcore httpcore2 httpx httpx2 openai psycopg requests "
    "urllib3".split()
)
#: How such a message begins.
PHRASES: dict[str, Verdict] = {
    "connection reset by peer": RESET, "connection refused": REFUSED, "connection is closed": CONNECTION,
    "connection was closed": CONNECTION, "server disconnected": DISCONNECTED,
    "temporarily unavailable": _away("unavailable"), "service unavailable": _away("unavailable"),
    "rate limit": _throttled(), "too many requests": _throttled(),
}  # fmt: skip

#: obstore has no attributes for them, only these fixed words of its own; a key in a bucket cannot contain them.
OBSTORE_STATUS, OBSTORE_UNSENT = "Server returned non-2xx status code: ", " - HTTP error: "

CODES: dict[str, Verdict] = {
    **_each("insufficient_quota billing_hard_limit_reached billing_not_active billing_error quota_exceeded "
            "quotaExceeded dailyLimitExceeded QUOTA_EXCEEDED ServiceQuotaExceededException", QUOTA),
    **_each("rate_limit_exceeded rate_limit_error rateLimitExceeded userRateLimitExceeded RATE_LIMIT_EXCEEDED "
            "RESOURCE_EXHAUSTED slow_down SlowDown Throttling ThrottlingException ThrottledException Throttled "
            "RequestThrottled RequestThrottledException RequestLimitExceeded TooManyRequestsException "
            "ProvisionedThroughputExceededException BandwidthLimitExceeded LimitExceededException "
            "EC2ThrottledException TransactionInProgressException PriorRequestNotComplete", _throttled()),
    **_each("overloaded_error server_error internal_server_error api_error server_overloaded UNAVAILABLE INTERNAL "
            "DATA_LOSS InternalError InternalFailure InternalServerError InternalServerException ServiceUnavailable "
            "ServiceUnavailableException", _away("service_error")),
    **_each("timeout_error DEADLINE_EXCEEDED RequestTimeout RequestTimeoutException", _away("service_timeout")),
    **_each("ABORTED", _away("aborted", outage=False)),
    **_each("context_length_exceeded invalid_api_key model_not_found content_policy_violation content_filter "
            "invalid_request_error authentication_error permission_error not_found_error request_too_large "
            "INVALID_ARGUMENT NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED UNAUTHENTICATED FAILED_PRECONDITION "
            "OUT_OF_RANGE UNIMPLEMENTED ValidationException AccessDenied AccessDeniedException NoSuchKey NoSuchBucket "
            "ExpiredToken", _never("refused")),
}  # fmt: skip


def _errnos(names: Iterable[tuple[str, Verdict]]) -> dict[int, Verdict]:
    return {getattr(errno, name): verdict for name, verdict in names if hasattr(errno, name)}


_ERRNO_NAMES = {
    "ECONNREFUSED": REFUSED, "ECONNRESET": RESET, "ECONNABORTED": _away("connection_aborted"),
    "EPIPE": _away("broken_pipe"), "ESHUTDOWN": _away("broken_pipe"), "ENOTCONN": CONNECTION, "ETIMEDOUT": TIMEOUT,
    "EHOSTUNREACH": _away("unreachable"), "EHOSTDOWN": _away("unreachable"), "ENETUNREACH": _away("unreachable"),
    "ENETDOWN": _away("unreachable"), "ENETRESET": RESET, "EAGAIN": _away("busy", outage=False),
    "EADDRNOTAVAIL": _away("no_local_port", processed=False, outage=False), "ENOBUFS": _away("busy", outage=False),
}  # fmt: skip
ERRNOS = _errnos(_ERRNO_NAMES.items())
CODES |= _ERRNO_NAMES | {"EAI_AGAIN": DNS, "ENOTFOUND": DNS}

#: By the longest beginning that is listed. A rolled back transaction was not carried out; a lost connection may have.
SQLSTATES: dict[str, Verdict] = {
    "08": CONNECTION, "08001": CONNECT, "08004": REFUSED,
    "40": _away("transaction_rolled_back", processed=False, outage=False),
    "40003": _away("transaction_unresolved", outage=False),
    "53": _away("resources_exhausted", processed=False),
    "57P": _away("database_shutdown"), "57P03": _away("database_starting", processed=False),
    "22": _never("data_invalid"), "23": CONSTRAINT,
}  # fmt: skip

#: SQLite's primary result codes: busy and locked.
SQLITE_BUSY = frozenset({5, 6})
TOO_MANY_REQUESTS, TOO_EARLY, REQUEST_TIMEOUT, UNAVAILABLE = 429, 425, 408, 503
