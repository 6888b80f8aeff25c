"""What a service answered, read from an error of whichever client library: its code, its wish, its status, its hint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from perdure.calls import tables
from perdure.calls.retry_after import fields, hint_of
from perdure.calls.verdict import Verdict

BODY_BYTES_MAX = 65_536
STATUS_NAMES = ("status_code", "status", "http_status", "code")
CODE_NAMES = ("type", "status", "grpc_status_code", "reason")
DATABASE_NAMES = ("sqlstate", "pgcode", "sqlite_errorcode")
#: The attributes that tell something.
TELLING = frozenset({*STATUS_NAMES, *CODE_NAMES, *DATABASE_NAMES, "response", "headers", "body"})
#: Answers whose body may hold a code that says more than their status.
WORDY = frozenset({400, 402, 403, 409, 429})

Facts = Mapping[str, Any]


def offered(kind: type[BaseException]) -> frozenset[str]:
    """The telling attributes that all errors of this type have; any, if it makes them up when asked."""
    made_up = any("__getattr__" in vars(cls) for cls in kind.__mro__)
    return TELLING if made_up else frozenset(name for name in TELLING if hasattr(kind, name))


def facts_of(error: Exception, offers: frozenset[str]) -> Facts:
    """The telling attributes that this error has. Most have none, and asking for each would cost more than all else."""
    own = vars(error)
    names = offers | (own.keys() & TELLING) if own else offers
    return {name: value for name in names if (value := look(error, name)) is not None}


def answered(facts: Facts, package: str) -> Verdict | None:
    """What the service's answer means, or None if the error carries no answer."""
    response = facts.get("response")
    status = _status(facts, response)
    code = _code(facts, response, status, package)
    found = _headers(facts, response)
    wish = found["x-should-retry"][0].lower() if "x-should-retry" in found else None
    if code is not None and not _contradicted(tables.CODES[code], status):
        verdict = tables.CODES[code]
    elif wish in ("true", "false"):
        verdict = _wished(wish == "true", status)
    elif status is not None:
        verdict = of_status(status)
    else:
        return None
    hint = hint_of(found) if found and verdict.again else None
    refused = status == tables.UNAVAILABLE and hint is not None  # it named a time instead of doing it
    processed = verdict.processed and not refused
    return Verdict(verdict.kind, verdict.reason, hint, processed, verdict.outage, status, code)


def _contradicted(verdict: Verdict, status: int | None) -> bool:
    """A general word for a refusal, with a status that says "try again": gateways send the one with the other."""
    return verdict.reason == "refused" and status is not None and of_status(status).again


def of_status(status: int) -> Verdict:
    """408, 425, 429 and every 5xx may pass, also those that seldom do (501, 505): a gateway in trouble sends any."""
    reason = f"status_{status}"
    if status == tables.TOO_MANY_REQUESTS:
        return Verdict("rate_limited", reason, processed=False)
    if status in (tables.REQUEST_TIMEOUT, tables.TOO_EARLY):
        return Verdict("retryable", reason, processed=status != tables.TOO_EARLY)
    family = status // 100
    if family == 5:
        return Verdict("retryable", reason, outage=True)
    return Verdict("permanent" if family == 4 else "unknown", reason)


def look(holder: object, name: str) -> Any:
    """An attribute, or None: a property of a foreign object may raise anything."""
    if holder is None:
        return None
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _wished(again: bool, status: int | None) -> Verdict:
    if not again:
        return Verdict("permanent", "told_not_to_retry")
    usual = of_status(status or 0)
    return usual if usual.again else Verdict("retryable", "told_to_retry")


def _headers(facts: Facts, response: object) -> dict[str, list[str]]:
    headers = facts.get("headers")
    if headers is None and response is not None:
        headers = look(response, "headers")
        if headers is None:
            headers = _inner(response, "ResponseMetadata", "HTTPHeaders")  # botocore
    return {} if headers is None else fields(headers)


def _status(facts: Facts, response: object) -> int | None:
    values = [facts[name] for name in STATUS_NAMES if name in facts]
    if response is not None:
        values += [look(response, name) for name in STATUS_NAMES]
        values.append(_inner(response, "ResponseMetadata", "HTTPStatusCode"))  # botocore
    return next((status for value in values if (status := _number(value)) is not None), None)


def _number(value: object) -> int | None:
    """An HTTP status as number, text or enum."""
    if value is None:
        return None
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str) and len(value) == 3 and value.isascii() and value.isdigit():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599:
        return int(value)
    return None


def _code(facts: Facts, response: object, status: int | None, package: str) -> str | None:
    """The service's own code, if we know it."""
    for value in _places(facts, response, status, package):
        word = value.name if isinstance(value, Enum) and not isinstance(value, int) else value
        if isinstance(word, str) and word in tables.CODES:
            return word
    return None


def _places(facts: Facts, response: object, status: int | None, package: str) -> Iterator[object]:
    """Wherever services put their codes, the most telling place first."""
    code = facts.get("code")
    yield code() if package == "grpc" and callable(code) else code
    if response is not None:
        yield _inner(response, "Error", "Code")  # botocore
    for name in CODE_NAMES:
        if name in facts:
            yield facts[name]
    body = facts["body"] if "body" in facts else _body(response) if status in WORDY else None
    if isinstance(body, dict):
        for holder in (body.get("error"), body):
            for key in ("code", "type", "status"):
                yield _inner(holder, key)


def _inner(holder: object, *keys: str) -> Any:
    """A value inside nested dictionaries, or None."""
    at: Any = holder
    for key in keys:
        if not isinstance(at, dict):
            return None
        at = at.get(key)
    return at


def _body(response: object) -> object:
    """The answer's JSON if it has been read already: asking for it must not go to the network."""
    content = look(response, "_content")
    if (
        not isinstance(content, bytes)
        or len(content) > BODY_BYTES_MAX
        or not content.lstrip().startswith(b"{")
    ):
        return None
    try:
        return json.loads(content)
    except ValueError:
        return None
