"""Whether search finds what is asked for: labelled questions over documentation from public packages.

    python benchmarks/retrieval.py --cache DIRECTORY [--store URL] [--questions FILE] [--half tune] [--misses]

The corpus (`retrieval_corpus.py`) goes through the real pipeline, once for each store; what exists is asked again. Each
line of `retrieval_questions.tsv` is: kind, half, question, documents, passage. A hit is right if it belongs to one of
the documents and its chunk contains the passage; an unanswerable question has neither. Prints hit@1, hit@5 and the mean
reciprocal rank (of the first ten) by kind and half, for words alone, vectors alone and both. For both it also prints
`doc@5`, the share of questions with a hit of the right document among the first five, and `refused`, the number of
answerable questions without any hit; and how many unanswerable questions are answered with "nothing fits". The first
line names the embedder and the chunker by a number that follows from all chunks: another number, other passages. The
half `tune` may be looked at when search is changed, `held` may not.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from retrieval_corpus import corpus

from perdure import Perdure
from perdure.core.words import ANCHOR
from perdure.pipelines.document import documents
from perdure.pipelines.embed import embedder
from perdure.service import AsyncPerdure
from perdure.store.records import Status

QUESTIONS = Path(__file__).with_name("retrieval_questions.tsv")
DEPTH = 10
WAYS = ("words", "vectors", "both")
UNANSWERABLE = "unanswerable"
SIGN = re.compile(ANCHOR)


@dataclass(frozen=True)
class Question:
    """A question, and the passage that answers it."""

    kind: str
    half: str
    text: str
    documents: tuple[str, ...]
    passage: str


Ranks = dict[tuple[str, str, str], list["Found"]]


def questions(path: Path) -> list[Question]:
    """All of the file, in order."""
    with path.open(newline="") as lines:
        rows = [row for row in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if row]
    return [
        Question(kind, half, text, tuple(named.split()), plain(passage))
        for kind, half, text, named, passage in rows
    ]


def plain(text: str) -> str:
    """The text without what extraction may change: signs of Markdown and spaces."""
    return "".join(sign for sign in text.casefold() if sign.isalnum())


def index(store: str, paths: list[Path]) -> None:
    """All documents through a worker; nothing is done again for those that are there."""
    with Perdure(store, pipelines=[documents]) as app:
        app.pause("connections")
        app.add_many([{"path": path, "name": path.name} for path in paths], pipeline=documents)
        command = [sys.executable, "-m", "perdure", "worker", "--concurrency", "6"]
        environment = {**os.environ, "PERDURE_STORE": store}
        worker = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            while app._call(app.service.store.tally()).documents.get("open", 0):
                time.sleep(0.5)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait()


@dataclass(frozen=True)
class Found:
    """The rank of the first right hit and of the first of a right document (0: none), and whether there was any hit."""

    place: int
    document: int
    any: bool


async def rank(app: AsyncPerdure, question: Question, way: str) -> Found:
    """What a search in this way gives."""
    store = app.store
    vector = None
    if way != "words":
        model = embedder()
        vector = (model.name, (await model.aembed([question.text]))[0])
    text = "" if way == "vectors" else question.text
    found = await store.search("default", text, vector, limit=DEPTH)
    named = [place for place, hit in enumerate(found, 1) if hit.name in question.documents]
    right = [place for place in named if question.passage in plain(found[place - 1].text)]
    return Found(min(right, default=0), min(named, default=0), bool(found))


async def ask(store: str, asked: list[Question], misses: bool) -> None:
    """Ask all questions in all ways and print what came of it."""
    app = AsyncPerdure(store, pipelines=[documents])
    await app.start()
    try:
        missing = await _unlabelled(app, asked)
        for one in missing:
            print(f"no chunk has the passage of: {one.text}", file=sys.stderr)
        ranks: Ranks = defaultdict(list)
        for question in asked:
            for way in WAYS:
                found = await rank(app, question, way)
                ranks[question.kind, question.half, way].append(found)
                if misses and question.half == "tune" and way == "both" and not 0 < found.place <= 5:
                    print(f"missed ({found.place}): {question.kind}: {question.text}")
        await _corpus(app)
    finally:
        await app.stop()
    _table(ranks)


async def _unlabelled(app: AsyncPerdure, asked: list[Question]) -> list[Question]:
    """Questions whose passage stands in no chunk: nothing could answer them."""
    ids = {one.name: one.id for one in await _everything(app)}
    missing = []
    for question in asked:
        texts = [c.text for name in question.documents if name in ids for c in await app.chunks(ids[name])]
        if question.documents and not any(question.passage in plain(text) for text in texts):
            missing.append(question)
    return missing


async def _corpus(app: AsyncPerdure) -> None:
    """Print embedder, chunker and how many chunks help nobody: a heading or fence alone, the sign of a part inside."""
    found: dict[str, int] = defaultdict(int)
    models: Counter[str | None] = Counter()
    cut = 0
    for document in await _everything(app):
        for chunk in await app.chunks(document.id):
            models[chunk.model] += 1
            cut ^= crc32(f"{document.name}\0{chunk.read}".encode(errors="replace"))
            found["chunks"] += 1
            lines = [line for line in chunk.text.split("\n") if line.strip()]
            body = [line for line in lines if not line.startswith("#") and not SIGN.fullmatch(line.strip())]
            if not any(sign.isalnum() for line in body for sign in line.strip("`~")):
                found["heading alone" if any(map(str.isalnum, chunk.text)) else "without a word"] += 1
            elif all(line.startswith(("```", "~~~")) for line in body):
                found["fence alone"] += 1
            found["with a sign inside"] += SIGN.search(chunk.text) is not None
    junk = sum(found.values()) - found["chunks"]
    told = ", ".join(f"{name} {count}" for name, count in found.items())
    print(f"embedder {embedder().name}; vectors {dict(models)}; chunker {cut:08x}")
    print(f"junk {junk / found['chunks']:.4f} ({told})")


async def _everything(app: AsyncPerdure) -> list[Status]:
    found: list[Status] = []
    after = None
    while page := await app.documents(limit=1_000, after=after):
        found += page
        after = page[-1].place
    return found


def _table(ranks: Ranks) -> None:
    kinds = [kind for kind in dict.fromkeys(kind for kind, _, _ in ranks) if kind != UNANSWERABLE]
    print(f"{'':28}" + "".join(f"{way:>24}" for way in WAYS))
    cells = "   hit@1  hit@5    MRR " * len(WAYS)
    print(f"{'kind':<14}{'half':<8}{'n':>4}  {cells}  doc@5 refused")
    for kind in [*kinds, "all"]:
        for half in ("tune", "held", "all"):
            _line(ranks, kind, half)
    for (kind, half, way), found in ranks.items():
        if kind == UNANSWERABLE:
            share = sum(not one.any for one in found) / len(found)
            print(f"unanswerable, {half}, {way}: nothing fits in {share:.3f} of {len(found)}")


def _line(ranks: Ranks, kind: str, half: str) -> None:
    lists = [
        [
            one
            for (k, h, w), found in ranks.items()
            for one in found
            if w == way and k != UNANSWERABLE and kind in (k, "all") and half in (h, "all")
        ]
        for way in WAYS
    ]
    n = len(lists[0])
    if not n:
        return
    cells = ""
    for found in lists:
        places = [one.place for one in found if one.place]
        first, five = sum(p == 1 for p in places), sum(p <= 5 for p in places)
        cells += f"{first / n:8.3f}{five / n:7.3f}{sum(1 / p for p in places) / n:7.3f}  "
    both = lists[WAYS.index("both")]
    documents = sum(0 < one.document <= 5 for one in both) / n
    print(f"{kind:<14}{half:<8}{n:>4}  {cells}{documents:7.3f}{sum(not one.any for one in both):>8}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--store")
    parser.add_argument("--questions", type=Path, default=QUESTIONS)
    parser.add_argument("--half", choices=("tune", "held"))
    parser.add_argument("--misses", action="store_true")
    parser.add_argument("--only-index", action="store_true")
    given = parser.parse_args()
    store = given.store or f"sqlite:///{given.cache.resolve()}/retrieval.db"
    index(store, corpus(given.cache))
    if not given.only_index:
        asked = [one for one in questions(given.questions) if given.half in (None, one.half)]
        asyncio.run(ask(store, asked, given.misses))


if __name__ == "__main__":
    main()
