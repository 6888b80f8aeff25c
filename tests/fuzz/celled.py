"""What runs in a cell: the product's readers, and checks that their results can be stored."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perdure.pipelines import chunk
from perdure.pipelines.extract import anchors, join, open_reader, summarise
from perdure.pipelines.image.facts import facts
from perdure.pipelines.image.variants import preview, variants
from perdure.pipelines.mail.chunks import message_chunks
from perdure.pipelines.mail.message import decode
from perdure.pipelines.mail.survey import survey

warnings.simplefilter("ignore")  # of Pillow, about each tag that is damaged

Ask = Callable[[bytes], bytes]


def document(payload: bytes, ask: Ask) -> bytes:
    """Read it as the pipeline `document` does, and cut it."""
    with open_reader(Path(payload.decode())) as reader:
        parts = [reader.read(key) for key in reader.parts]
        summary = summarise(parts, reader.title, reader.language)
    markdown = join(parts)
    _storable([markdown, asdict(summary)])
    chunk.chunks(markdown, "id", "hash", [(start, anchor, None) for start, anchor in anchors(markdown)])
    return b""


def message(payload: bytes, ask: Ask) -> bytes:
    """Read it as the pipeline `mail-message` does, and as the pipeline `document` reads a lone message."""
    found = decode(Path(payload.decode()).read_bytes())
    told = {name: value for name, value in asdict(found).items() if name != "attachments"}
    _storable([told, [(one.name, one.media_type, one.size) for one in found.attachments]])
    message_chunks(found, "id", "hash")
    return document(payload, ask)


def archive(payload: bytes, ask: Ask) -> bytes:
    """List its messages and threads, as the pipeline `mail` does, and read each message."""
    found = survey(Path(payload.decode()), None, lambda offset: None)
    _storable([[asdict(one) for one in found.letters], [asdict(one) for one in found.bad]])
    _storable([asdict(one) for one in found.threads()])
    return b""


def image(payload: bytes, ask: Ask) -> bytes:
    """Look at it and make its variants, as the pipeline `image` does."""
    path = Path(payload.decode())
    _storable(asdict(facts(path)))
    preview(path)
    for _ in variants(path):
        pass
    return b""


def _storable(value: Any) -> None:
    """Fail if a store cannot keep it: lone surrogates, NUL, numbers that JSON does not know."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, default=str)
    text.encode()
    assert "\\u0000" not in text, "a NUL in the result"
