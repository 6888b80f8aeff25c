"""How fast search is: 100,000 chunks of one organisation, by words, by vectors and by both.

    python benchmarks/search.py [--chunks 100000] [--store URL] [--queries 200] [--beside 0] [--vectors numpy|pgvector]

The words follow Zipf's law, as in any language, so queries have rare words and such that stand in nearly every chunk.
Documents come in through the store as a stage would save them. Prints p50 and p95 of each way, what it takes until the
first search is answered, and what one more document costs the next search. The processor's time is that of this process
and of SQLite, which runs in it; a server's is not in it. `--vectors` says who searches them on PostgreSQL; a database
that was filled by an earlier run is measured with `--chunks 0`. `--beside` adds chunks of another organisation.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import numpy as np

from perdure.core.chunk import Chunk, chunk_id, revision
from perdure.core.words import words
from perdure.store.open import open_store
from perdure.store.operations import ChunkSet, Claim, NewChunk, NewDocument, NewJob, Save
from perdure.store.sql_store import SqlStore

DIMENSIONS = 256
PER_DOCUMENT = 60
WORDS = 30_000
MODEL = "bench"


class Corpus:
    """Texts and vectors that are the same in every run."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        self.vocabulary = ["".join(self.rng.choice(letters, self.rng.integers(2, 11))) for _ in range(WORDS)]
        share = 1 / np.arange(1, WORDS + 1)
        self.share = share / share.sum()
        self.topics = self.rng.normal(size=(200, DIMENSIONS)).astype("<f4")

    def text(self, count: int = 190) -> str:
        return " ".join(self.vocabulary[n] for n in self.rng.choice(WORDS, count, p=self.share))

    def telling(self, count: int) -> str:
        """Words that people ask for: not the commonest 200."""
        share = self.share[200:] / self.share[200:].sum()
        return " ".join(self.vocabulary[200 + n] for n in self.rng.choice(WORDS - 200, count, p=share))

    def vector(self) -> bytes:
        topic = self.topics[self.rng.integers(len(self.topics))]
        vector: np.ndarray = topic + 0.7 * self.rng.normal(size=DIMENSIONS).astype("<f4")
        return vector.astype("<f4").tobytes()

    def chunks(self, document_id: str, count: int) -> ChunkSet:
        made = []
        for n in range(count):
            text = self.text()
            id_ = chunk_id(document_id, "hash", n, text)
            made.append(
                Chunk(id_, n, n * 1200, n * 1200 + len(text), text, f"page={n}", n, MODEL, self.vector())
            )
        return ChunkSet(revision(tuple(made)), tuple(NewChunk(c, " ".join(words(c.text))) for c in made))


async def add(
    store: SqlStore, worker: int, corpus: Corpus, number: int, count: int, org: str = "bench"
) -> float:
    """One more document; the seconds that its save took."""
    job = NewJob("books", "documents", "index")
    await store.add([NewDocument(f"d{number:06}", org, job, name=f"document {number}")])
    (claimed,) = await store.claim(Claim(worker, ("documents",), number + 1, 1))
    new = corpus.chunks(claimed.document.id, count)
    began_s = time.perf_counter()
    assert await store.save(Save(claimed.job, "done", "", 30_000, chunks=new))
    return time.perf_counter() - began_s


async def measure(name: str, asks: Sequence[Callable[[], Awaitable[object]]]) -> None:
    times = []
    before_s = time.process_time()
    for ask in asks:
        began_s = time.perf_counter()
        await ask()
        times.append((time.perf_counter() - began_s) * 1000)
    p50, p95 = np.percentile(times, [50, 95])
    busy = (time.process_time() - before_s) * 1000 / len(times)
    line = f"{name:<34} p50 {p50:6.1f} ms   p95 {p95:6.1f} ms   max {max(times):6.1f} ms   processor {busy:6.1f} ms"
    print(line, flush=True)


async def run(url: str, chunks: int, queries: int, vectors_by: str, beside: int) -> None:
    corpus, store = Corpus(), open_store(url)
    store.vectors_by = vectors_by
    await store.open()
    worker = await store.register("worker", "bench", ["documents"])
    saves = [await add(store, worker, corpus, n, PER_DOCUMENT) for n in range(chunks // PER_DOCUMENT)]
    for n in range(beside // PER_DOCUMENT):
        await add(store, worker, corpus, 1_000_000 + n, PER_DOCUMENT, "beside")
    took_ms = np.median(saves) * 1000
    print(
        f"{len(saves) * PER_DOCUMENT} chunks in; a save of {PER_DOCUMENT} took {took_ms:.0f} ms (median)",
        flush=True,
    )

    def asks(
        words: int, vectors: bool, count: int = queries, text: Callable[[int], str] = corpus.text
    ) -> list[Callable[[], Awaitable[object]]]:
        given = [(text(words), (MODEL, corpus.vector()) if vectors else None) for _ in range(count)]
        return [partial(store.search, "bench", query, vector) for query, vector in given]

    began_s = time.perf_counter()
    await asks(3, True, 1)[0]()
    print(f"the first search, which reads all vectors, took {time.perf_counter() - began_s:.2f} s")
    await measure("words, 3 telling ones", asks(3, False, text=corpus.telling))
    await measure("words, 3 by frequency", asks(3, False))
    await measure("words, 8 by frequency", asks(8, False))
    await measure("the commonest word", [partial(store.search, "bench", corpus.vocabulary[0])] * queries)
    await measure("vectors", asks(0, True))
    await measure("both, 3 telling words", asks(3, True, text=corpus.telling))
    await measure("both, 3 words", asks(3, True))
    await measure("both, 8 words", asks(8, True))
    for number in range(len(saves), len(saves) + 5):
        await add(store, worker, corpus, number, PER_DOCUMENT)
        await measure("both, after a document came in", asks(3, True, 1))
    began_s = time.perf_counter()
    pairs = await store.nearest("bench", "d000000")
    print(f"nearest of {PER_DOCUMENT} chunks: {len(pairs)} pairs in {time.perf_counter() - began_s:.2f} s")
    took_s = await add(store, worker, corpus, len(saves) + 5, 5_000)
    print(f"a save of 5,000 chunks took {took_s:.1f} s")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("--chunks", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--beside", type=int, default=0)
    parser.add_argument("--store", default=None)
    parser.add_argument("--vectors", default="auto", choices=("auto", "numpy", "pgvector"))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        url = given.store or f"sqlite:///{directory}/bench.db"
        asyncio.run(run(url, given.chunks, given.queries, given.vectors, given.beside))


if __name__ == "__main__":
    main()
