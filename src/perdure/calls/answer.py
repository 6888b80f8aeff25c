"""What a service answered, read from an error of whichever client library: its code, its wish, its status, its hint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from perdure.calls import retry_info, tables
from perdure.calls.retry_after import WISH, fields, hint_of, unwanted
from perdure.calls.verdict import Verdict

BODY_BYTES_MAX = 65_536
STATUS_NAMES = ("status_code", "status", "http_status", "code")
CODE_NAMES = ("type", "status", "grpc_status_code", "reason")
DATABASE_NAMES = ("sqlstate", "pgcode", "sqlite_errorcode")
#: The attributes that tell something.
TELLING = frozenset({
    *STATUS_NAMES, *CODE_NAMES, *DATABASE_NAMES, "response", "headers", "body", "details", "trailing_metadata",
})  # fmt: skip
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
    found = {name: value for name in names if (value := look(error, name)) is not None}
    if type(error).__module__.partition(".")[0] == "grpc":  # whose errors have methods for them
        found |= {name: _called(found[name]) for name in ("code", "trailing_metadata") if name in found}
    return found


def answered(facts: Facts, package: str) -> Verdict | None:
    """What the service's answer means, or None if the error carries no answer."""
    response = facts.get("response")
    status = _status(facts, response)
    body = facts["body"] if "body" in facts else _body(response)
    code = _code(facts, response, body if "body" in facts or status in WORDY else None, package)
    found = _headers(facts, response, package)
    verdict: Verdict | None
    if code is not None and not _contradicted(tables.CODES[code], status):
        verdict = tables.CODES[code]
    elif "true" in (wish.lower() for wish in found.get(WISH, ())):
        verdict = _wished(status)
    elif status is not None:
        verdict = of_status(status)
    else:
        verdict = None
    unasked = unwanted(found)
    if unasked and (verdict is None or verdict.kind == "unknown"):
        verdict = Verdict("permanent", "told_not_to_retry")
    if verdict is None:
        return None
    hint = _hint_s(facts, body, found) if verdict.passes else None
    refused = status == tables.UNAVAILABLE and hint is not None  # it named a time instead of doing it
    processed = verdict.processed and not refused
    unasked &= verdict.passes
    return Verdict(verdict.kind, verdict.reason, hint, processed, verdict.outage, status, code, unasked)


def asked(facts: Facts, package: str) -> tuple[float | None, bool]:
    """How long the service asked us to wait, and whether it asked not to be asked again."""
    body = facts["body"] if "body" in facts else _body(facts.get("response"))
    found = _headers(facts, facts.get("response"), package)
    return _hint_s(facts, body, found), unwanted(found)


def _hint_s(facts: Facts, body: object, found: dict[str, list[str]]) -> float | None:
    waits = (
        hint_of(found) if found else None,
        retry_info.delay_s(body, facts.get("details")),
        retry_info.trailer_s(facts["trailing_metadata"]) if "trailing_metadata" in facts else None,
    )
    return max((wait_s for wait_s in waits if wait_s is not None), default=None)


def _contradicted(verdict: Verdict, status: int | None) -> bool:
    """A general word for a refusal, with a status that says "try again": gateways send the one with the other. Or a
    general word for trouble with a status that says "never": clients make it up for an answer they cannot read."""
    if status is None or verdict.reason not in ("refused", "service_error"):
        return False
    told = of_status(status)
    return told.passes if verdict.reason == "refused" else told.kind == "permanent"


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


def _called(method: Any) -> Any:
    try:
        return method() if callable(method) else method
    except Exception:
        return None


def _wished(status: int | None) -> Verdict:
    usual = of_status(status or 0)
    return usual if usual.passes else Verdict("retryable", "told_to_retry")


def _headers(facts: Facts, response: object, package: str) -> dict[str, list[str]]:
    if package == "grpc":
        return fields(facts.get("trailing_metadata"))
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


def _code(facts: Facts, response: object, body: object, package: str) -> str | None:
    """The service's own code, if we know it."""
    for value in _places(facts, response, body, package):
        word = value.name if isinstance(value, Enum) and not isinstance(value, int) else value
        if isinstance(word, str) and word in tables.CODES:
            return word
    return None


def _places(facts: Facts, response: object, body: object, package: str) -> Iterator[object]:
    """Wherever services put their codes, the most telling place first."""
    code = facts.get("code")
    yield code
    if response is not None:
        yield _inner(response, "Error", "Code")  # botocore
    for name in CODE_NAMES:
        if name in facts:
            yield facts[name]
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
    if not isinstance(content, bytes) or len(content) > BODY_BYTES_MAX:
        return None
    if not content[:100].lstrip().startswith((b"{", b"[")):
        return None
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None
