"""What a web server answered: the head of it, read with care, and what it means when the document is not in it."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator

import httpcore2

from perdure.calls.retry_after import hint_s
from perdure.errors import PerdureError, Permanent, RateLimited, RetryLater, Transient

HEADERS_MAX = 200
HEADER_BYTES_MAX = 32 * 1024
VALIDATOR_CHARS_MAX = 1_000
#: Whoever asks for no wait at all gets a moment anyway.
LATER_S_MIN = 1.0
TOO_MANY, UNAVAILABLE = 429, 503
#: Besides every 5xx: what may be otherwise next time.
PASSING = frozenset({408, 425, TOO_MANY})

_MEDIA_TYPE = re.compile(r"[a-z0-9!#$&^_.+-]{1,100}/[a-z0-9!#$&^_.+-]{1,100}")
_VALIDATOR = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


class Answer:
    """The head of an answer, and the way to its content."""

    def __init__(self, response: httpcore2.Response) -> None:
        self.status = response.status
        self.headers = [(_decoded(name).lower(), _decoded(value)) for name, value in response.headers]
        self._response = response
        size = sum(len(name) + len(value) for name, value in self.headers)
        if len(self.headers) > HEADERS_MAX or size > HEADER_BYTES_MAX:
            raise Permanent("headers_too_large", f"{len(self.headers)} headers of {size} bytes")

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def first(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)

    def validator(self, name: str) -> str | None:
        return validator(self.first(name) or "")

    @property
    def length(self) -> int:
        """As announced, 0 if it was not; that it is one number has been checked."""
        return int(self.first("content-length") or 0)

    def kind(self) -> tuple[str, str | None]:
        """Media type and charset, as far as they look like ones."""
        media_type, *parameters = (self.first("content-type") or "").lower().split(";")
        media_type = media_type.strip()
        named = (part.partition("=") for part in parameters)
        declared = next((value.strip(" \t\"'") for key, _, value in named if key.strip() == "charset"), None)
        return media_type if _MEDIA_TYPE.fullmatch(media_type) else "", declared or None

    def parts(self) -> AsyncGenerator[bytes]:
        return self._response.aiter_stream()

    def refusal(self, host: str) -> PerdureError:
        """What an answer without the document means."""
        status, message = self.status, f"{host} answered {self.status}"
        wait_s = hint_s(self.headers)
        if wait_s is not None and status in (TOO_MANY, UNAVAILABLE):
            kind = RateLimited if status == TOO_MANY else RetryLater
            message += f" and asked to wait {wait_s:.0f} s"
            return kind(message, delay_s=max(wait_s, LATER_S_MIN), code=f"http_{status}")
        if status in PASSING or status >= 500:
            return Transient(message, retry_after_s=wait_s, code=f"http_{status}")
        return Permanent(f"http_{status}", message)


def validator(value: str) -> str | None:
    """An etag or date that may go into a header, else None."""
    return value if len(value) <= VALIDATOR_CHARS_MAX and _VALIDATOR.fullmatch(value) else None


def _decoded(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")
