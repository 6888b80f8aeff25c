"""A message (.eml): who, when, what about; its body as text; what is attached, by name."""

from __future__ import annotations

import binascii
import re
from contextlib import suppress
from email.message import EmailMessage, Message
from email.parser import BytesParser
from email.policy import EmailPolicy, compat32
from pathlib import Path
from typing import Any

from perdure.errors import Permanent
from perdure.pipelines.extract import caps
from perdure.pipelines.extract.caps import bomb
from perdure.pipelines.extract.charset import decode, decode_markup
from perdure.pipelines.extract.markup import parse_html, to_markdown
from perdure.pipelines.extract.part import Part, clean, count_words, make_part

_SHOWN = ("From", "To", "Cc", "Date")
_PARTS_MAX = 1_000
_NOTICE_WORDS = 20
_HEADER_CHARS_MAX = 1_000
_HEADER_READ_MAX = 2_000
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]+")


class _Bounded(EmailPolicy):
    """Of each header only so much that the parser, whose time grows faster than the header, is done in time."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, value[:_HEADER_READ_MAX]

    def header_fetch_parse(self, name: str, value: str) -> Any:
        """Without its parameters, or else as plain text, if the parser of the standard library breaks."""
        plain = "" if name.lower().startswith("content-") else value
        for known, text in (
            (name, value),
            (name, value.partition(";")[0]),
            (name if not plain else "Subject", plain),
        ):
            with suppress(IndexError, AttributeError, ValueError, RecursionError):
                return super().header_fetch_parse(known, text)
        return self.header_factory("Subject", "")


_POLICY = _Bounded()


class MailReader:
    """One section."""

    piecemeal = False
    parts = range(1, 2)
    language = ""

    def __init__(self, path: Path) -> None:
        if path.stat().st_size > caps.TEXT_BYTES_MAX:
            raise bomb(f"the message has more than {caps.TEXT_BYTES_MAX} bytes")
        try:
            self._message = BytesParser(_class=EmailMessage, policy=_POLICY).parsebytes(path.read_bytes())
            leaves = [part for part in self._message.walk() if not part.is_multipart()]
        except RecursionError as error:
            raise bomb("the message is nested too deeply") from error
        if not self._message.keys():
            raise Permanent("document_corrupt", "this message has no headers")
        if len(leaves) > _PARTS_MAX:
            raise bomb(f"the message has more than {_PARTS_MAX} parts")
        self.title = _header(self._message, "Subject")

    def read(self, key: int) -> Part:
        try:
            body = [text for part in bodies(self._message) if (text := text_of(part))]
        except RecursionError as error:
            raise bomb("the message is nested too deeply") from error
        known = [f"- {name}: {value}" for name in _SHOWN if (value := _header(self._message, name))]
        attached = [f"- {line}" for line in _attachments(self._message)]
        blocks = [f"# {self.title}" if self.title else "", "\n".join(known), *body]
        if attached:
            blocks += ["## Attachments", "\n".join(attached)]
        return make_part("section", key, "\n\n".join(block for block in blocks if block), self.title)

    def close(self) -> None:
        pass


def _header(message: Message, name: str) -> str:
    try:
        value = str(message[name] or "")
    except Exception:  # the strict parser stumbles over broken ones in many ways, deep comments among them
        raw = next((text for key, text in message.raw_items() if key.lower() == name.lower()), "")
        value = str(compat32.header_fetch_parse(name, raw))
    return " ".join(clean(value).split())[:_HEADER_CHARS_MAX]


def bodies(part: Message) -> list[Message]:
    """The texts that a reader of the message sees: all, but only one of alternatives, plain rather than HTML."""
    if is_attached(part):
        return []
    inner = [one for one in part.get_payload() if isinstance(one, Message)] if part.is_multipart() else []
    if part.get_content_type() == "multipart/alternative":
        choices = [
            found for one in inner if (found := bodies(one)) and any(payload(text).strip() for text in found)
        ]
        plain = (found for found in choices if all(text.get_content_type() == "text/plain" for text in found))
        chosen = next(plain, choices[-1] if choices else [])
        fullest = max(choices, key=_words_of, default=chosen)
        # a plain text that only says where the rest is
        return fullest if _words_of(fullest) > 2 * _words_of(chosen) + _NOTICE_WORDS else chosen
    if inner:
        return [text for one in inner for text in bodies(one)]
    is_text = part.get_content_maintype() in {
        "text",
        "multipart",
    }  # multipart without parts: its boundary is missing
    return [part] if is_text else []


def _words_of(texts: list[Message]) -> int:
    return sum(count_words(text_of(text)) for text in texts)


def is_attached(part: Message) -> bool:
    """Whether it is shown by name and not read with the rest."""
    is_message = part.get_content_type() == "message/rfc822"
    return is_message or bool(part.get_filename()) or part.get_content_disposition() == "attachment"


def payload(part: Message) -> bytes:
    """The decoded content of a leaf; of damaged base64 what can be read."""
    written = part.get_payload()
    if (
        isinstance(written, str)
        and str(part.get("content-transfer-encoding", "")).strip().lower() == "base64"
    ):
        letters = _NOT_BASE64.sub(b"", written.encode("ascii", "replace"))
        return binascii.a2b_base64(letters[: len(letters) - (len(letters) % 4 == 1)] + b"==")
    decoded = part.get_payload(decode=True)
    return decoded if isinstance(decoded, bytes) else b""


def text_of(part: Message) -> str:
    """The text of a leaf, HTML as Markdown. Permanent: document_empty, document_bomb."""
    charset = str(part.get_content_charset() or "")
    if part.get_content_type() == "text/html":
        page = decode_markup(payload(part), charset)
        return to_markdown(parse_html(page)) if page.strip() else ""
    return clean(decode(payload(part), charset)).strip()


def _attachments(message: Message) -> list[str]:
    lines = []
    for part in message.walk():
        if is_attached(part):
            name = " ".join(clean(part.get_filename() or "unnamed").split())[:255]
            size = "" if part.is_multipart() else f", {len(payload(part))} bytes"
            lines.append(f"{name} ({clean(part.get_content_type())}{size})")
    return lines
