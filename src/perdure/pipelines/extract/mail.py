"""A message (.eml): who, when, what about; its body as text; what is attached, by name."""

from __future__ import annotations

import email.errors
from email.message import EmailMessage, Message
from email.parser import BytesParser
from email.policy import compat32, default
from pathlib import Path

from perdure.errors import Permanent
from perdure.pipelines.extract import caps
from perdure.pipelines.extract.caps import bomb
from perdure.pipelines.extract.charset import decode, decode_markup
from perdure.pipelines.extract.markup import parse_html, to_markdown
from perdure.pipelines.extract.part import Part, clean, make_part

_SHOWN = ("From", "To", "Cc", "Date")
_PARTS_MAX = 1_000
_HEADER_CHARS_MAX = 1_000


class MailReader:
    """One section."""

    parts = range(1, 2)
    language = ""

    def __init__(self, path: Path) -> None:
        if path.stat().st_size > caps.TEXT_BYTES_MAX:
            raise bomb(f"the message has more than {caps.TEXT_BYTES_MAX} bytes")
        try:
            self._message = BytesParser(_class=EmailMessage, policy=default).parsebytes(path.read_bytes())
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
            body = [text for part in _bodies(self._message) if (text := _text(part))]
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
    except (ValueError, IndexError, AttributeError, TypeError, LookupError, email.errors.MessageError):
        raw = next((text for key, text in message.raw_items() if key.lower() == name.lower()), "")
        value = str(
            compat32.header_fetch_parse(name, raw)
        )  # the strict parser stumbles over some broken ones
    return " ".join(clean(value).split())[:_HEADER_CHARS_MAX]


def _bodies(part: Message) -> list[Message]:
    # The texts that a reader of the message sees: all of them, but only one of alternatives, plain rather than HTML.
    if _is_attached(part):
        return []
    inner = [one for one in part.get_payload() if isinstance(one, Message)] if part.is_multipart() else []
    if part.get_content_type() == "multipart/alternative":
        choices = [
            found
            for one in inner
            if (found := _bodies(one)) and any(_payload(text).strip() for text in found)
        ]
        plain = (found for found in choices if all(text.get_content_type() == "text/plain" for text in found))
        return next(plain, choices[-1] if choices else [])
    if inner:
        return [text for one in inner for text in _bodies(one)]
    is_text = part.get_content_maintype() in {
        "text",
        "multipart",
    }  # multipart without parts: its boundary is missing
    return [part] if is_text else []


def _is_attached(part: Message) -> bool:
    is_message = part.get_content_type() == "message/rfc822"
    return is_message or bool(part.get_filename()) or part.get_content_disposition() == "attachment"


def _payload(part: Message) -> bytes:
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _text(part: Message) -> str:
    charset = str(part.get_content_charset() or "")
    if part.get_content_type() == "text/html":
        page = decode_markup(_payload(part), charset)
        return to_markdown(parse_html(page)) if page.strip() else ""
    return clean(decode(_payload(part), charset)).strip()


def _attachments(message: Message) -> list[str]:
    lines = []
    for part in message.walk():
        if _is_attached(part):
            name = " ".join(clean(part.get_filename() or "unnamed").split())[:255]
            size = "" if part.is_multipart() else f", {len(_payload(part))} bytes"
            lines.append(f"{name} ({part.get_content_type()}{size})")
    return lines
