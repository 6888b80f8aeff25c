"""One sanitiser in front of both stores, so that both give identical results.

Names and keys that the caller chose are refused when broken; messages that came from elsewhere are cleaned.
"""

from __future__ import annotations

from perdure.errors import InputInvalid, redacted

NAME_MAX = 2_000


def cleaned(text: str) -> str:
    """The text without secrets, and with what a database cannot hold (NUL, lone surrogates) replaced by U+FFFD."""
    return redacted(text).encode("utf-8", "surrogatepass").decode("utf-8", "replace").replace("\0", "\ufffd")


def checked(text: object, what: str, longest: int = NAME_MAX) -> str:
    """The text itself, or InputInvalid: names and keys are never changed silently."""
    if not isinstance(text, str):
        raise InputInvalid(f"{what} must be text, not {type(text).__name__}")
    if "\0" in text:
        raise InputInvalid(f"{what} contains a NUL character; remove it", code="text_nul")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputInvalid(f"{what} is not valid Unicode (lone surrogate)", code="text_broken") from None
    if len(text) > longest:
        raise InputInvalid(f"{what} is longer than {longest} characters", code="text_too_long")
    return text


def reason_kept(reason: object) -> str:
    """Why somebody acts, without secrets: it may be a message that was pasted. Raises: InputInvalid."""
    return redacted(checked(reason, "the reason"))
