"""An app whose documents fail, for tests of counters across processes."""

from __future__ import annotations

from perdure import Document, Perdure, Permanent, Pipeline

notes = Pipeline("notes", attempts=2, backoff_s=0)


@notes.stage
def read(doc: Document) -> str:
    if "fail" in doc.text:
        raise ValueError("that cannot be read")
    if "refuse" in doc.text:
        raise Permanent("refused", "not this one")
    return doc.text


app = Perdure(pipelines=[notes])
