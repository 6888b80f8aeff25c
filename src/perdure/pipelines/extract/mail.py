"""A message (.eml): who, when, what about; its body as text; what is attached, by name."""

from __future__ import annotations

import binascii
import re
from contextlib import suppress
from email.message import EmailMessage, Message
from email.parser import BytesParser
from email.policy import EmailPolicy, compat32
from functools import cached_property
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
_TAG = re.compile(r"<[^<>]*+>|&")


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
    markdown = True
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
            found = bodies(self._message)
        except RecursionError as error:
            raise bomb("the message is nested too deeply") from error
        problem = next((one.problem for one in found if one.problem), None)
        body = [one.text for one in found if one.text]
        if problem and not body:
            raise problem
        known = [f"- {name}: {value}" for name in _SHOWN if (value := _header(self._message, name))]
        attached = [f"- {line}" for line in _attachments(self._message)]
        blocks = [f"# {self.title}" if self.title else "", "\n".join(known), *body]
        if attached:
            blocks += ["## Attachments", "\n".join(attached)]
        text = "\n\n".join(block for block in blocks if block)
        return make_part("section", key, text, self.title, missed=sum(one.missed for one in found))

    def close(self) -> None:
        pass


def _header(message: Message, name: str) -> str:
    try:
        value = str(message[name] or "")
    except Exception:  # the strict parser stumbles over broken ones in many ways, deep comments among them
        raw = next((text for key, text in message.raw_items() if key.lower() == name.lower()), "")
        value = str(compat32.header_fetch_parse(name, raw))
    return " ".join(clean(value).split())[:_HEADER_CHARS_MAX]


class Body:
    """A leaf of a message with its text, which is read once and only when it is needed."""

    def __init__(self, part: Message) -> None:
        self.part = part

    @property
    def text(self) -> str:
        """HTML as Markdown; nothing if it cannot be read."""
        return self._read[0]

    @property
    def problem(self) -> Permanent | None:
        """Why it cannot be read: document_empty, document_bomb."""
        return self._read[1]

    @property
    def missed(self) -> int:
        """About how many words it has that cannot be read."""
        return self.words_max if self.problem and self.problem.code != "document_empty" else 0

    @cached_property
    def words(self) -> int:
        return count_words(self.text)

    @cached_property
    def words_max(self) -> int:
        """At least as many words as the text has, by a count that parses nothing."""
        if not self.is_html:
            return self.words
        return count_words(_TAG.sub(" ", decode_markup(payload(self.part), self._charset)))

    @cached_property
    def is_blank(self) -> bool:
        return not payload(self.part).strip()

    @property
    def is_html(self) -> bool:
        return self.part.get_content_type() == "text/html"

    @property
    def _charset(self) -> str:
        return str(self.part.get_content_charset() or "")

    @cached_property
    def _read(self) -> tuple[str, Permanent | None]:
        if not self.is_html:
            return clean(decode(payload(self.part), self._charset)).strip(), None
        page = decode_markup(payload(self.part), self._charset)
        try:
            return to_markdown(parse_html(page)) if page.strip() else "", None
        except Permanent as problem:
            return "", problem


def bodies(part: Message) -> list[Body]:
    """The texts that a reader of the message sees: all, but only one of alternatives, plain rather than HTML."""
    if is_attached(part):
        return []
    inner = [one for one in part.get_payload() if isinstance(one, Message)] if part.is_multipart() else []
    if part.get_content_type() == "multipart/alternative":
        found = (bodies(one) for one in inner)
        return _chosen([texts for texts in found if not all(text.is_blank for text in texts)])
    if inner:
        return [text for one in inner for text in bodies(one)]
    is_text = part.get_content_maintype() in {
        "text",
        "multipart",
    }  # multipart without parts: its boundary is missing
    return [Body(part)] if is_text else []


def _chosen(choices: list[list[Body]]) -> list[Body]:
    """The plain one, or the last; another one if the first only says where the rest is, or cannot be read."""
    plain = (
        texts for texts in choices if all(text.part.get_content_type() == "text/plain" for text in texts)
    )
    chosen = next(plain, choices[-1] if choices else [])
    others = [texts for texts in choices if texts is not chosen]
    words = _words_of(chosen) if others else 0
    enough = 2 * words + _NOTICE_WORDS if words else 0
    longer = [texts for texts in others if sum(text.words_max for text in texts) > enough]
    fullest = max(longer, key=_words_of, default=chosen)
    if fullest is not chosen and _words_of(fullest) > enough:
        return fullest
    return [*chosen, *(text for texts in longer for text in texts if text.missed)]  # they mark the loss


def _words_of(texts: list[Body]) -> int:
    return sum(text.words for text in texts)


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


def _attachments(message: Message) -> list[str]:
    lines = []
    for part in message.walk():
        if is_attached(part):
            name = " ".join(clean(part.get_filename() or "unnamed").split())[:255]
            size = "" if part.is_multipart() else f", {len(payload(part))} bytes"
            lines.append(f"{name} ({clean(part.get_content_type())}{size})")
    return lines
