"""Queues that have slots of their own in each worker."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from perdure import Document, Perdure, Pipeline
from perdure.engine.crew import groups
from perdure.errors import PipelineInvalid
from perdure.settings import Settings

letters, pictures = Pipeline("letters"), Pipeline("pictures", queue="pictures", concurrency=4)
now: Counter[str] = Counter()
most: Counter[str] = Counter()
together = threading.Condition()
SLOTS = {"letters": 2, "pictures": 4}


def counted(kind: str) -> None:
    with together:
        now[kind] += 1
        most[kind] = max(most[kind], now[kind])
        most["all"] = max(most["all"], now.total())
        together.notify_all()
        # nobody ends before as many run as may; were there more, they would be counted meanwhile
        assert together.wait_for(lambda: most[kind] >= SLOTS[kind], 90)
    time.sleep(0.05)
    with together:
        now[kind] -= 1


@letters.stage
def read(doc: Document) -> int:
    counted("letters")
    return 0


@pictures.stage
def look(doc: Document) -> int:
    counted("pictures")
    return 0


def test_each_has_its_own_slots(store_url: str) -> None:
    most.clear()
    with Perdure(store_url, pipelines=[letters, pictures], concurrency=2) as app:
        for n in range(12):
            app.add(text=f"{n}", pipeline=letters)
            app.add(text=f"{n}", pipeline=pictures)
        assert app.run_until_idle().done == 24
    assert (most["letters"], most["pictures"]) == (2, 4)
    assert most["all"] > 4


def test_one_that_waits_is_woken_though_the_other_is_busy(store_url: str) -> None:
    busy, woken = Pipeline("busy"), Pipeline("woken", queue="woken", concurrency=1)
    started, go = threading.Event(), threading.Event()

    @busy.stage
    def wait(doc: Document) -> None:
        started.set()
        assert go.wait(90)

    @woken.stage
    def end(doc: Document) -> None:
        go.set()

    patient = Settings(poll_s=300)  # only a wake-up comes in time
    with Perdure(store_url, pipelines=[busy, woken], concurrency=1, settings=patient) as app:
        app.add(text="busy", pipeline=busy)
        worker = threading.Thread(target=app.run_until_idle)
        worker.start()
        assert started.wait(90)
        id_ = app.add(text="now", pipeline=woken).id
        worker.join(90)
        assert app.status(id_).state == "done"


def test_groups() -> None:
    assert groups([letters, pictures], ("documents", "pictures"), 3) == [
        (("documents",), 3),
        (("pictures",), 4),
    ]
    assert groups([letters, pictures], ("pictures",), 3) == [(("pictures",), 4)]
    assert groups([letters], ("documents", "other"), 3) == [(("documents", "other"), 3)]
    with pytest.raises(PipelineInvalid, match="concurrency"):
        Pipeline("none", concurrency=0)
