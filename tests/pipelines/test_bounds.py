"""Every stage that comes with Perdure is bounded: a timeout, and a cell with a memory bound where foreign text or bytes
are computed on. A new stage fails here until it says where it runs."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import time
from collections.abc import Callable

import pytest

from perdure import Pipeline, pipelines
from perdure.engine.pipeline import AnyStage
from perdure.pipelines import bounds, indexing
from perdure.pipelines import chunk as cutting
from perdure.pipelines.document import documents
from perdure.testing import drain, trial

#: Stages that run in the worker's own process, and what bounds their work there. The watch over the loop covers all.
IN_PROCESS = {
    "document.fetch": "waits for a host; bytes and time are bounded, threads unpack and write the content",
    "mail-thread.chunk": "cuts a summary of a few thousand characters",
    "mail.close": "adds up numbers",
    "image.complete": "looks at the outcomes of jobs",
    "generate-metadata.describe": "waits for a service of ours; its answer is bounded",
    "generate-metadata.record": "puts fields of bounded length together",
    "generate-embeddings.embed": "one text",
    "detect_connections.connect": "asks the store to compare vectors",
}


def shipped() -> dict[str, AnyStage]:
    found: dict[str, AnyStage] = {}
    for module in pkgutil.walk_packages(pipelines.__path__, f"{pipelines.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, Pipeline):
                for each in (value, *value.hooks.values()):
                    found |= {f"{each.name}.{stage.name}": stage for stage in each.stages}
    return found


STAGES = shipped()


def test_all_pipelines_are_found() -> None:
    assert {name.partition(".")[0] for name in STAGES} == {
        "document", "detect_connections", "mail", "mail-message", "mail-thread", "image", "generate-metadata",
        "generate-variants", "generate-embeddings",
    }  # fmt: skip
    assert set(IN_PROCESS) <= set(STAGES)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_has_a_timeout_and_runs_where_it_can_be_killed(name: str) -> None:
    stage = STAGES[name]
    assert stage.timeout is not None
    assert stage.wants_cells != (name in IN_PROCESS), "run it in a cell, or say above why it need not"
    assert stage.memory_mb > 0
    if stage.isolate_from is not None:
        assert stage.isolate_from <= bounds.CELL_BYTES


def test_embedding_for_hours_is_fine_as_long_as_batches_come() -> None:
    for name in ("document.embed", "mail-message.embed", "mail-thread.embed"):
        stage = STAGES[name]
        assert stage.timeout == 86_400
        assert stage.stall is not None
        assert stage.stall >= 4 * 600  # a service that answers at the last moment, each time
        assert stage.wants_context  # and reports each batch


def test_a_service_is_asked_for_vectors_from_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the fleet's calls are controlled, however large the text is."""
    assert STAGES["document.embed"].isolate_from == bounds.CELL_BYTES
    monkeypatch.setenv("PERDURE_EMBEDDER", "http://127.0.0.1:9/v1")
    assert STAGES["document.embed"].isolate_from is None


def test_what_is_embedded_at_a_time_is_bounded() -> None:
    text = "word " * 60_000
    found = cutting.chunks(text, "d", "h")
    assert max(len(one.text) for one in found) <= cutting.CHARS_MAX


@pytest.mark.full
@pytest.mark.parametrize("large", [False, True])
def test_large_texts_are_cut_embedded_and_indexed_in_a_process_of_their_own(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_EMBEDDER", "hashing")
    words = "a word or two. " * (20_000 if large else 20)
    ran: list[int] = []
    for module, name in ((cutting, "chunks"), (indexing, "embedder"), (indexing, "with_vectors")):
        monkeypatch.setattr(module, name, _noting(ran, getattr(module, name)))
    with trial(documents, cells=True) as app:
        id_ = app.add(text=words, pipeline=documents).id
        assert drain(app).done == 1
        assert app.status(id_).state == "done"
        assert len(app.chunks(id_)) == app.output(id_, "index")
    # the name of its model is asked for here, too
    assert ran == [os.getpid()] * (1 if large else 4)


def _noting(ran: list[int], function: Callable[..., object]) -> object:
    def noted(*given: object, **more: object) -> object:
        ran.append(os.getpid())
        return function(*given, **more)

    return noted


@pytest.mark.full
def test_the_worst_small_text_takes_little_time() -> None:
    """In a thread it holds the interpreter: that must end long before anybody calls it a standstill."""
    size = bounds.CELL_BYTES
    worst = 0.0
    for text in (
        "\u0e01" * (size // 3),
        "a" * size,
        "[" * size,
        "*a " * (size // 3),
        "\n" * size,
        "> " * (size // 2),
    ):
        assert len(json.dumps(text, ensure_ascii=False).encode()) <= 2 * size + 2
        began_s = time.process_time()
        cutting.chunks(text, "d", "h")
        worst = max(worst, time.process_time() - began_s)
    assert worst < 20
