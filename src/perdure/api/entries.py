"""What a body asks to be taken in: JSON, a form or a raw file become entries, with their content as it is stored.

Nothing here knows the server: a process that reads JSON runs it as well (`readers`).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.api.forms import Received
from perdure.api.jsons import read, read_object, validated
from perdure.api.refused import Refused
from perdure.api.views import Asked, Bulk, Finished, NewDocument
from perdure.core.frozen import frozen
from perdure.engine.intake import INLINE_BYTES_MAX, Content, Entry, content_of, meta_bytes, naming
from perdure.errors import InputInvalid

if TYPE_CHECKING:
    from perdure.service import EncodedOptions

TYPES = {
    "html": "text/html", "markdown": "text/markdown", "text": "text/plain", "pdf": "application/pdf",
    "epub": "application/epub+zip", "eml": "message/rfc822", "mbox": "application/mbox",
    "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "jpeg": "image/jpeg", "jpg": "image/jpeg", "png": "image/png", "gif": "image/gif", "webp": "image/webp",
    "avif": "image/avif", "heic": "image/heic", "tiff": "image/tiff", "bmp": "image/bmp", "jp2": "image/jp2",
}  # fmt: skip
KINDS = ("url", "file", "json", "document", "image")  # said of what is there to be seen anyway
LISTED = "body.documents"  # as errors of the framework name it
NO_META = b"{}"


@frozen
class Asking:
    """The entries, each with its pipeline, and a hash of all that is asked for ("" if nobody wants it)."""

    entries: list[tuple[str, EncodedOptions]]
    request: str = ""


@frozen
class How:
    """How a body is read: its bounds, whether a hash is wanted, and where large content goes (None: into memory)."""

    values_max: int
    hashed: bool = False
    room: Path | None = None


def of_json(body: bytes | Path, how: How) -> Asking:
    """One document as JSON. Raises: Refused, Invalid, UsageError."""
    return _asking([validated(NewDocument, read_object(body, how.values_max))], how)


def of_bulk(body: bytes | Path, how: How) -> Asking:
    """Many documents as JSON; an error names the entry. Raises: Refused, Invalid, UsageError."""
    return _asking(validated(Bulk, read_object(body, how.values_max)).documents, how, LISTED)


def of_form(body: Received, how: How) -> Asking:
    """A document as a form: fields are text, `meta` and `json` are JSON. Raises: Refused, Invalid, UsageError."""
    fields: dict[str, Any] = dict(body.fields)
    for name in ("meta", "json"):
        if name in fields:
            try:
                fields[name] = read(fields[name], how.values_max)
            except Refused as error:
                raise Refused(error.status, error.code, f"the field {name}: {error}") from None
    return _asking([validated(NewDocument, fields)], how, received=body)


def of_raw(body: Received, asked: Asked, how: How) -> Asking:
    """A file as the body itself: the query says how to treat it. Raises: Refused."""
    options = _treated(asked, {"path": body.path} if body.path else {}, body)
    return Asking([(asked.pipeline, options)], _hash(dict(asked), body) if how.hashed else "")


def of_finish(body: bytes | Path, how: How) -> tuple[int | str, str | None, Content]:
    """The answer of a remote stage: token, job and output. Raises: Refused, Invalid."""
    answer = validated(Finished, read_object(body, how.values_max))
    output = Content("json", json.dumps(answer.output).encode())
    return answer.token, answer.job, _placed(output, how.room, 0)


def _asking(
    documents: list[NewDocument], how: How, called: str = "", received: Received | None = None
) -> Asking:
    """Encode each document and let go of it; hash it as it was asked for, whatever the order of its keys."""
    body, entries, digest = received or Received(), [], hashlib.sha256()
    for number in range(len(documents)):
        new = documents[number]
        with naming(f"{called}.{number}") if called else nullcontext():
            options = _options(new, body, how, number)
        if how.hashed:
            said = {**dict(new), "text": _of_text(new.text), "file": _of_text(new.file)}
            digest.update(_hash(said, body).encode())
        entries.append((new.pipeline, options))
        documents[number] = None  # type: ignore[call-overload]
    return Asking(entries, digest.hexdigest() if how.hashed else "")


def _hash(said: dict[str, Any], body: Received) -> str:
    asked = [said, body.filename, body.media_type, body.digest]
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def _of_text(text: str | None) -> str | None:
    return None if text is None else hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _options(new: NewDocument, body: Received, how: How, number: int) -> EncodedOptions:
    given_as = (
        ("url", new.url),
        ("text", new.text),
        ("json", new.data),
        ("file", new.file),
        ("file", body.path),
    )
    named = [word for word, value in given_as if value is not None]
    if len(named) != 1:
        got = " and ".join(named) or "nothing"
        raise InputInvalid(f"hand in exactly one of url, text, json, file; got {got}")
    given: EncodedOptions = {}
    if new.url is not None:
        given["url"] = new.url
    elif body.path is not None:
        given["path"] = body.path
    else:
        given["content"] = _placed(_content(new), how.room, number)
    return _treated(new, given, body)


def _content(new: NewDocument) -> Content:
    if new.file is None:
        return content_of(Entry(text=new.text, json=new.data))
    try:
        return Content("bytes", base64.b64decode(new.file, validate=True))
    except (binascii.Error, ValueError):
        raise Refused(422, "request_invalid", "file is not base64; large files go as a form") from None


def _placed(content: Content, room: Path | None, number: int) -> Content:
    """The content, in a file if it is large."""
    if room is None or isinstance(content.data, Path) or len(content.data) <= INLINE_BYTES_MAX:
        return content
    place = room / f"content-{number}"
    place.write_bytes(content.data)
    return Content(content.kind, place)


def _treated(asked: Asked, given: EncodedOptions, body: Received) -> EncodedOptions:
    given["name"] = asked.name or body.filename or ("upload" if "path" in given else "")
    if media_type := _media_type(asked.type) or body.media_type:
        given["media_type"] = media_type
    for word in ("collection", "key", "run_at", "attempts"):
        if (value := getattr(asked, word)) is not None:
            given[word] = value
    given["meta_json"] = meta_bytes(asked.meta) if asked.meta else NO_META
    given["dedupe"], given["priority"], given["delay_s"] = asked.dedupe, asked.priority, asked.delay_s
    return given


def _media_type(said: str | None) -> str:
    if said is None or said in KINDS:
        return ""
    if said in TYPES or "/" in said:
        return TYPES.get(said, said)
    known = ", ".join(sorted((*TYPES, *KINDS)))
    raise Refused(422, "type_unknown", f"type {said!r} is neither a media type nor one of {known}")
