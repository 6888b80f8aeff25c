"""Moving from Celery: tasks, retries, countdowns, chains and chords become stages, outcomes and children."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from perdure import Document, Gathered, Permanent, Pipeline, Result, RetryLater, Transient
from perdure.testing import drain, failing, tick, trial


def test_autoretry_with_backoff_cap_and_max_retries() -> None:
    """`autoretry_for=(Exception,), max_retries=4, retry_backoff=1, retry_backoff_max=3`: 5 executions here too."""
    tasks = Pipeline("tasks", attempts=5, backoff_s=1.0, backoff_cap_s=3.0)

    @tasks.stage
    def call(doc: Document) -> None:
        raise ConnectionResetError("the service hung up")

    with trial(tasks) as app:
        id_ = app.add(text="a", pipeline=tasks).id
        drain(app)
        attempts = app.attempts(id_)
        assert [attempt.delay_ms for attempt in attempts] == [1000, 2000, 3000, 3000, None]
        assert {attempt.error_type for attempt in attempts} == {"ConnectionResetError"}
        assert app.status(id_).state == "dead"


def test_a_countdown_is_a_delay_and_an_eta_a_time() -> None:
    tasks = Pipeline("tasks")

    @tasks.stage
    def run(doc: Document) -> str:
        return doc.text

    with trial(tasks) as app:
        eta = datetime.fromtimestamp(app.clock.now_ms() / 1000, UTC) + timedelta(hours=1)
        late = app.add(text="eta", run_at=eta, pipeline=tasks).id
        soon = app.add(text="countdown", delay_s=10, pipeline=tasks).id
        assert tick(app) == 0
        app.clock.advance(10)
        assert tick(app) == 1
        assert (app.status(soon).state, app.status(late).state) == ("done", "waiting")
        drain(app)
        assert app.status(late).state == "done"


def test_self_retry_costs_no_attempt_and_reject_is_permanent() -> None:
    tasks = Pipeline("tasks", attempts=1)
    waits = [RetryLater("not yet", delay_s=60), RetryLater("not yet", delay_s=60)]

    @tasks.stage
    def run(doc: Document) -> str:
        if doc.text == "bad":
            raise Permanent("rejected", "no attempt can help")
        return doc.text

    with trial(tasks) as app:
        with failing(tasks.stages[0], *waits):
            good = app.add(text="good", pipeline=tasks).id
            drain(app)
        bad = app.add(text="bad", pipeline=tasks).id
        drain(app)
        assert (app.status(good).state, app.status(good).attempts_made) == ("done", 1)
        assert (app.status(bad).state, app.status(bad).error_code) == ("dead", "rejected")


def test_a_chain_is_a_list_of_stages_and_goes_on_where_it_failed() -> None:
    """`chain(fetch.s(), parse.s(), save.s())`; a retry does not fetch again."""
    chain, ran = Pipeline("chain"), []

    @chain.stage
    def fetch(doc: Document) -> str:
        ran.append("fetch")
        return doc.text

    @chain.stage
    def parse(fetch: str) -> int:
        ran.append("parse")
        return len(fetch)

    @chain.stage
    def save(parse: int) -> int:
        ran.append("save")
        return parse

    with trial(chain) as app, failing(save, Transient("the database was busy")):
        id_ = app.add(text="four", pipeline=chain).id
        drain(app)
        assert ran == ["fetch", "parse", "save"]
        assert app.output(id_, "save") == 4


def test_a_chord_counts_members_that_failed_and_runs_its_callback_once() -> None:
    members, chord = Pipeline("members", attempts=1), Pipeline("chord")
    called: list[dict[str, int]] = []

    @members.stage
    def work(doc: Document) -> int:
        return int(doc.text)

    @chord.stage
    def header(doc: Document) -> Result[None]:
        return Result(None, spawn=[members.child(text, text=text) for text in doc.text.split()])

    @chord.stage
    def callback(header: None, gathered: Gathered) -> int:
        called.append(dict(gathered.documents["members"]))
        return sum(called[-1].values())

    with trial([chord, members]) as app:
        id_ = app.add(text="1 2 x", pipeline=chord).id
        drain(app)
        assert app.output(id_, "callback") == 3
        assert [(found.get("done"), found.get("dead")) for found in called] == [(2, 1)]


def test_a_link_error_runs_once_when_a_task_fails_for_good() -> None:
    tasks, told = Pipeline("tasks", attempts=2, backoff_s=0.0), []

    @tasks.stage
    def run(doc: Document) -> None:
        raise ValueError("no such luck")

    @tasks.on_dead
    def link_error(doc: Document, failure: object) -> None:
        told.append(doc.text)

    with trial(tasks) as app:
        app.add(text="a", pipeline=tasks)
        drain(app)
        assert told == ["a"]


@pytest.mark.parametrize(
    ("word", "state"), [("completed", "done"), ("failed", "dead"), ("pending", "queued")]
)
def test_words_of_a_result_backend_find_documents(word: str, state: str) -> None:
    tasks = Pipeline("tasks", attempts=1)

    @tasks.stage
    def run(doc: Document) -> None:
        if doc.text == "dead":
            raise ValueError

    with trial(tasks) as app:
        for text in ("done", "dead"):
            app.add(text=text, pipeline=tasks)
        drain(app)
        app.add(text="queued", pipeline=tasks)
        assert {one.state for one in app.documents(state=word)} == {state}
