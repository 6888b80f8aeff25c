"""A pipeline that extracts, as a process of its own can find it."""

from __future__ import annotations

import os
from pathlib import Path

from perdure import Context, Document, Pipeline
from perdure.pipelines.extract import Part, Summary, join, open_reader, summarise

books = Pipeline("books", attempts=3)


@books.stage(isolate=True, timeout=60)
def extract(doc: Document, ctx: Context) -> Summary:
    """Dies once, in the middle, where the document's `meta` asks for it; writes down what it read."""
    with open_reader(doc.path, doc.media_type, doc.name) as reader:

        def read(key: int) -> Part:
            die_at, log = doc.meta.get("die_at", 0), Path(doc.meta["log"])
            with log.open("a") as lines:
                lines.write(f"{key}\n")
            if key == die_at and ctx.attempt == 1:
                os.abort()
            return reader.read(key)

        parts = list(ctx.items(reader.parts, key=str, run=read))
        Path(doc.meta["log"]).with_suffix(".md").write_text(join(parts))
        return summarise(parts, reader.title, reader.language)
