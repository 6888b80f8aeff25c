"""Other systems' names of failures (`parsing.failed`) and the stages that they mean here, as dead-letter filters."""

from __future__ import annotations

from perdure.core.model import ALIASES

#: The name before `.failed` → stages, collections or pipelines of ours.
WORDS: dict[str, tuple[str, ...]] = {
    "archive.ingestion": ("archives", "ingest", "fetch"),
    "ingestion": ("ingest", "fetch"),
    "fetching": ("fetch",),
    "parsing": ("parse", "extract", "survey", "split", "read"),
    "extraction": ("extract",),
    "chunking": ("chunk",),
    "embedding": ("embed",),
    "embedding.generation": ("embed", "generate-embeddings"),
    "indexing": ("index",),
    "orchestration": ("thread", "close"),
    "summarization": ("summarize", "summarise"),
    "summarisation": ("summarize", "summarise"),
    "metadata": ("generate-metadata",),
    "variants": ("generate-variants",),
}


def meant(name: str) -> tuple[str, ...]:
    """The name itself, and what it is called here."""
    word = name.lower()
    stage = ALIASES[word][1] if word in ALIASES else None
    return tuple(dict.fromkeys((name, *WORDS.get(word, ()), *filter(None, (stage,)))))
