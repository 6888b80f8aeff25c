"""Vectors of sentences are those of the model itself, and a query does not wait for documents."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from perdure.errors import SettingInvalid
from perdure.pipelines import embed, minilm
from perdure.pipelines.minilm import MiniLM
from perdure.settings import Settings

WIDTH, WIDER, LAYERS = 24, 48, 2
WORDS = ["[UNK]", "[CLS]", "[SEP]", "whales", "sing", "in", "the", "sea"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A model of the same shape, with few and random numbers."""
    rng = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (len(WORDS), WIDTH),
        "embeddings.position_embeddings.weight": (minilm.TOKENS_MAX, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "embeddings.LayerNorm.bias": (WIDTH,),
    }
    for n in range(LAYERS):
        at = f"encoder.layer.{n}."
        dense = {f"attention.self.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value")}
        dense |= {"attention.output.dense": (WIDTH, WIDTH), "intermediate.dense": (WIDER, WIDTH)}
        dense["output.dense"] = (WIDTH, WIDER)
        for name, size in dense.items():
            shapes |= {f"{at}{name}.weight": size, f"{at}{name}.bias": size[:1]}
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {f"{at}{name}.weight": (WIDTH,), f"{at}{name}.bias": (WIDTH,)}
    table, numbers = {}, b""
    for name, shape in shapes.items():
        made = rng.normal(size=shape).astype("<f4").tobytes()
        table[name] = {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [len(numbers), len(numbers) + len(made)],
        }
        numbers += made
    head = json.dumps({"__metadata__": {"format": "pt"}, **table}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + numbers)
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def made(directory: Path) -> MiniLM:
    model = MiniLM(directory, files={})
    model.dimensions = WIDTH
    return model


def rows(vectors: list[bytes]) -> np.ndarray:
    return np.stack([np.frombuffer(vector, "<f4") for vector in vectors])


def plainly(directory: Path, text: str) -> np.ndarray:
    """The vector as the formulas of BERT give it, in double precision."""
    weights = {name: one.astype(float) for name, one in minilm._read(directory / "model.safetensors").items()}

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return np.asarray(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])

    def normed(x: np.ndarray, name: str) -> np.ndarray:
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return np.asarray(x * weights[f"{name}.weight"] + weights[f"{name}.bias"])

    tokens = [1, *(WORDS.index(word) if word in WORDS else 0 for word in text.split()), 2][
        : minilm.TOKENS_MAX
    ]
    tokens[-1] = 2
    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = x + weights["embeddings.position_embeddings.weight"][: len(tokens)]
    x = normed(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    size = WIDTH // minilm.HEADS
    for n in range(LAYERS):
        at = f"encoder.layer.{n}."
        query, key, value = (dense(x, f"{at}attention.self.{name}") for name in ("query", "key", "value"))
        seen = np.zeros_like(x)
        for head in range(minilm.HEADS):
            part = slice(head * size, (head + 1) * size)
            scores = np.exp(query[:, part] @ key[:, part].T / math.sqrt(size))
            seen[:, part] = scores / scores.sum(-1, keepdims=True) @ value[:, part]
        x = normed(dense(seen, f"{at}attention.output.dense") + x, f"{at}attention.output.LayerNorm")
        wide = dense(x, f"{at}intermediate.dense")
        wide = wide * 0.5 * (1 + np.vectorize(math.erf)(wide / math.sqrt(2)))
        x = normed(dense(wide, f"{at}output.dense") + x, f"{at}output.LayerNorm")
    return np.asarray(x.sum(0) / np.linalg.norm(x.sum(0)))


def test_the_vectors_are_those_that_the_formulas_give(directory: Path) -> None:
    texts = ["whales sing", "the sea", "whales in the sea sing " * 80, "x", *["sing whales sing"] * 20]

    found = rows(made(directory).embed(texts))

    expected = np.stack([plainly(directory, text) for text in texts])
    assert (found * expected).sum(axis=1).min() > 0.9999


def test_a_text_without_words_is_like_none_and_no_text_has_no_vector(directory: Path) -> None:
    model = made(directory)

    assert rows(model.embed(["", " \n", "sea"])).any(axis=1).tolist() == [False, False, True]
    assert model.embed([]) == asyncio.run(model.aembed([])) == []


def test_a_query_does_not_wait_for_documents(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(directory)
    computed = model._layers.run

    def slow(texts: Sequence[Sequence[int]]) -> np.ndarray:
        time.sleep(0.2 if len(texts) > 1 else 0)
        return computed(texts)

    async def both() -> tuple[float, list[bytes], list[bytes]]:
        many = asyncio.create_task(model.aembed(["whales sing"] * 40))
        await asyncio.sleep(0.05)
        began_s = time.monotonic()
        query = await model.aembed(["whales sing"])
        return time.monotonic() - began_s, query, await many

    monkeypatch.setattr(model._layers, "run", slow)
    took_s, query, many = asyncio.run(both())

    assert took_s < 0.15
    assert np.allclose(rows(query), rows(many)[:1], atol=1e-5)


def test_other_files_under_its_name_are_refused(directory: Path) -> None:
    with pytest.raises(SettingInvalid, match=r"model\.safetensors is not the file of all-MiniLM-L6-v2"):
        MiniLM(directory)


def test_auto_takes_it_where_it_is_installed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embed._embedder.cache_clear()
    try:
        monkeypatch.setattr(minilm, "installed", lambda: None)
        with pytest.raises(
            SettingInvalid, match=r"minilm, which is not installed; pip install 'perdure\[minilm\]'"
        ):
            embed.embedder(Settings(embedder="minilm"))
        assert embed.embedder(Settings(embedder="auto")).name == "wordllama-l2-supercat-256"
        embed._embedder.cache_clear()
        monkeypatch.setattr(minilm, "installed", lambda: directory)
        monkeypatch.setattr(minilm, "FILES", {})
        assert embed.embedder(Settings(embedder="auto")).name == MiniLM.name
        assert embed.embedder(Settings(embedder="wordllama")).name == "wordllama-l2-supercat-256"
    finally:
        embed._embedder.cache_clear()


@pytest.mark.skipif(minilm.installed() is None, reason="no package has the weights")
def test_the_model_knows_what_sentences_mean() -> None:
    directory = minilm.installed()
    assert directory is not None
    found = rows(
        MiniLM(directory).embed(
            ["How do I undo the last commit?", "Reset the branch to the previous revision", "Bananas"]
        )
    )

    assert found[0] @ found[1] == pytest.approx(0.6444, abs=0.002)
    assert abs(found[0] @ found[2]) < 0.15
