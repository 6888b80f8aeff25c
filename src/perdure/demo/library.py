"""The demo's pipeline: read a text, split it, count its words, summarise it, file it in an index.

The stages do their work for real. On texts of this size that takes microseconds, so each run also takes a moment, like
the call to a model or a service that it stands for.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections import Counter
from dataclasses import dataclass

from perdure import Context, Document, Perdure, Permanent, Pipeline, Result, Row, Transient
from perdure.demo.ledger import paid

#: Where the worker processes of a demo find its store, and the queue that is this demo's own.
STORE_VARIABLE = "PERDURE_DEMO_STORE"
RUN_VARIABLE = "PERDURE_DEMO_RUN"

BACKOFF_S = 0.5
KEYWORDS = 12
SENTENCES = 2
_WORD = re.compile(r"[a-z]{4,}")
_COMMON = frozenset(
    "that this with from have they them their there when what which were been only then than some more most other "
    "every each does into upon would could because before after until will must very about where whose".split()
)

library = Pipeline("library", queue=os.environ.get(RUN_VARIABLE, "demo"), attempts=3, backoff_s=BACKOFF_S)


@dataclass(frozen=True)
class Paragraph:
    """A paragraph and its number, by which its count is saved."""

    index: int
    text: str


@library.stage(isolate=True, timeout=20)
def read(doc: Document) -> str:
    """In a process of its own: what comes from outside may be broken, or break its reader."""
    with paid(doc.name, "read"):
        time.sleep(0.55)
        if doc.meta.get("trouble") == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        text = doc.text  # bytes that are not text: Permanent(text_broken)
        if not text.strip():
            raise Permanent("empty_document", f"{doc.name} has no words")
        return text


@library.stage
def split(doc: Document, read: str) -> list[Paragraph]:
    """Into paragraphs."""
    with paid(doc.name, "split"):
        time.sleep(0.4)
        return paragraphs(read)


@library.stage
def count(doc: Document, split: list[Paragraph], ctx: Context) -> dict[str, int]:
    """Paragraph by paragraph: each is saved as soon as it is counted, with its row."""

    def words(paragraph: Paragraph) -> dict[str, int]:
        with paid(doc.name, "count", paragraph.index):
            time.sleep(0.45)
            return dict(word_counts(paragraph.text))

    with paid(doc.name, "count"):
        total: Counter[str] = Counter()
        for number, counted in enumerate(ctx.items(split, run=words)):
            total.update(counted)
            ctx.emit(Row("paragraphs", number=number, data=sum(counted.values())))
        return dict(total)


@library.stage
async def summarise(doc: Document, read: str, count: dict[str, int], ctx: Context) -> str:
    """The sentences that say most; the service behind it may be busy."""
    with paid(doc.name, "summarise"):
        await asyncio.sleep(0.9)
        if doc.meta.get("trouble") == "busy" and ctx.attempt <= 2:
            raise Transient("503, the summariser is busy")
        return summary(read, count)


@library.stage
def index(doc: Document, split: list[Paragraph], count: dict[str, int]) -> Result[int]:
    """A row per keyword: in which paragraphs it is. The rows commit with the stage."""
    with paid(doc.name, "index"):
        time.sleep(0.5)
        found = postings(split, count)
        return Result(len(found), rows=[Row("postings", word=word, data=at) for word, at in found.items()])


@index.ensure
def everything_filed(count: dict[str, int], index: int) -> bool:
    """The document is not done before every keyword is in the index."""
    return index == len(keywords(count))


# --- the work itself -------------------------------------------------------------------------


def paragraphs(text: str) -> list[Paragraph]:
    """Parted by empty lines."""
    parts = (part.strip() for part in re.split(r"\n\s*\n", text))
    return [Paragraph(number, part) for number, part in enumerate(part for part in parts if part)]


def word_counts(text: str) -> Counter[str]:
    """How often each word occurs that is neither short nor common."""
    return Counter(word for word in _WORD.findall(text.lower()) if word not in _COMMON)


def keywords(counts: dict[str, int]) -> list[str]:
    """The most frequent words, the same for the same counts."""
    return sorted(counts, key=lambda word: (-counts[word], word))[:KEYWORDS]


def summary(text: str, counts: dict[str, int]) -> str:
    """The sentences whose words are the most frequent ones, in their order."""
    sentences = re.split(r"(?<=[.!?])\s+", " ".join(text.split()))

    def weight(sentence: str) -> float:
        found = word_counts(sentence)
        return sum(counts.get(word, 0) for word in found) / (len(found) + 5)

    best = sorted(sentences, key=weight, reverse=True)[:SENTENCES]
    return " ".join(sentence for sentence in sentences if sentence in best)


def postings(parts: list[Paragraph], counts: dict[str, int]) -> dict[str, list[int]]:
    """Keyword → the paragraphs it is in."""
    words = {part.index: set(word_counts(part.text)) for part in parts}
    return {word: [number for number, found in words.items() if word in found] for word in keywords(counts)}


app = Perdure(os.environ.get(STORE_VARIABLE, "sqlite:///perdure-demo.db"), pipelines=[library])
