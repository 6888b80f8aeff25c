"""The lines of a file that `export` wrote, each checked on its own.

Content of any size is read a piece at a time: it is the last key of its line, and what was read of a long line so far
tells where it begins.
"""

from __future__ import annotations

import binascii
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from perdure.core.frozen import frozen
from perdure.errors import InputInvalid
from perdure.operate.export import CONTENT, STANDARD
from perdure.store.text import checked

HEAD_BYTES = 1024 * 1024  # a line that is no longer is read at once
HEAD_MAX = 64 * HEAD_BYTES  # of a line without its content
#: More than any text in a line has: what is so long and has only these letters is the content.
CERTAIN_BYTES = 128 * 1024
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="


def _text(value: str) -> str:
    return checked(value, "a text", 1_000_000)


Text = Annotated[str, AfterValidator(_text)]
Name = Annotated[str, Field(min_length=1, max_length=2_000), AfterValidator(_text)]
Small = Annotated[int, Field(ge=0, lt=2**31)]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Time = Annotated[int, Field(ge=0, lt=2**53)]


class DocumentPart(BaseModel):
    collection: Text
    pipeline: Name
    kind: Name
    name: Text
    media_type: Text
    content_hash: Text
    size: Time
    meta: dict[str, Any]
    dedupe: Text | None
    parent_id: Text | None
    generation: Small
    created_ms: Time


class JobPart(BaseModel):
    queue: Name
    lane: Text
    stage: Name
    priority: Whole
    lease_ms: Small
    attempts: Small
    attempts_max: Small
    claims: Small
    crashes: Small
    policy: dict[str, Any] | None
    limit_key: Text | None
    created_ms: Time


class DeadPart(BaseModel):
    queue: Name
    lane: Text
    stage: Name
    error_type: Text
    error_code: Name
    status_code: int | None = Field(ge=-999, le=999)
    fingerprint: str = Field(pattern="^[0-9a-f]{16}$")
    attempts: Small
    died_ms: Time
    exhausted: bool
    message: Text
    meta: dict[str, Any] | None


class AttemptPart(BaseModel):
    job_key: Name
    generation: Small
    claim: Small
    attempt: Small
    charged: bool
    token: Whole
    stage: Text
    worker: Small
    started_ms: Time
    ended_ms: Time
    outcome: Name
    error_type: Text | None
    error_code: Text | None
    status_code: int | None = Field(ge=-999, le=999)
    message: Text | None
    fingerprint: Text | None
    delay_ms: Whole | None
    why: Text
    requests: dict[str, int] | None
    traceback: Text | None = None


class ActPart(BaseModel):
    at_ms: Time
    who: Text
    verb: Name
    reason: Text


class Line(BaseModel):
    """A line as it must be; keys that a newer release added are not looked at."""

    perdure: int
    id: Name
    org: Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_text)]
    state: str
    document: DocumentPart
    job: JobPart | None
    dead: DeadPart | None
    attempts: list[AttemptPart]
    acts: list[ActPart]
    content_error: str | None
    content_sha256: str | None


@frozen
class Read:
    """A line of the file: what is in it, or what is wrong with it."""

    number: int
    line: Line | None
    content: bytes | Path | None = None
    problem: str = ""
    id: str = ""


@contextmanager
def opened(source: str) -> Iterator[IO[bytes]]:
    """The file (`-`: standard input), unpacked if it is compressed."""
    if source == STANDARD:
        yield sys.stdin.buffer
        return
    path = Path(source)
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            yield gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[misc]
    except FileNotFoundError:
        raise InputInvalid(f"there is no file {path}; check the path", code="file_missing") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputInvalid(f"{path.name} is cut off or damaged: {error}", code="file_unreadable") from None
    except OSError as error:
        raise InputInvalid(
            f"{path} cannot be read: {error.strerror or error}", code="file_unreadable"
        ) from None


def is_longer(source: str | Path, most: int) -> bool:
    """Whether the file has more bytes than that once it is unpacked. No more than that is read, nothing is written.
    Raises: InputInvalid."""
    size = 0
    with opened(str(source)) as file:
        while size <= most and (piece := file.read(HEAD_BYTES)):
            size += len(piece)
    return size > most


def lines(file: IO[bytes], room: Path) -> Iterator[Read]:
    """Every line that is not empty. Large content is put into a file in `room`, a piece at a time."""
    number = 0
    while raw := file.readline(HEAD_BYTES):
        number += 1
        content: Path | None = None
        problem = ""
        if len(raw) == HEAD_BYTES and not raw.endswith(b"\n"):
            raw, content, problem = _long(file, raw, room / f"content-{number}")
        if raw.strip() or problem:
            yield Read(number, None, problem=problem) if problem else _parsed(number, raw, content)


def _long(file: IO[bytes], raw: bytes, into: Path) -> tuple[bytes, Path | None, str]:
    """The rest of a line: the line without its content, where that is, and what is wrong."""
    while not raw.endswith(b"\n"):
        at = raw.rfind(CONTENT)
        letters = raw[at + len(CONTENT) :]
        if at >= 0 and len(letters) >= CERTAIN_BYTES and not letters.translate(None, LETTERS):
            problem = _decode(file, letters, into)
            return raw[:at] + b"}", into, problem
        more = file.readline(HEAD_BYTES)
        if not more:
            break
        raw += more
        if len(raw) > HEAD_MAX:
            while more and not more.endswith(b"\n"):
                more = file.readline(HEAD_BYTES)
            return b"", None, "it is no line of an export: too long"
    return raw, None, ""


def _decode(file: IO[bytes], letters: bytes, into: Path) -> str:
    """Content up to its closing quote; what is wrong with it. The line is read to its end."""
    problem = ""
    with into.open("wb") as out:
        more, ended = letters, False
        while True:
            body, quote, _ = more.partition(b'"')
            usable = body if quote else body[: len(body) // 4 * 4]
            try:
                out.write(binascii.a2b_base64(usable.strip(), strict_mode=True) if usable else b"")
            except binascii.Error as error:
                problem = f"its content is damaged: {error}"
            if quote or problem or ended:
                break
            following = file.readline(HEAD_BYTES)
            ended = not following or following.endswith(b"\n")
            more = body[len(usable) :] + following
        if not quote and not problem:
            problem = "it is cut off"
        while not ended and (rest := file.readline(HEAD_BYTES)) and not rest.endswith(b"\n"):
            pass
    return problem


def _parsed(number: int, raw: bytes, content: bytes | Path | None) -> Read:
    id_ = ""
    try:
        value = json.loads(raw, parse_constant=_refuse)
        if not isinstance(value, dict):
            return Read(number, None, content, "it is no JSON object")
        id_ = str(value.get("id", ""))
        if content is None and isinstance(encoded := value.pop("content", None), str):
            content = binascii.a2b_base64(encoded, strict_mode=True)
        return Read(number, Line.model_validate(value, strict=True), content, id=id_)
    except binascii.Error as error:
        return Read(number, None, None, f"its content is damaged: {error}", id_)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        return Read(number, None, content, f"it is no line of an export: {where}: {first['msg']}", id_)
    except InputInvalid as error:
        return Read(number, None, content, str(error), id_)
    except (ValueError, RecursionError) as error:
        return Read(number, None, content, f"it cannot be read as JSON: {error}", id_)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")
