"""Embedders: texts to vectors. One comes with Perdure, others with the extras `minilm` and `embed`, or a service.

    minilm      vectors of sentences, from weights that lie in a package; English, some 60 ms of processor for a chunk
    wordllama   vectors of meaning from weights that lie in its package; nothing is downloaded
    hashing     lexical: texts are alike if they share words; needs nothing but numpy
    a URL       the service there, called with the policy `openai` (retries, breaker, fleet)

A vector is float32 numbers, little-endian, as bytes; the embedder's `name` is kept with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from perdure.calls import presets
from perdure.core.chunk import Chunk
from perdure.core.services import CHECKS
from perdure.core.words import words
from perdure.errors import SettingInvalid, Transient
from perdure.pipelines import minilm
from perdure.settings import OPENAI, Settings, current

log = logging.getLogger("perdure.embed")
BATCH = 64  # texts that are asked for, and saved, at a time where they cost money or take long
BATCH_QUICK = 4_096  # where they take less than half a second
KNOWN_MAX = 100_000  # words whose tokens are kept, and how long they are at most
KNOWN_CHARS = 40

_WORD = re.compile(r" *[^ \n]+| +|\n")


#: Where vectors are made: threads that only compute keep each other from the interpreter, and all others too.
_COMPUTING = ThreadPoolExecutor(1, "perdure-embed")


async def _alone(embed: Callable[[Sequence[str]], list[bytes]], texts: Sequence[str]) -> list[bytes]:
    """Embed beside the event loop, after whatever else is to be embedded."""
    return await asyncio.get_running_loop().run_in_executor(_COMPUTING, embed, texts)


class Embedder(Protocol):
    """Texts to vectors, one each, in order."""

    name: str
    dimensions: int  # 0: not known before the first answer
    batch: int  # texts whose vectors are saved at a time

    def embed(self, texts: Sequence[str]) -> list[bytes]: ...
    async def aembed(self, texts: Sequence[str]) -> list[bytes]: ...


class Hashing:
    """Lexical: each word has a place and a sign that follow from its letters; frequent ones count less than often."""

    def __init__(self, dimensions: int = 384) -> None:
        self.name = f"lexical-hashing-{dimensions}"
        self.dimensions = dimensions
        self.batch = BATCH_QUICK

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        return [self._vector(text) for text in texts]

    async def aembed(self, texts: Sequence[str]) -> list[bytes]:
        return await _alone(self.embed, texts)

    def _vector(self, text: str) -> bytes:
        counts: dict[str, int] = {}
        for word in words(text):
            counts[word] = counts.get(word, 0) + 1
        vector = np.zeros(self.dimensions)
        for word, count in counts.items():
            place = crc32(word.encode(errors="replace"))
            sign = 1.0 if place & 0x8000_0000 else -1.0
            vector[place % self.dimensions] += sign * (1.0 + np.log(count))
        length = np.linalg.norm(vector)
        return (vector / length if length else vector).astype("<f4").tobytes()


class WordLlama:
    """Static vectors of meaning, 256 numbers each, some ten thousand texts a second.

    A text's vector is the sum of those of its tokens. No token reaches across a space or the end of a line, so what
    stands between them is cut into tokens once and known from then on: texts consist of the same words mostly.
    """

    def __init__(self) -> None:
        import wordllama
        from tokenizers.normalizers import Replace

        here = Path(wordllama.__file__).parent
        model = wordllama.WordLlama.load(cache_dir=here, disable_download=True)
        self.name = "wordllama-l2-supercat-256"
        self.dimensions = 256
        self.batch = BATCH_QUICK
        self._weights = model.embedding
        self._tokenizer = model.tokenizer
        self._tokenizer.no_padding()
        self._tokenizer.normalizer = Replace(" ", "\u2581")  # without the one that it puts before a text
        (self._newline,) = self._tokenizer.encode("\n", add_special_tokens=False).ids
        self._known: dict[str, bytes] = {}

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        found = np.zeros((len(texts), self.dimensions), "<f4")
        for vector, tokens in zip(found, self._tokens(texts), strict=True):
            self._weights.take(tokens, axis=0, mode="clip").sum(axis=0, out=vector)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        np.divide(found, lengths, out=found, where=lengths > 0)  # a text without words stays 0
        return [vector.tobytes() for vector in found]

    async def aembed(self, texts: Sequence[str]) -> list[bytes]:
        return await _alone(self.embed, texts)

    def _tokens(self, texts: Sequence[str]) -> Iterator[Any]:
        """The numbers of each text's tokens."""
        if len(self._known) > KNOWN_MAX:
            self._known = {}
        known = self._known  # another thread may begin anew meanwhile
        cut = [_WORD.findall(f" {text}") if text else [] for text in texts]
        rare: dict[str, bytes] = {}
        for word, tokens in self._cut({word for pieces in cut for word in pieces if word not in known}):
            (known if len(word) <= KNOWN_CHARS else rare)[word] = tokens
        for pieces in cut:
            yield np.frombuffer(b"".join([known.get(word) or rare[word] for word in pieces]), np.int32)

    def _cut(self, words: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """Each word with its tokens: all are cut at one go, with the ends of lines between them."""
        inside = [word for word in words if word != "\n"]
        ids = np.array(self._tokenizer.encode("\n".join(inside), add_special_tokens=False).ids, np.int32)
        ends = [*np.flatnonzero(ids == self._newline).tolist(), len(ids)]
        raw, begin, size = ids.tobytes(), 0, ids.itemsize
        for word, end in zip(inside, ends, strict=bool(inside)):
            yield word, raw[begin * size : end * size]
            begin = end + 1
        yield "\n", np.array([self._newline], np.int32).tobytes()


class Endpoint:
    """A service that speaks the OpenAI protocol; `url` ends before `/embeddings`."""

    def __init__(self, url: str, model: str, dimensions: int | None = None, key: str | None = None) -> None:
        self.name = model if dimensions is None else f"{model}-{dimensions}"
        self.dimensions = dimensions or 0
        self.batch = BATCH
        self._url = f"{url.rstrip('/')}/embeddings"
        self._ask: dict[str, Any] = {"model": model, "encoding_format": "float"}
        if dimensions is not None:
            self._ask["dimensions"] = dimensions
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        import httpx2

        def ask(batch: Sequence[str]) -> Any:
            answer = client.post(self._url, json={**self._ask, "input": list(batch)}, headers=self._headers)
            return answer.raise_for_status().json()

        with httpx2.Client(timeout=presets.openai().attempt_s) as client:
            batches = [texts[n : n + BATCH] for n in range(0, len(texts), BATCH)]
            return [v for batch in batches for v in self._read(presets.openai().call(ask, batch), len(batch))]

    async def aembed(self, texts: Sequence[str]) -> list[bytes]:
        import httpx2

        async def ask(batch: Sequence[str]) -> Any:
            asked = {**self._ask, "input": list(batch)}
            answer = await client.post(self._url, json=asked, headers=self._headers)
            return answer.raise_for_status().json()

        found: list[bytes] = []
        async with httpx2.AsyncClient(timeout=presets.openai().attempt_s) as client:
            for n in range(0, len(texts), BATCH):
                batch = texts[n : n + BATCH]
                found += self._read(await presets.openai().acall(ask, batch), len(batch))
        return found

    def _read(self, answer: Any, expected: int) -> list[bytes]:
        """The vectors of an answer in the order of what was asked; Transient(embedding_invalid)."""
        try:
            entries = sorted(answer["data"], key=lambda entry: int(entry["index"]))
            indexes = [int(entry["index"]) for entry in entries]
            vectors = np.array([entry["embedding"] for entry in entries], "<f4")
        except (KeyError, TypeError, ValueError) as error:
            raise _invalid(f"it is none ({type(error).__name__}: {error})") from error
        if indexes != list(range(expected)):
            raise _invalid(f"{expected} vectors were asked for, and {len(indexes)} others came")
        wanted = self.dimensions or (vectors.shape[1] if vectors.ndim > 1 else 0)
        if vectors.shape != (expected, wanted) or not wanted:
            raise _invalid(f"its vectors have the shape {vectors.shape}, not {(expected, wanted)}")
        if not np.isfinite(vectors).all():
            raise _invalid("it has numbers that are none")
        self.dimensions = wanted
        return [vector.tobytes() for vector in vectors]


def _invalid(problem: str) -> Transient:
    return Transient(f"the answer with vectors cannot be used: {problem}", code="embedding_invalid")


def with_vectors(chunks: Sequence[Chunk], vectors: Sequence[bytes], model: str) -> list[Chunk]:
    """The chunks, each with its vector; Transient(contract_broken) unless there is one for each."""
    if len(chunks) != len(vectors):
        message = f"{len(chunks)} chunks and {len(vectors)} vectors"
        raise Transient(message, code="contract_broken")
    return [
        Chunk(c.id, c.position, c.start, c.end, c.text, c.anchor, c.page, model, v, c.heading)
        for c, v in zip(chunks, vectors, strict=True)
    ]


def embedder(settings: Settings | None = None) -> Embedder:
    """The embedder that the settings ask for; loaded once. SettingInvalid."""
    asked = settings or current()
    check(asked)
    key = asked.embed_key or os.environ.get("OPENAI_API_KEY")
    return _embedder(asked.embedder, asked.embed_model, asked.embed_dimensions, key)


def services() -> tuple[str, ...]:
    """What a stage that embeds needs: the policy of the service, if the settings name one."""
    return ("openai",) if current().embedder.startswith(("http://", "https://")) else ()


def check(settings: Settings | None = None) -> None:
    """Raises: SettingInvalid if the embedder that the settings name is not installed or lacks its key."""
    asked = settings or current()
    if asked.embedder.startswith(OPENAI) and not (asked.embed_key or os.environ.get("OPENAI_API_KEY")):
        raise SettingInvalid(
            f"PERDURE_EMBEDDER is {asked.embedder}, which needs a key; set PERDURE_EMBED_KEY or OPENAI_API_KEY"
        )
    if asked.embedder == "wordllama" and find_spec("wordllama") is None:
        raise SettingInvalid(
            "PERDURE_EMBEDDER is wordllama, which is not installed; pip install 'perdure[embed]', or set it to hashing"
        )
    if asked.embedder == "minilm" and not _has_minilm():
        raise SettingInvalid(
            "PERDURE_EMBEDDER is minilm, which is not installed; pip install 'perdure[minilm]', or set it to auto"
        )


CHECKS.append(check)


def _has_minilm() -> bool:
    return minilm.installed() is not None and find_spec("tokenizers") is not None


@cache
def _embedder(kind: str, model: str, dimensions: int | None, key: str | None) -> Embedder:
    if kind.startswith(("http://", "https://")):
        return Endpoint(kind, model, dimensions, key)
    if kind in ("auto", "minilm") and _has_minilm() and (directory := minilm.installed()):
        return minilm.MiniLM(directory)
    if kind == "auto" and find_spec("wordllama") is None:
        log.warning(
            "passages are found by their words only; pip install 'perdure[embed]' to find them by meaning"
        )
        return Hashing()
    return Hashing() if kind == "hashing" else WordLlama()
