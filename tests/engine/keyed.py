"""Stages that report the secrets that they see, for a test of cells."""

from __future__ import annotations

import os

from perdure import Document, Pipeline
from perdure.settings import current

letters = Pipeline("keyed-letters", attempts=1)


@letters.stage(isolate=True)
def guarded(doc: Document) -> list[str | None]:
    return [os.environ.get("PERDURE_EMBED_KEY"), current().embed_key, str(os.getpid())]


@letters.stage(isolate_from=0)
def trusted(doc: Document) -> list[str | None]:
    return [os.environ.get("PERDURE_EMBED_KEY"), current().embed_key, str(os.getpid())]


@letters.stage
def here(doc: Document) -> list[str | None]:
    return [os.environ.get("PERDURE_EMBED_KEY"), current().embed_key, str(os.getpid())]
