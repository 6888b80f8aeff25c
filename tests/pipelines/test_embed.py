"""Embedders give one vector for each text, and an answer that cannot be right is refused."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wordllama

from perdure import Document, Pipeline
from perdure.errors import SettingInvalid, Transient
from perdure.pipelines import embed, minilm
from perdure.pipelines.chunk import chunks
from perdure.pipelines.embed import Embedder, Endpoint, Hashing, WordLlama, embedder, with_vectors
from perdure.settings import Settings
from perdure.testing import drain, trial
from tests.calls.openai_server import Fault, OpenAIServer


def rows(vectors: list[bytes]) -> np.ndarray:
    return np.stack([np.frombuffer(vector, "<f4") for vector in vectors])


@pytest.mark.parametrize("make", [Hashing, WordLlama])
def test_vectors_are_of_length_one_and_like_texts_are_near(make: type[Hashing] | type[WordLlama]) -> None:
    one: Embedder = make()

    found = rows(one.embed(["the retry policy", "a policy of retry", "whales in the sea", ""]))

    assert found.shape == (4, one.dimensions)
    assert np.allclose(np.linalg.norm(found, axis=1), [1, 1, 1, 0], atol=1e-5)
    assert found[0] @ found[1] > found[0] @ found[2] + 0.2
    assert asyncio.run(one.aembed(["whales in the sea"])) == one.embed(["whales in the sea"])
    assert one.embed([]) == []


def test_meaning_is_what_the_lexical_one_does_not_see() -> None:
    words = ["car", "automobile", "soup"]
    meaning, lexical = rows(WordLlama().embed(words)), rows(Hashing().embed(words))

    assert meaning[0] @ meaning[1] > 0.4 > meaning[0] @ meaning[2]
    assert abs(lexical[0] @ lexical[1]) < 0.1
    assert "lexical" in Hashing().name


def test_words_whose_tokens_are_known_give_the_vectors_of_the_model_itself() -> None:
    texts = [
        "the retry  policy\n\n  indented",
        " ",
        "\n",
        "<s> told </s>",
        "\u2581x \r\n",
        "naïve 🙂",
        "日本語 " * 30,
    ]
    texts += ["x" * 1_000, "policy the retry"]
    one, model = (
        WordLlama(),
        wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True),
    )

    for _ in range(2):  # at first nothing is known
        assert np.allclose(rows(one.embed(texts)), model.embed(texts, norm=True), atol=1e-6)


def test_hashing_is_the_same_in_another_process() -> None:
    code = "from perdure.pipelines.embed import Hashing;print(Hashing().embed(['naïve whales'])[0].hex())"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert other.stdout.strip() == Hashing().embed(["naïve whales"])[0].hex()


def data(*vectors: Any) -> dict[str, Any]:
    return {"data": [{"index": n, "embedding": vector} for n, vector in enumerate(vectors)]}


def test_a_service_is_asked_in_batches_and_in_order() -> None:
    texts = [f"text {n}" for n in range(150)]
    with OpenAIServer() as server:
        service = Endpoint(server.url, "m", key="secret")
        found = service.embed(texts)
        awaited = asyncio.run(service.aembed(texts[:70]))

        assert [len(r.body["input"]) for r in server.requests] == [64, 64, 22, 64, 6]
        assert server.requests[0].headers["authorization"] == "Bearer secret"
    assert (len(found), service.dimensions, service.name) == (150, 3, "m")
    assert awaited == found[:70]


def test_vectors_that_come_in_another_order_are_put_right() -> None:
    swapped = {"data": list(reversed(data([1, 0], [0, 1])["data"]))}
    with OpenAIServer([Fault(body=swapped)]) as server:
        found = rows(Endpoint(server.url, "m").embed(["a", "b"]))

    assert found.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    "answer",
    [
        data([1, 2]),
        data([1, 2], [3, 4], [5, 6]),
        data([1, 2], [3]),
        data([1, 2], [3, math.nan]),
        data([], []),
        data([1, 2], ["x", 4]),
        {"data": [{"index": 0, "embedding": [1, 2]}] * 2},
        {"data": None},
        {},
        [],
    ],
)
def test_an_answer_that_cannot_be_right_is_refused(answer: Any) -> None:
    with OpenAIServer([Fault(body=answer)]) as server, pytest.raises(Transient) as refused:
        Endpoint(server.url, "m").embed(["a", "b"])

    assert refused.value.code == "embedding_invalid"


def test_the_number_of_numbers_is_held_to() -> None:
    with OpenAIServer([Fault(body=data([1, 2]))]) as server, pytest.raises(Transient):
        Endpoint(server.url, "m", dimensions=3).embed(["a"])


def test_settings_choose_the_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "installed", lambda: None)
    assert isinstance(embedder(Settings(embedder="hashing")), Hashing)
    assert isinstance(embedder(Settings()), WordLlama)
    remote = embedder(Settings(embedder="https://host/v1", embed_model="big", embed_dimensions=7))
    assert (remote.name, remote.dimensions) == ("big-7", 7)
    with pytest.raises(SettingInvalid):
        embedder(Settings(embedder="magic"))
    monkeypatch.setattr(embed, "find_spec", lambda _: None)
    embed._embedder.cache_clear()
    assert isinstance(embedder(Settings()), Hashing)
    with pytest.raises(SettingInvalid):
        embedder(Settings(embedder="wordllama"))
    embed._embedder.cache_clear()


def test_each_chunk_gets_its_vector_or_none_does() -> None:
    cut = chunks("one\n\n" * 900, "d", "h")
    model = Hashing()
    vectors = model.embed([c.text for c in cut])

    found = with_vectors(cut, vectors, model.name)

    assert [(c.id, c.model, c.vector) for c in found] == [
        (c.id, model.name, v) for c, v in zip(cut, vectors, strict=True)
    ]
    with pytest.raises(Transient) as broken:
        with_vectors(cut, vectors[1:], model.name)
    assert broken.value.code == "contract_broken"


def test_a_service_that_refuses_the_key_ends_the_document_at_once() -> None:
    books = Pipeline("books", attempts=3)

    @books.stage(needs=["openai"])
    async def vectors(doc: Document) -> int:
        return len(await Endpoint(server.url, "m", 3).aembed([doc.text]))

    with OpenAIServer([Fault(401)] * 9) as server, trial(books) as app:
        id_ = app.add(text="a", pipeline=books).id
        assert drain(app).dead == 1
        (attempt,) = app.attempts(id_)
        assert (attempt.error_code, attempt.status_code, attempt.requests) == (
            "call_unauthorized", 401, {"openai": 1},
        )  # fmt: skip
        assert app.groups()[0].advice.startswith("openai refuses us")
        assert len(server.requests) == 1
