"""A service that goes away and comes back: documents wait without paying, one finds out, the others follow."""

from __future__ import annotations

import pytest

from perdure import DependencyDown, Document, Pipeline, RateLimited, RetryLater
from perdure.core.scope import WORK, Work
from perdure.errors import Rescheduled, StoreUnavailable
from perdure.store.base import BREAKER
from perdure.store.operations import Report
from perdure.testing import Trial, drain, failing, tick, trial


def embedding() -> tuple[Pipeline, list[Work]]:
    """extract, then embed and rank, which need openai; and the works of their runs."""
    pipeline, ran = Pipeline("books", attempts=3), []

    @pipeline.stage
    def extract(doc: Document) -> str:
        return doc.text

    @pipeline.stage(needs=["openai"])
    def embed(doc: Document, extract: str) -> str:
        work = WORK.get()
        assert work is not None
        ran.append(work)
        return extract

    @pipeline.stage(needs=["openai"])
    def rank(doc: Document, embed: str) -> str:
        return embed

    return pipeline, ran


def held_by(app: Trial) -> list[tuple[str, str]]:
    return app._call(
        app.service.store._rows("SELECT name, held_by FROM dependency WHERE down_ms IS NOT NULL")
    )


def passes(app: Trial, seconds: float) -> int:
    """Time passes, a sweep and a claim; how many documents ran."""
    app.clock.advance(seconds)
    return tick(app)


def test_a_confirmed_outage_takes_the_dependency_down_for_all_and_costs_nothing(store_url: str) -> None:
    pipeline, ran = embedding()
    down = DependencyDown("openai", "its breaker is open", confirmed=True)
    with trial(pipeline, store=store_url, concurrency=1) as app, failing(pipeline.stages[1], down):
        first = app.add(text="a", pipeline=pipeline).id
        tick(app)
        assert held_by(app) == [("openai", BREAKER)]
        second = app.add(text="b", pipeline=pipeline).id
        drain(app)
        assert [app.status(i).state for i in (first, second)] == ["held", "held"]
        assert [app.status(i).attempts_made for i in (first, second)] == [0, 0]
        (attempt,) = app.attempts(first)
        assert (attempt.outcome, attempt.charged, attempt.message) == ("hold", False, "its breaker is open")
        assert ran == []


def test_a_confirmed_outage_of_what_no_stage_declared_is_held_as_well(store_url: str) -> None:
    pipeline, _ = embedding()
    down = DependencyDown("storage", confirmed=True)
    with trial(pipeline, store=store_url) as app, failing(pipeline.stages[0], ExceptionGroup("x", [down])):
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).held == 1
        assert app.status(id_).held_by == "storage"
        assert passes(app, 5) == 1  # the probe, which tells by its end that all is well
        for _ in range(5):
            passes(app, 1)
        assert (app.status(id_).state, held_by(app)) == ("done", [])


def test_a_lent_document_knows_that_it_is_one_and_only_until_its_stage_is_saved(store_url: str) -> None:
    pipeline, ran = embedding()
    with trial(pipeline, store=store_url) as app:
        app._call(app.service.store.hold("openai", "away", BREAKER))
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).held == 1
        assert passes(app, 5) == 1
        assert [work.probe for work in ran] == ["openai"]
        # the next stage needs it too: held again, and lent again in its turn
        status = app.status(id_)
        assert (status.state, status.stage) == ("held", "rank")
        for _ in range(5):
            passes(app, 1)
        assert app.status(id_).state == "done"
        assert app.status(id_).attempts_made == 1
        assert held_by(app) == []


@pytest.mark.parametrize(("said", "ramps"), [(True, True), (False, False), (None, False)])
def test_what_the_calls_found_out_counts_more_than_how_the_stage_ended(
    store_url: str, said: bool | None, ramps: bool
) -> None:
    pipeline = Pipeline("books")

    @pipeline.stage(needs=["openai"])
    def embed(doc: Document) -> None:
        work = WORK.get()
        assert work is not None
        work.requests["openai"] = 1
        work.probed = said

    with trial(pipeline, store=store_url) as app:
        app._call(app.service.store.hold("openai", "away", BREAKER))
        app.add_many([{"text": "a"}, {"text": "b"}], pipeline=pipeline)
        assert passes(app, 5) == 1
        rows = app._call(app.service.store._rows("SELECT ramp_ms IS NOT NULL FROM dependency"))
        assert bool(rows[0][0]) is ramps


def test_where_calls_are_counted_a_stage_that_made_none_proves_nothing(store_url: str) -> None:
    pipeline, _ = embedding()
    with trial(pipeline, store=store_url) as app:
        store = app.service.store
        app._call(store.exchange("openai", Report(1, 5, 5, 0, 0, 0.0, 0.0, None)))
        app._call(store.hold("openai", "away", BREAKER))
        app.add_many([{"text": "a"}, {"text": "b"}], pipeline=pipeline)
        drain(app)
        assert passes(app, 5) == 1
        assert [d.state for d in app.dependencies()] == ["down"]


def test_a_document_that_nobody_here_can_process_does_not_stay_the_probe(store_url: str) -> None:
    pipeline, ran = embedding()
    foreign = Pipeline("films")

    @foreign.stage(needs=["openai"])
    def watch(doc: Document) -> None: ...

    with trial([pipeline, foreign], store=store_url) as app:
        app._call(app.service.store.hold("openai", "away", BREAKER))
        unknown = app.add(text="a", pipeline=foreign).id
        other = app.add(text="b", pipeline=pipeline).id
        drain(app)
        app.service.pipelines = {"books": pipeline}
        for _ in range(6):  # a minute: the worker asks for books alone, and the next probe is one of them
            passes(app, 10)
        assert (len(ran), app.status(other).state) == (1, "done")
        assert app.status(unknown).state == "queued"


def test_hundreds_that_find_out_at_once_take_it_down_once(store_url: str) -> None:
    pipeline, _ = embedding()
    down = [DependencyDown("openai", confirmed=True)] * 99
    with trial(pipeline, store=store_url, concurrency=60) as app, failing(pipeline.stages[1], *down):
        app.add_many([{"text": str(n)} for n in range(50)], pipeline=pipeline)
        tick(app)
        assert [d.held for d in app.dependencies()] == [50]
        assert len(app._call(app.service.store.acts())) == 1


def test_a_probe_that_fails_puts_the_next_one_off(store_url: str) -> None:
    pipeline, _ = embedding()
    down = [DependencyDown("openai")] * 2
    with trial(pipeline, store=store_url) as app, failing(pipeline.stages[1], *down):
        app._call(app.service.store.hold("openai", "away", BREAKER))
        id_ = app.add(text="a", pipeline=pipeline).id
        drain(app)
        ran_at = [second for second in range(1, 61) if passes(app, 1)]
        assert ran_at == [4, 9, 15, 16]
        assert (app.status(id_).state, app.status(id_).attempts_made) == ("done", 1)


def test_a_store_that_is_away_when_a_probe_ends_costs_the_document_nothing(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, _ = embedding()
    with trial(pipeline, store=store_url) as app:
        store = app.service.store
        app._call(store.hold("openai", "away", BREAKER))
        id_ = app.add(text="a", pipeline=pipeline).id
        drain(app)

        async def gone(*_: object) -> None:
            raise StoreUnavailable("gone")

        with monkeypatch.context() as patch:
            patch.setattr(store, "probed", gone)
            passes(app, 5)
        assert app.status(id_).stage == "rank"
        assert passes(app, 4) == 0
        assert passes(app, 1) == 1
        assert app.status(id_).state == "done"


# --- other ways to wait ----------------------------------------------------------------------


def test_a_rescheduled_document_says_so_and_pays(store_url: str) -> None:
    pipeline, _ = embedding()
    errors = [Rescheduled("openai failed 4 times"), Rescheduled("and again", retry_after_s=400)]
    with trial(pipeline, store=store_url) as app, failing(pipeline.stages[1], *errors):
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).done == 1
        assert [(a.outcome, a.charged, a.delay_ms, a.why, a.error_code) for a in app.attempts(id_)[:2]] == [
            ("rescheduled", True, 300_000, "rescheduled after attempt 1 of 3", "rescheduled"),
            ("rescheduled", True, 400_000, "rescheduled after attempt 2 of 3", "rescheduled"),
        ]
        assert app.status(id_).attempts_made == 3


def test_our_own_limiter_may_ask_to_wait_more_often_than_a_service(store_url: str) -> None:
    pipeline = Pipeline("books", postpones_max=3)

    @pipeline.stage
    def embed(doc: Document) -> None: ...

    ours = [RateLimited(delay_s=7.5, ours=True)] * 30
    with trial(pipeline, store=store_url) as app, failing(embed, *ours, *[RetryLater(delay_s=1)] * 4):
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).dead == 1
        attempts = app.attempts(id_)
        assert {a.delay_ms for a in attempts[:30]} == {7_500}
        assert (len(attempts), app.status(id_).error_code) == (34, "postpones_exhausted")
