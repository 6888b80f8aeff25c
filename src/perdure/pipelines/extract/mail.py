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
        body = _body(self._message)
        known = [f"- {name}: {value}" for name in _SHOWN if (value := _header(self._message, name))]
        attached = [f"- {line}" for line in _attachments(self._message, body)]
        blocks = [f"# {self.title}" if self.title else "", "\n".join(known), _text(body)]
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


def _body(message: EmailMessage) -> EmailMessage | None:
    try:
        found = message.get_body(preferencelist=("plain", "html"))
    except (ValueError, IndexError, AttributeError, TypeError, KeyError, LookupError):
        found = None
    if found is not None and (found.get_content_type() == "text/html" or _payload(found).strip()):
        return found  # type: ignore[return-value]
    return next((part for part in message.walk() if part.get_content_type() == "text/html"), found)  # type: ignore[return-value]


def _payload(part: Message) -> bytes:
    payload = part.get_payload(decode=True)
    return payload if isinstance(payload, bytes) else b""


def _text(body: EmailMessage | None) -> str:
    if body is None:
        return ""
    charset = str(body.get_content_charset() or "")
    if body.get_content_type() == "text/html":
        page = decode_markup(_payload(body), charset)
        return to_markdown(parse_html(page)) if page.strip() else ""
    return clean(decode(_payload(body), charset)).strip()


def _attachments(message: EmailMessage, body: EmailMessage | None) -> list[str]:
    lines = []
    for part in message.walk():
        name = part.get_filename()
        is_message = part.get_content_type() == "message/rfc822"
        if part is body or not (name or is_message or part.get_content_disposition() == "attachment"):
            continue
        size = "" if part.is_multipart() else f", {len(_payload(part))} bytes"
        lines.append(f"{' '.join(clean(name or 'unnamed').split())[:255]} ({part.get_content_type()}{size})")
    return lines
