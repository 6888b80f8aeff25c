"""Testing your own pipelines: no mocks of the engine, no sleeping."""

from __future__ import annotations

import pytest

from perdure import Document, Pipeline, Transient
from perdure.core.events import AttemptEnded
from perdure.testing import FakeClock, drain, failing, recording, tick, trial

letters = Pipeline("letters")


@letters.stage
def write(doc: Document) -> str:
    return doc.text.title()


@letters.stage(isolate=True)
def send(write: str) -> int:
    return len(write)


def test_a_stage_can_be_called_like_the_function_it_is() -> None:
    assert send("Hello") == 5


def test_an_hour_passes_when_you_say_so() -> None:
    clock = FakeClock()
    with trial(letters, clock=clock) as app:
        added = app.add(text="a", pipeline=letters, delay_s=3_600)
        assert tick(app) == 0
        clock.advance(3_600)
        assert tick(app) == 1
        assert app.status(added.id).state == "done"


def test_drain_goes_on_until_nothing_is_left_and_moves_the_clock() -> None:
    with trial(letters) as app:
        before_ms = app.clock.now_ms()
        app.add(text="a", pipeline=letters, delay_s=86_400)
        assert drain(app).done == 1
        assert app.clock.now_ms() - before_ms == 86_400_000


def test_a_stage_can_be_made_to_fail() -> None:
    with trial(letters) as app, failing(send, None, Transient("busy"), ValueError) as runs:
        app.add(text="a", pipeline=letters)
        app.add(text="b", pipeline=letters)
        assert drain(app).done == 2
        assert runs.count == 4
    assert send("Hello") == 5


def test_what_happened_can_be_recorded() -> None:
    with trial(letters) as app, failing(write, Transient("busy")):
        events = recording(app)
        app.add(text="a", pipeline=letters)
        drain(app)
        assert [event.outcome for event in events.of(AttemptEnded)] == ["retry", "done"]


def test_a_pipeline_that_never_ends_is_noticed() -> None:
    with trial(letters) as app, failing(send, *[Transient("busy")] * 100):
        app.add(text="a", pipeline=letters, attempts=100)
        with pytest.raises(AssertionError, match="still busy"):
            drain(app, max_rounds=20)


def test_a_trial_does_not_run_in_real_time() -> None:
    with trial(letters) as app:
        with pytest.raises(RuntimeError, match="use drain"):
            app.run_until_idle()
        with pytest.raises(RuntimeError, match="use drain"):
            app.run()
        with pytest.raises(ValueError, match="time does not go back"):
            app.clock.advance(-1)
