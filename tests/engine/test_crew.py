"""Queues that have slots of their own in each worker."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from perdure import Document, Perdure, Pipeline
from perdure.engine.crew import groups
from perdure.errors import PipelineInvalid

letters, pictures = Pipeline("letters"), Pipeline("pictures", queue="pictures", concurrency=4)
now: Counter[str] = Counter()
most: Counter[str] = Counter()
lock = threading.Lock()


def counted(kind: str) -> None:
    with lock:
        now[kind] += 1
        most[kind] = max(most[kind], now[kind])
        most["all"] = max(most["all"], now.total())
    time.sleep(0.1)
    with lock:
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
    with Perdure(store_url, pipelines=[letters, pictures], concurrency=1) as app:
        for n in range(12):
            app.add(text=f"{n}", pipeline=letters)
        worker = threading.Thread(target=app.run_until_idle)
        worker.start()
        time.sleep(0.4)
        added_s = time.monotonic()
        id_ = app.add(text="now", pipeline=pictures).id
        while app.status(id_).state != "done":
            time.sleep(0.01)
        took_s = time.monotonic() - added_s
        worker.join()
        assert took_s < 0.9  # it did not wait for the next look, a second later


def test_groups() -> None:
    assert groups([letters, pictures], ("documents", "pictures"), 3) == [
        (("documents",), 3),
        (("pictures",), 4),
    ]
    assert groups([letters, pictures], ("pictures",), 3) == [(("pictures",), 4)]
    assert groups([letters], ("documents", "other"), 3) == [(("documents", "other"), 3)]
    with pytest.raises(PipelineInvalid, match="concurrency"):
        Pipeline("none", concurrency=0)
