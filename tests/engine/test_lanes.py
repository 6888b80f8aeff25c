"""Documents that must not run now: a dependency is down, a queue is paused, a limit is reached."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure import DependencyDown, Document, Perdure, Pipeline, Transient
from perdure.errors import InputInvalid, PipelineInvalid
from perdure.testing import Trial, drain, failing, tick, trial

HOUR_S = 3600


def two_stages() -> tuple[Pipeline, list[str]]:
    """extract, then embed, which needs openai; and what ran."""
    pipeline, ran = Pipeline("books"), []

    @pipeline.stage
    def extract(doc: Document) -> str:
        ran.append("extract")
        return doc.text

    @pipeline.stage(needs=["openai"])
    def embed(doc: Document, extract: str) -> str:
        ran.append("embed")
        return extract

    return pipeline, ran


def test_a_document_is_held_before_the_stage_that_needs_what_is_down(store_url: str) -> None:
    pipeline, ran = two_stages()
    with trial(pipeline, store=store_url) as app:
        app.hold("openai", "maintenance")
        id_ = app.add(text="a", pipeline=pipeline).id
        summary = drain(app)
        assert (summary.done, summary.held, summary.next_due) == (0, 1, None)
        status = app.status(id_)
        assert (status.state, status.stage, status.attempts_made) == ("held", "embed", 0)
        assert status.held_by == "openai"
        assert [d.id for d in app.documents(state="held")] == [id_]
        app.release("openai")
        assert app.status(id_).state == "queued"
        assert drain(app).done == 1
        assert ran == ["extract", "embed"]


def test_a_document_whose_first_stage_needs_it_never_starts(store_url: str) -> None:
    pipeline = Pipeline("books")

    @pipeline.stage(needs=["ocr", "openai"])
    def read(doc: Document) -> None: ...

    with trial(pipeline, store=store_url) as app:
        app.hold("ocr")
        app.hold("openai")
        id_ = app.add(text="a", pipeline=pipeline).id
        assert tick(app) == 0
        assert app.status(id_).state == "held"
        app.release("ocr")
        assert tick(app) == 0
        assert app.status(id_).state == "held"
        app.release("openai")
        assert drain(app).done == 1
        assert app.status(id_).claims == 1


def test_an_outage_of_any_length_kills_nothing_and_costs_no_attempt(store_url: str) -> None:
    pipeline, _ = two_stages()
    embed = pipeline.stages[1]
    with trial(pipeline, store=store_url) as app, failing(embed, *[DependencyDown("openai")] * 50):
        ids = [app.add(text=str(n), pipeline=pipeline).id for n in range(3)]
        app.hold("openai")
        for _ in range(20):
            drain(app)
            app.clock.advance(HOUR_S)
        assert {app.status(id_).state for id_ in ids} == {"held"}
        assert {app.status(id_).attempts_made for id_ in ids} == {0}


def test_dependency_down_holds_where_the_lane_agrees(store_url: str) -> None:
    pipeline, _ = two_stages()
    apps: list[Trial] = []

    with trial(pipeline, store=store_url) as app:
        apps.append(app)
        embed = pipeline.stages[1]
        original = embed.fn

        def goes_down(doc: Document, extract: str) -> str:
            app.hold("openai")
            raise DependencyDown("openai")

        embed.fn = goes_down
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).held == 1
        embed.fn = original
        assert (app.status(id_).state, app.status(id_).attempts_made) == ("held", 0)
        (attempt,) = app.attempts(id_)
        assert (attempt.outcome, attempt.charged, attempt.error_code) == ("hold", False, "dependency_down")
        app.release("openai")
        assert drain(app).done == 1


def test_dependency_down_on_its_own_word_is_tried_again_in_minutes_and_costs_nothing(store_url: str) -> None:
    pipeline, _ = two_stages()
    embed = pipeline.stages[1]
    with trial(pipeline, store=store_url) as app, failing(embed, *[DependencyDown("openai")] * 6) as runs:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).done == 1
        assert runs.count == 7
        waits_ms = [a.delay_ms for a in app.attempts(id_)[:-1]]
        assert all(wait is not None and 150_000 <= wait <= 300_000 for wait in waits_ms)
        assert [a.outcome for a in app.attempts(id_)] == ["later"] * 6 + ["done"]
        assert app.status(id_).attempts_made == 1


def test_dependency_down_on_its_own_word_has_no_bound(store_url: str) -> None:
    pipeline, _ = two_stages()
    pipeline.age_max_s = 3_600
    embed = pipeline.stages[1]
    word = DependencyDown("openai")
    with trial(pipeline, store=store_url) as app, failing(embed, *[word] * 150) as runs:
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).done == 1
        assert runs.count == 151
        assert app.status(id_).attempts_made == 1


def test_a_dependency_nobody_declared_loses_no_document(store_url: str) -> None:
    pipeline, ran = two_stages()
    extract = pipeline.stages[0]
    with trial(pipeline, store=store_url) as app, failing(extract, *[DependencyDown("storage")] * 2):
        id_ = app.add(text="a", pipeline=pipeline).id
        app.hold("storage", new=True)
        assert drain(app).held == 1
        assert app.status(id_).held_by == "storage"
        app.release("storage")
        assert drain(app).done == 1
        assert ran == ["extract", "embed"]


def test_a_paused_queue_is_left_alone_until_it_is_resumed(store_url: str) -> None:
    pipeline, ran = two_stages()
    with trial(pipeline, store=store_url) as app, failing(pipeline.stages[0], Transient("busy")):
        id_ = app.add(text="a", pipeline=pipeline).id
        tick(app)
        app.pause("documents")
        other = app.add(text="b", pipeline=pipeline).id
        summary = drain(app)
        assert (summary.done, summary.dead, ran) == (0, 0, [])
        assert [app.status(i).state for i in (id_, other)] == ["waiting", "queued"]
        app.resume("documents")
        assert drain(app).done == 2


def test_a_concurrency_key_bounds_how_many_run_at_once(store_url: str) -> None:
    pipeline = Pipeline("pages", concurrency_key=lambda doc: doc.meta.get("host"))

    @pipeline.stage
    def fetch(doc: Document) -> None: ...

    with trial(pipeline, store=store_url, concurrency=10) as app:
        app.limit("slow.example", concurrency=2, new=True)
        slow = [{"text": str(n), "meta": {"host": "slow.example"}} for n in range(7)]
        app.add_many(slow, pipeline=pipeline)  # type: ignore[arg-type]
        app.add_many([{"text": f"free {n}"} for n in range(3)], pipeline=pipeline)
        assert {s.state for s in app.documents()} == {"queued"}
        assert [tick(app) for _ in range(5)] == [5, 2, 2, 1, 0]


def test_a_document_that_is_past_the_stage_makes_room_under_its_key(store_url: str) -> None:
    """Each waits in its second stage until all have been through the first, one at a time."""
    pages = Pipeline(
        "pages", concurrency_key=lambda doc: "host", concurrency_per_key=1, concurrency_until="fetch"
    )
    at_once: list[int] = []

    @pages.stage
    async def fetch(doc: Document) -> int:
        at_once.append(1)
        await asyncio.sleep(0.02)
        at_once.append(-1)
        return 0

    @pages.stage
    async def read(doc: Document, fetch: int) -> int:
        async with asyncio.timeout(90):
            while at_once.count(-1) < 4:
                await asyncio.sleep(0.01)
        return 0

    with Perdure(store_url, pipelines=[pages], concurrency=4) as app:
        ids = [added.id for added in app.add_many([{"text": str(n)} for n in range(4)], pipeline=pages)]
        assert app.run_until_idle().done == 4
        assert at_once == [1, -1] * 4
        app.limit("host", concurrency=1, new=True)
        for id_ in ids:  # what does not fetch anew is not limited
            app.requeue(id_, from_stage="read")
        assert [limit.parked for limit in app.limits()] == [0]


def test_the_stage_until_which_a_limit_counts_must_be_there() -> None:
    pages = Pipeline("pages", concurrency_key=lambda doc: "host", concurrency_until="fetched")

    @pages.stage
    def fetch(doc: Document) -> None: ...

    with pytest.raises(PipelineInvalid, match="'fetched' is no stage"), trial(pages):
        pass


def test_every_key_has_the_pipelines_limit_unless_it_has_its_own(store_url: str) -> None:
    pipeline = Pipeline("pages", concurrency_key=lambda doc: doc.meta["host"], concurrency_per_key=2)

    @pipeline.stage
    def fetch(doc: Document) -> None: ...

    with trial(pipeline, store=store_url, concurrency=20) as app:
        app.limit("fast.example", concurrency=5, new=True)
        for host in ("a.example", "b.example", "fast.example"):
            pages = [{"text": f"{host} {n}", "meta": {"host": host}} for n in range(6)]
            app.add_many(pages, pipeline=pipeline)  # type: ignore[arg-type]
        assert [tick(app) for _ in range(4)] == [2 + 2 + 5, 2 + 2 + 1, 2 + 2, 0]


def test_a_requeued_document_is_still_limited(store_url: str) -> None:
    pipeline = Pipeline("pages", concurrency_key=lambda doc: "host")

    @pipeline.stage
    def fetch(doc: Document) -> None: ...

    with trial(pipeline, store=store_url, concurrency=10) as app:
        app.limit("host", concurrency=1, new=True)
        added = app.add_many([{"text": str(n)} for n in range(3)], pipeline=pipeline)
        assert drain(app).done == 3
        for one in added:
            app.requeue(one.id, from_stage="fetch")
        assert [tick(app) for _ in range(4)] == [1, 1, 1, 0]


@pytest.mark.parametrize("limits", [{"concurrency": 0}, {"rate_per_s": 0}, {"rate_per_s": float("nan")}])
def test_a_limit_that_lets_nothing_through_is_refused(limits: dict[str, Any]) -> None:
    pipeline, _ = two_stages()
    with trial(pipeline) as app:
        with pytest.raises(InputInvalid):
            app.limit("host", **limits, new=True)
        with pytest.raises(InputInvalid):
            app.weigh("org", 0)


def test_a_rate_limit_lets_documents_start_at_that_pace(store_url: str) -> None:
    pipeline = Pipeline("pages", concurrency_key=lambda doc: "host")

    @pipeline.stage
    def fetch(doc: Document) -> None: ...

    with trial(pipeline, store=store_url, concurrency=10) as app:
        app.limit("host", rate_per_s=2, new=True)
        app.add_many([{"text": str(n)} for n in range(8)], pipeline=pipeline)
        started = []
        for _ in range(6):
            started.append(tick(app))
            app.clock.advance(1)
        assert sum(started) == 8
        assert max(started) <= 2


def test_more_important_documents_of_an_organisation_run_first(store_url: str) -> None:
    pipeline, ran = Pipeline("books"), []

    @pipeline.stage
    def read(doc: Document) -> None:
        ran.append(doc.text)

    with trial(pipeline, store=store_url, concurrency=1) as app:
        for text, priority in (("low", -5), ("usual", 0), ("high", 5)):
            app.add(text=text, pipeline=pipeline, priority=priority)
        raised = app.add(text="raised", pipeline=pipeline, priority=-9).id
        assert app.raise_(raised) == "raised"
        drain(app)
        assert ran == ["raised", "high", "usual", "low"]


@pytest.mark.parametrize("weight", [1, 3])
def test_a_large_organisation_does_not_starve_a_small_one(store_url: str, weight: int) -> None:
    pipeline, ran = Pipeline("books"), []

    @pipeline.stage
    def read(doc: Document) -> None:
        ran.append(doc.org)

    with trial(pipeline, store=store_url, concurrency=1) as app:
        app.weigh("small", weight)
        app.add_many([{"text": str(n), "org": "large"} for n in range(40)], pipeline=pipeline)
        app.add_many([{"text": str(n), "org": "small"} for n in range(6)], pipeline=pipeline)
        while ran.count("small") < 6:
            assert tick(app) == 1
        assert ran.count("large") <= 6 / weight + 2


@pytest.mark.parametrize("name", ["openai~", "ocr+openai", "~"])
def test_a_name_that_would_be_another_lane_is_refused_wherever_it_enters(store_url: str, name: str) -> None:
    pipeline = Pipeline("books")
    with pytest.raises(PipelineInvalid, match="must be a small letter"):
        pipeline.stage(needs=[name])(lambda doc: None)
    told = [("openai",)]

    @pipeline.stage(attempts=1, needs=lambda: told[0])
    def read(doc: Document) -> None:
        raise DependencyDown(name, confirmed=True)

    with trial(pipeline, store=store_url) as app:
        with pytest.raises(InputInvalid, match="a small letter"):
            app.hold(name)
        with pytest.raises(InputInvalid, match="a small letter"):
            app.release(name)
        id_ = app.add(text="a", pipeline=pipeline).id
        assert drain(app).dead == 1
        assert "the name of a dependency must be a small letter" in str(app.status(id_).error_message)
        assert name not in {one.name for one in app.dependencies()}
        told[0] = (name,)
        with pytest.raises(PipelineInvalid, match="of a dependency must be"):
            app.add(text="b", pipeline=pipeline)


def test_a_limit_may_have_any_key(store_url: str) -> None:
    """Keys of limits are no part of a lane."""
    pipeline = Pipeline("books", concurrency_key=lambda doc: "host~")

    @pipeline.stage
    def read(doc: Document) -> None: ...

    with trial(pipeline, store=store_url) as app:
        app.limit("host~", concurrency=1, new=True)
        app.add(text="a", pipeline=pipeline)
        assert drain(app).done == 1
