"""A message, decoded: who, when, what about, what it answers, what was written, what is attached."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from email.errors import CloseBoundaryNotFoundDefect, StartBoundaryNotFoundDefect
from email.message import Message as Parsed
from email.parser import BytesParser
from email.policy import Compat32
from mimetypes import MimeTypes

from perdure.core.frozen import frozen
from perdure.errors import Permanent
from perdure.pipelines.extract import caps
from perdure.pipelines.extract.caps import bomb
from perdure.pipelines.extract.mail import bodies, is_attached, payload
from perdure.pipelines.extract.part import clean
from perdure.pipelines.mail import headers
from perdure.pipelines.mail.headers import Address, decode_words, message_ids
from perdure.pipelines.mail.quotes import own_text, unflow

PARTS_MAX = 1_000
DEPTH_MAX = 50
NAME_BYTES_MAX = 200
HEAD_BYTES_MAX = 1 << 20

_PARAMETERS_CHARS_MAX = 10_000
_UNSAFE = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*\u202a-\u202e\u2066-\u2069]+')
_KINDS = MimeTypes(filenames=())


class _Verbatim(Compat32):
    """Headers as they were written; of those that describe a part only so much that the parser is done in time."""

    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, value[:_PARAMETERS_CHARS_MAX] if name.lower().startswith("content-") else value

    def fold_binary(self, name: str, value: str) -> bytes:
        return f"{name}: {value}\n".encode("ascii", "surrogateescape")


_POLICY = _Verbatim()


@frozen
class Attachment:
    """A file that came with a message. `data` is None if it is larger than what was asked for; `size` tells.

    `inline`: shown within the text, as pictures of an HTML message are, which name it by `content_id`.
    """

    name: str
    media_type: str
    size: int
    data: bytes | None
    inline: bool
    content_id: str


@frozen
class Message:
    """A message. `own` is `text` without quoted replies and signature, as far as that can be told.

    `date` is in UTC, and None if `date_raw` is no date. `problems` names what could not be read as it was meant:
    `truncated`, `boundary`, `text` (a part was left out).
    """

    message_id: str
    in_reply_to: str
    references: tuple[str, ...]
    subject: str
    sender: tuple[Address, ...]
    to: tuple[Address, ...]
    cc: tuple[Address, ...]
    date: datetime | None
    date_raw: str
    list_id: str
    text: str
    own: str
    attachments: tuple[Attachment, ...]
    problems: tuple[str, ...] = ()


def decode(data: bytes, *, attachment_bytes_max: int = caps.MEMBER_BYTES_MAX) -> Message:
    """The message that these bytes are. Anything else than a Message is Permanent: document_corrupt, document_bomb."""
    return _safely(lambda: _decode(data, attachment_bytes_max))


def decode_head(data: bytes) -> Message:
    """The message as far as its headers tell, with neither text nor attachments; fails as `decode` does."""
    return _safely(lambda: _message(_parsed(data[:HEAD_BYTES_MAX], headers_only=True)))


def _safely(read: Callable[[], Message]) -> Message:
    try:
        return read()
    except Permanent:
        raise
    except RecursionError as error:
        raise bomb("the message is nested too deeply") from error
    except Exception as error:  # the parser of the standard library stumbles over some that are broken
        problem = f"this message cannot be read ({type(error).__name__}: {error})"
        raise Permanent("document_corrupt", problem[:500]) from error


def _decode(data: bytes, attachment_bytes_max: int) -> Message:
    if len(data) > caps.TEXT_BYTES_MAX:
        raise bomb(f"the message has more than {caps.TEXT_BYTES_MAX} bytes")
    parsed = _parsed(data)
    leaves = _leaves(parsed)
    text, complete = _text(parsed)
    attachments = tuple(_attachments(leaves, attachment_bytes_max))
    return _message(parsed, text, attachments, _problems(parsed, complete))


def _parsed(data: bytes, *, headers_only: bool = False) -> Parsed:
    begin = data.lstrip(b"\r\n\x00").removeprefix(b"\xef\xbb\xbf")
    parsed = BytesParser(policy=_POLICY).parsebytes(begin, headersonly=headers_only)
    if not parsed.keys():
        raise Permanent("document_corrupt", "this message has no headers")
    return parsed


def _message(
    parsed: Parsed, text: str = "", attachments: tuple[Attachment, ...] = (), problems: tuple[str, ...] = ()
) -> Message:
    own_id = next(iter(message_ids(_raw(parsed, "message-id"))), "")
    answered = [one for one in message_ids(_raw(parsed, "in-reply-to")) if one != own_id]
    date_raw = _raw(parsed, "date")
    return Message(
        message_id=own_id,
        in_reply_to=answered[0] if answered else "",
        references=headers.references(_raw(parsed, "references"), own_id),
        subject=decode_words(_raw(parsed, "subject")),
        sender=headers.addresses(_all(parsed, "from") or _all(parsed, "sender")),
        to=headers.addresses(_all(parsed, "to")),
        cc=headers.addresses(_all(parsed, "cc")),
        date=headers.date_of(date_raw),
        date_raw=decode_words(date_raw),
        list_id=decode_words(_raw(parsed, "list-id")),
        text=text,
        own=own_text(text),
        attachments=attachments,
        problems=problems,
    )


def _all(parsed: Parsed, name: str) -> list[str]:
    # Not through the policy: it would make Header objects of what is not ASCII.
    return [value for key, value in parsed.raw_items() if key.lower() == name]


def _raw(parsed: Parsed, name: str) -> str:
    return next(iter(_all(parsed, name)), "")


def _leaves(parsed: Parsed) -> list[Parsed]:
    """What is attached or not divided further, in order; document_bomb if it is too deep or too much."""
    found: list[Parsed] = []
    waiting = [(parsed, 0)]
    parts = 0
    while waiting:
        part, depth = waiting.pop()
        parts += 1
        if depth > DEPTH_MAX:
            raise bomb(f"the message is nested more than {DEPTH_MAX} levels deep")
        if parts > PARTS_MAX:
            raise bomb(f"the message has more than {PARTS_MAX} parts")
        if part.get_content_maintype() == "multipart" and part.is_multipart():
            inner = [one for one in part.get_payload() if isinstance(one, Parsed)]
            waiting += [(one, depth + 1) for one in reversed(inner)]
        else:
            found.append(part)
    return found


def _text(parsed: Parsed) -> tuple[str, bool]:
    """The text, and whether all of it could be read."""
    texts, complete = [], True
    for body in bodies(parsed):
        part, text = body.part, body.text
        if body.problem is not None:
            complete = complete and body.problem.code == "document_empty"
            continue
        if str(part.get_param("format", "")).lower() == "flowed" and part.get_content_type() == "text/plain":
            text = unflow(text, delete_space=str(part.get_param("delsp", "")).lower() == "yes")
        texts.append(text)
    return "\n\n".join(text for text in texts if text), complete


def _problems(parsed: Parsed, complete: bool) -> tuple[str, ...]:
    defects = {type(defect) for part in parsed.walk() for defect in part.defects}
    found = {
        "truncated": CloseBoundaryNotFoundDefect in defects,
        "boundary": StartBoundaryNotFoundDefect in defects,
        "text": not complete,
    }
    return tuple(word for word, there in found.items() if there)


def _attachments(leaves: list[Parsed], bytes_max: int) -> list[Attachment]:
    found: list[Attachment] = []
    for part in leaves:
        kind = clean(part.get_content_type())
        if not (is_attached(part) or part.get_content_maintype() not in {"text", "multipart"}):
            continue
        data = _content(part)
        named = decode_words(part.get_filename() or "")
        if not named and kind == "message/rfc822":
            named = _inner_subject(part)
        content_id = next(iter(message_ids(_raw(part, "content-id"))), "")
        disposition = part.get_content_disposition()
        found.append(
            Attachment(
                safe_name(named, kind, len(found) + 1),
                kind,
                len(data),
                data if len(data) <= bytes_max else None,
                disposition == "inline" or (bool(content_id) and disposition is None),
                content_id,
            )
        )
    return found


def _content(part: Parsed) -> bytes:
    """What would be saved as a file: of an attached message the message, of other structured ones all there is."""
    if not part.is_multipart():
        return payload(part)
    inner = [one for one in part.get_payload() if isinstance(one, Parsed)]
    return b"\n".join(one.as_bytes() for one in inner)


def _inner_subject(part: Parsed) -> str:
    inner = part.get_payload()
    first = inner[0] if isinstance(inner, list) and inner else None
    return decode_words(_raw(first, "subject")) if isinstance(first, Parsed) else ""


def safe_name(name: str, media_type: str, number: int) -> str:
    """A name that is a name of a file and nothing else, on any system; attached messages end in .eml."""
    base = (
        clean(name).replace("\\", "/").rpartition("/")[2] if media_type != "message/rfc822" else clean(name)
    )
    base = " ".join(_UNSAFE.sub("_", base).split()).strip(". ")
    ending = ".eml" if media_type == "message/rfc822" else _KINDS.guess_extension(media_type) or ".bin"
    if not base.strip("_"):
        base = f"attachment-{number}{ending}"
    if media_type == "message/rfc822" and not base.lower().endswith(".eml"):
        base += ".eml"
    stem, dot, end = base.rpartition(".")
    if not stem or len(end) > 10:
        stem, dot, end = base, "", ""
    room = NAME_BYTES_MAX - len((dot + end).encode())
    return stem.encode()[:room].decode(errors="ignore").rstrip() + dot + end
