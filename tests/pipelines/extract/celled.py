"""What the tests run in cells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from perdure.pipelines.extract import extract, summarise


def read(payload: bytes, ask: Callable[[bytes], bytes]) -> bytes:
    """Read the document at `path` and tell what is in it."""
    given = json.loads(payload)
    parts = list(extract(Path(given["path"]), given["media_type"], given["name"]))
    summary = summarise(parts)
    text = "\n".join(part.text for part in parts)
    return json.dumps({"words": summary.words, "text": text[:100_000]}).encode()
