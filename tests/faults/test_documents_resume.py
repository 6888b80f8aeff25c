"""The document pipeline, killed wherever it may be: it goes on where it stood, and ends as if nothing had happened."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from perdure.pipelines.embed import Hashing
from perdure.service import AddOptions
from tests.calls.openai_server import OpenAIServer
from tests.calls.web import Web
from tests.faults.documents.account import add, assert_sound, pairs, passages, wait_until_quiet
from tests.faults.documents.library import book
from tests.faults.documents.places import APP, BATCH, BATCH_VARIABLE, CHAPTERS, PLACES, expected_runs, runs
from tests.faults.fleet import Fleet
from tests.faults.process import WorkerProcess


@pytest.fixture
def service(nearby: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAIServer]:
    """An embeddings service, for whoever starts after it, whose vectors are near for like texts."""
    model = Hashing()
    with OpenAIServer() as made:
        made.vector = lambda text: np.frombuffer(model.embed([text])[0], "<f4").tolist()
        monkeypatch.setenv("PERDURE_EMBEDDER", made.url)
        yield made


def start(fleet: Fleet, batch: int = BATCH) -> WorkerProcess:
    options: dict[str, Any] = {BATCH_VARIABLE: str(batch)}
    return fleet.start(APP, concurrency=len(PLACES), **options)


def kill(
    fleet: Fleet, worker: WorkerProcess, victim: str, places: dict[str, str], batch: int = BATCH
) -> WorkerProcess:
    """End what holds these documents (name → the place it waits at); the worker that goes on."""
    if victim == "supervisor":
        worker.kill()
        fleet.wait_until_gone(worker)
    elif victim == "child":
        worker.kill_child()
    else:
        at = {(line.document, line.event): line.pid for line in fleet.ledger}
        for waiting in places.items():
            os.kill(at[waiting], signal.SIGKILL)
    for name, place in places.items():
        fleet.open(name, place)
    return start(fleet, batch) if victim == "supervisor" else worker


@pytest.mark.parametrize(
    "victim", ["child", *(pytest.param(other, marks=pytest.mark.long) for other in ("supervisor", "cell"))]
)
def test_killed_at_every_place(service: OpenAIServer, library: Fleet, web: Web, victim: str) -> None:
    """One book waits at each place when everything is killed that has it in hand."""
    places = [p for p in PLACES if p.startswith("extract")] if victim == "cell" else list(PLACES)
    entries: dict[str, AddOptions] = {}
    for number, place in enumerate(places):
        content = book(f"theme {number // 4}", place, CHAPTERS)
        entries[place] = {"data": content}
        if place.startswith("fetch"):
            web.page(f"/{place}", content, content_type="application/epub+zip")
            entries[place] = {"url": web.url(f"/{place}")}
        library.shut(place, place)
    worker = start(library)
    ids = add(library, entries, "struck")
    library.wait(lambda: all(library.reached(place, place) for place in places), "every place to be reached")
    kill(library, worker, victim, {place: place for place in places})
    wait_until_quiet(library, within_s=120)

    for place in places:
        assert runs(library, place) == expected_runs(place), place
        assert_told(library, ids[place], place, victim)
    assert library.tally().fenced == 0
    asked = Counter(tuple(request.body["input"]) for request in service.requests)
    in_hand = places.count("embed:item-1")
    assert sorted(asked.values()) == [1] * (len(asked) - in_hand) + [2] * in_hand
    assert Counter(web.paths) == Counter({"/fetch:begin": 1, "/fetch:end": 2} if victim != "cell" else {})
    assert_like_undisturbed(library, entries, ids)


def assert_told(fleet: Fleet, id_: str, place: str, victim: str) -> None:
    """Its history says what happened, and only the crash of its own process was charged to it."""
    follows = place.startswith("connect")
    history = [a for a in fleet.ask(fleet.app.attempts(id_, "struck")) if ("/" in a.job_key) == follows]
    first = ("retry", True, "crashed:SIGKILL") if victim == "cell" else ("later", False, "worker_lost")
    assert [(a.outcome, a.charged, a.error_code) for a in history] == [first, ("done", True, None)], place


def assert_like_undisturbed(fleet: Fleet, entries: dict[str, AddOptions], ids: dict[str, str]) -> None:
    """The same once more for another organisation, with nobody killed: nothing may differ."""
    calm = add(fleet, entries, "calm")
    wait_until_quiet(fleet, within_s=120)
    assert passages(fleet, "struck", ids) == passages(fleet, "calm", calm)
    connected = pairs(fleet, "struck", ids)
    assert connected == pytest.approx(pairs(fleet, "calm", calm), abs=1e-5)
    assert connected, "without connections this shows nothing of them"
    assert_sound(fleet)


def assert_survives_in_the_middle(fleet: Fleet, service: OpenAIServer, struck: dict[str, str]) -> None:
    """A book of five hundred chapters; each victim is killed when the book is at its place."""
    chapters, batch = 500, 64
    entries: dict[str, AddOptions] = {
        "long": {"data": book("long", "one", chapters)}, "short": {"data": book("long", "two", 20)},
    }  # fmt: skip
    for place in struck.values():
        fleet.shut("long", place)
    ids = add(fleet, entries, "struck")
    worker = start(fleet, batch)
    for victim, place in struck.items():
        fleet.wait(lambda place=place: fleet.reached("long", place), place)  # type: ignore[misc]
        worker = kill(fleet, worker, victim, {"long": place}, batch)
    wait_until_quiet(fleet, within_s=120)

    batches = -(-chapters // batch)
    assert runs(fleet, "long") == expected_runs(*struck.values(), chapters=chapters, batches=batches)
    asked = Counter(tuple(request.body["input"]) for request in service.requests)
    assert set(asked.values()) == {1}
    assert_like_undisturbed(fleet, entries, ids)


@pytest.mark.timeout(1_800)
def test_killed_in_the_middle_of_a_long_book(service: OpenAIServer, local_library: Fleet) -> None:
    """With one chapter in hand each time: that one is read again, and no other."""
    struck = {"child": "extract:item-150", "cell": "extract:item-350"}
    assert_survives_in_the_middle(local_library, service, struck)


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_killed_again_and_again_in_a_long_book(service: OpenAIServer, library: Fleet) -> None:
    struck = {"child": "extract:item-1", "cell": "extract:item-250", "supervisor": "extract:item-500"}
    assert_survives_in_the_middle(library, service, struck)
