"""Stages that another service does: handed over with their event, answered once, taken back when nobody answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from perdure import Document, Pipeline, Result
from perdure.core.events import JobRecovered, StageHandedOver, WriteFenced
from perdure.errors import DocumentUnknown, InputInvalid, PipelineInvalid
from perdure.store.records import OutboxEvent
from perdure.testing import Trial, drain, recording, tick, trial

archives = Pipeline("archives")


@archives.stage
def ingest(doc: Document) -> str:
    return doc.text.upper()


parse = archives.remote_stage(
    "parse", event="ArchiveIngested", done="JSONParsed", failed="JSONParseFailed", reads=["ingest"],
    output=dict[str, int],
)  # fmt: skip


@archives.stage
def count(parse: dict[str, int]) -> int:
    return parse["messages"] + 1


summaries = Pipeline("summaries", attempts=5)
summaries.remote_stage("summarize", event="SummarizationRequested", done="SummaryComplete", output=str)


def waiting(app: Trial) -> list[OutboxEvent]:
    """What a relay would publish now."""
    return app._call(app.service.store.outbox(100))


def publish(app: Trial) -> list[dict[str, Any]]:
    """What a relay does when the broker confirms everything: what the events say."""
    events = waiting(app)
    app._call(app.service.store.outbox_sent(events))
    return [json.loads(event.payload) for event in events]


def fenced(app: Trial) -> int:
    return app._call(app.service.store.tally()).fenced


def handed_over(app: Trial, pipeline: Pipeline = archives, text: str = "a") -> tuple[str, dict[str, Any]]:
    """A document at its remote stage, and the event that went out."""
    id_ = app.add(text=text, pipeline=pipeline).id
    tick(app)
    (event,) = publish(app)
    return id_, event


def test_a_document_is_handed_over_with_its_event_and_takes_no_slot(store_url: str) -> None:
    with trial(archives, store=store_url, concurrency=1) as app:
        events = recording(app)
        ids = [app.add(text=text, pipeline=archives, collection="archives").id for text in "ab"]
        assert drain(app).done == 0
        for id_ in ids:
            status = app.status(id_)
            assert (status.state, status.stage, status.remote) == ("running", "parse", True)
        assert len(events.of(StageHandedOver)) == 2
        first, second = waiting(app)
        assert (first.name, second.name) == ("ArchiveIngested", "ArchiveIngested")
        assert first.id != second.id
        said = json.loads(first.payload)
        assert said["document_id"] == ids[0]
        assert (said["org"], said["collection"], said["job"]) == ("default", "archives", f"doc-{ids[0]}")
        assert (said["stage"], said["attempt"], said["attempts_max"], said["generation"]) == (
            "parse",
            1,
            3,
            1,
        )
        assert said["inputs"] == {"ingest": {"value": "A"}}
        assert said["document"]["text"] == "a"
        assert said["reply"] == {
            "exchange": "perdure", "done": "JSONParsed", "failed": "JSONParseFailed", "beat": "beat.archives",
        }  # fmt: skip
        assert int(said["token"]) == first.token


def test_an_answer_is_saved_and_the_next_stage_runs_under_the_same_attempt(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_, event = handed_over(app)
        app.clock.advance(60)
        assert app.remote_finish(id_, event["token"], {"messages": 2}) == "saved"
        assert app.status(id_).state == "queued"
        assert drain(app).done == 1
        assert app.output(id_, "parse") == {"messages": 2}
        assert app.output(id_, "count") == 3
        history = [(a.outcome, a.attempt, a.charged, a.stage, a.worker == 0) for a in app.attempts(id_)]
        assert history == [("answered", 1, False, "parse", True), ("done", 1, True, "count", False)]
        assert waiting(app) == []


def test_nothing_is_under_way_when_only_a_service_can_make_room_under_a_limit(store_url: str) -> None:
    mail = Pipeline("mail", concurrency_key=lambda document: "server", concurrency_per_key=1)
    mail.remote_stage("ask", event="Asked", done="Answered", output=str)
    with trial(mail, store=store_url) as app:
        id_, event = handed_over(app, mail)
        app.add(text="b", pipeline=mail)
        assert not app._call(app.service.under_way(0))
        assert app.remote_finish(id_, event["token"], "yes") == "saved"
        assert app._call(app.service.under_way(0))
        drain(app)
        assert app.status(id_).state == "done"
        assert len(waiting(app)) == 1


def test_an_answer_of_the_stage_that_is_limited_leaves_the_limit(store_url: str) -> None:
    mail = Pipeline(
        "mail", concurrency_key=lambda document: "server", concurrency_per_key=1, concurrency_until="ask"
    )
    mail.remote_stage("ask", event="Asked", done="Answered", output=str)

    @mail.stage
    def keep(ask: str) -> str:
        return ask

    with trial(mail, store=store_url) as app:
        id_, event = handed_over(app, mail)
        assert app.remote_finish(id_, event["token"], "yes") == "saved"
        assert drain(app).done == 1
        assert app._call(app.service.store.counts()).queues == {}


def test_a_pipeline_may_end_elsewhere(store_url: str) -> None:
    with trial(summaries, store=store_url) as app:
        id_, event = handed_over(app, summaries)
        assert app.remote_finish(id_, int(event["token"]), "short") == "saved"
        status = app.status(id_)
        assert (status.state, app.output(id_, "summarize")) == ("done", "short")
        assert [a.outcome for a in app.attempts(id_)] == ["done"]
        assert app.remote_finish(id_, event["token"], "short") == "repeated"


def test_an_answer_counts_once_however_often_and_at_once_it_comes(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_, event = handed_over(app)

        async def many() -> list[str]:
            one = (app.service.remote_finish(id_, event["token"], {"messages": n}) for n in range(10))
            return list(await asyncio.gather(*one))

        answers = app._call(many())
        assert sorted(answers) == ["repeated"] * 9 + ["saved"]
        assert drain(app).done == 1
        assert app.output(id_, "parse") == {"messages": answers.index("saved")}
        assert app.remote_finish(id_, event["token"], {"messages": 99}) == "repeated"
        assert app.remote_fail(id_, event["token"]) == "refused: the lease passed on"
        assert app.output(id_, "parse") == {"messages": answers.index("saved")}


def test_a_lease_begins_when_the_event_is_published_and_not_before(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        events = recording(app)
        id_ = app.add(text="a", pipeline=archives).id
        tick(app)
        app.clock.advance(30 * 86_400)  # the broker is away for a month
        tick(app)
        assert app.status(id_).state == "running"
        (event,) = publish(app)
        app.clock.advance(899)
        tick(app)
        assert not events.of(JobRecovered)
        assert app.remote_finish(id_, event["token"], {"messages": 1}) == "saved"
        assert drain(app).done == 1


def test_an_event_that_is_published_twice_begins_one_lease(store_url: str) -> None:
    """Its relay died after the broker had confirmed it."""
    with trial(archives, store=store_url) as app:
        id_ = app.add(text="a", pipeline=archives).id
        tick(app)
        events = waiting(app)
        app._call(app.service.store.outbox_sent(events))
        app.clock.advance(600)
        app._call(app.service.store.outbox_sent(events))
        app.clock.advance(301)
        tick(app)
        assert app.status(id_).state == "waiting"


def test_what_nobody_answers_is_charged_and_dies_with_its_event(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_ = app.add(text="a", pipeline=archives, collection="archives").id
        names, ids, waits = [], set(), []
        for _ in range(3):
            tick(app)
            (event,) = waiting(app)
            ids.add(event.id)
            names.append(event.name)
            publish(app)
            app.clock.advance(901)
            before_ms = app.clock.now_ms()
            tick(app)
            if (due_ms := app.status(id_).run_at_ms) is not None:
                waits.append((due_ms - before_ms) // 1000)
                app.clock.advance(waits[-1])
        status = app.status(id_)
        assert (status.state, status.error_code, status.attempts_made) == ("dead", "unanswered", 3)
        assert waits == [300, 600]
        assert (names, len(ids)) == (["ArchiveIngested"] * 3, 3)
        (news,) = waiting(app)
        assert news.name == "JSONParseFailed"
        said = json.loads(news.payload)
        assert (said["final"], said["attempt"], said["collection"]) == (True, 3, "archives")
        assert said["error"]["code"] == "unanswered"
        assert (news.token, news.id in ids) == (None, False)


def test_five_attempts_wait_up_to_forty_minutes(store_url: str) -> None:
    with trial(summaries, store=store_url) as app:
        id_, event = handed_over(app, summaries)
        for wait_s in (300, 600, 1200, 2400):
            before_ms = app.clock.now_ms()
            assert app.remote_fail(id_, event["token"], code="busy", message="come back") == "failed"
            assert app.status(id_).run_at_ms == before_ms + 1000 * wait_s
            app.clock.advance(wait_s)
            tick(app)
            (event,) = publish(app)
        assert app.remote_fail(id_, event["token"], code="busy") == "failed"
        status = app.status(id_)
        assert (status.state, status.error_code, status.attempts_made) == ("dead", "busy", 5)
        assert [event.name for event in waiting(app)] == ["SummarizationRequestedFailed"]


def test_a_late_answer_is_refused_and_counted(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        events = recording(app)
        id_, late = handed_over(app)
        app.clock.advance(901)
        tick(app)
        assert fenced(app) == 0
        assert app.remote_finish(id_, late["token"], {"messages": 1}) == "refused: the lease passed on"
        assert app.remote_fail(id_, late["token"]) == "refused: the lease passed on"
        assert app.remote_beat(id_, late["token"]) == "refused: the lease passed on"
        assert (fenced(app), len(events.of(WriteFenced))) == (2, 2)
        app.clock.advance(300)
        tick(app)
        (event,) = publish(app)
        assert event["attempt"] == 2
        assert app.remote_finish(id_, late["token"], {"messages": 1}) == "refused: the lease passed on"
        assert app.remote_finish(id_, event["token"], {"messages": 2}) == "saved"
        assert drain(app).done == 1
        assert app.output(id_, "parse") == {"messages": 2}


def test_a_service_that_beats_keeps_its_job(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_, event = handed_over(app)
        for _ in range(5):
            app.clock.advance(800)
            assert app.remote_beat(id_, event["token"]) == "renewed"
            tick(app)
        assert app.status(id_).last_heartbeat_ms == app.clock.now_ms()
        assert app.remote_finish(id_, event["token"], {"messages": 1}) == "saved"


def test_an_event_may_wait_longer_for_a_service_than_that_may_work(store_url: str) -> None:
    slow = Pipeline("slow")
    slow.remote_stage("work", event="Wanted", done="Made", lease=10, wait=3600)
    with trial(slow, store=store_url) as app:
        id_, event = handed_over(app, slow)
        app.clock.advance(3599)
        tick(app)
        assert app.remote_beat(id_, event["token"]) == "renewed"
        app.clock.advance(11)
        tick(app)
        assert app.status(id_).state == "waiting"


def test_failures_are_decided_like_those_of_a_local_stage(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_, event = handed_over(app)
        before_ms = app.clock.now_ms()
        assert (
            app.remote_fail(id_, event["token"], code="busy", message="full", retry_after_s=1000) == "failed"
        )
        assert app.remote_fail(id_, event["token"], code="busy") == "repeated"
        assert app.status(id_).run_at_ms == before_ms + 1_000_000
        app.clock.advance(1000)
        tick(app)
        (event,) = publish(app)
        assert (
            app.remote_fail(id_, event["token"], code="corrupt", message="no mbox", retryable=False)
            == "failed"
        )
        status = app.status(id_)
        assert (status.state, status.error_code, status.error_message) == ("dead", "corrupt", "no mbox")
        assert [(a.outcome, a.error_code) for a in app.attempts(id_)] == [
            ("retry", "busy"),
            ("dead", "corrupt"),
        ]
        assert [event.name for event in waiting(app)] == ["JSONParseFailed"]


def test_an_output_of_another_type_is_a_failure(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_, event = handed_over(app)
        answer = app.remote_finish(id_, event["token"], {"messages": "many"})
        assert answer.startswith("failed: ")
        status = app.status(id_)
        assert (status.state, status.error_code) == ("dead", "output_invalid")
        assert [event.name for event in waiting(app)] == ["JSONParseFailed"]


def test_an_output_that_the_next_stage_cannot_read_is_a_failure(store_url: str) -> None:
    """Where its own type is open, those who read it say what it must be."""
    loose = Pipeline("loose")
    loose.remote_stage("parse", event="Asked", done="Told")

    @loose.stage
    def store(parse: dict[str, int]) -> int:
        return len(parse)

    with trial(loose, store=store_url) as app:
        id_, event = handed_over(app, loose)
        assert app.remote_finish(id_, event["token"], "words").startswith("failed: ")
        assert app.status(id_).error_code == "output_invalid"
        publish(app)  # that it is dead
        app.requeue(id_)
        tick(app)
        (event,) = publish(app)
        assert app.remote_finish(id_, event["token"], {"a": 1}) == "saved"
        assert drain(app).done == 1


def typed(kind: type) -> Pipeline:
    """A pipeline whose code reads the answer as this type."""
    pipeline = Pipeline("typed")
    pipeline.remote_stage("parse", event="Asked", done="Told")

    def store(parse: Any) -> int:
        return len(str(parse))

    store.__annotations__["parse"] = kind
    pipeline.stage(store)
    return pipeline


def test_a_service_is_not_asked_again_for_what_cannot_be_read(store_url: str) -> None:
    """The type was changed while documents were under way, and nobody raised the version."""
    with trial(typed(dict), store=store_url) as app:
        id_, event = handed_over(app, app.service.pipelines["typed"])
        assert app.remote_finish(id_, event["token"], {"a": 1}) == "saved"
    with trial(typed(int), store=store_url) as app:
        assert drain(app).dead == 1
        assert waiting(app) == []
        assert app.status(id_).error_code == "saved_unreadable"
        assert [a.outcome for a in app.attempts(id_)] == ["answered", "retry", "retry", "dead"]


def test_a_requeued_document_is_told_to_the_service_again(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_, first = handed_over(app)
        app.remote_fail(id_, first["token"], code="corrupt", retryable=False)
        publish(app)
        assert app.requeue(id_) == "requeued"
        tick(app)
        (event,) = waiting(app)
        said = json.loads(event.payload)
        assert (event.name, said["generation"], said["attempt"]) == ("ArchiveIngested", 2, 1)
        assert said["token"] != first["token"]
        publish(app)
        assert app.remote_finish(id_, said["token"], {"messages": 1}) == "saved"
        assert drain(app).done == 1
        # what is saved is taken up: nobody is asked again
        assert app.requeue(id_) == "requeued"
        assert drain(app).done == 1
        assert waiting(app) == []
        assert app.requeue(id_, from_stage="parse") == "requeued"
        tick(app)
        assert [event.name for event in waiting(app)] == ["ArchiveIngested"]


def test_a_cancelled_document_is_not_told_any_more_and_takes_no_answer(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_ = app.add(text="a", pipeline=archives).id
        tick(app)
        token = waiting(app)[0].token
        assert app.cancel(id_) == "cancelled"
        assert waiting(app) == []
        assert token is not None
        assert app.remote_finish(id_, token, {"messages": 1}) == "refused: the lease passed on"
        assert app.status(id_).state == "cancelled"


def test_the_death_of_the_worker_that_handed_it_over_changes_nothing(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_, event = handed_over(app)  # its worker is gone by now
        store = app.service.store
        assert all(worker.running == 0 for worker in app._call(store.workers()))
        app.clock.advance(60)
        tick(app)
        assert app.status(id_).remote
        assert app.remote_finish(id_, event["token"], {"messages": 1}) == "saved"


def test_a_contract_holds_elsewhere_too(store_url: str) -> None:
    checked = Pipeline("checked")

    @checked.stage
    def expect(doc: Document) -> int:
        return len(doc.text)

    made = checked.remote_stage("make", event="Wanted", done="Made", output=list[str], backoff_s=0)

    @made.ensure
    def complete(doc: Document, expect: int, make: list[str]) -> bool:
        return len(make) == expect == doc.size

    with trial(checked, store=store_url) as app:
        id_, event = handed_over(app, checked, "abc")
        assert app.remote_finish(id_, event["token"], ["a"]).startswith("failed: contract complete")
        assert app.remote_finish(id_, event["token"], ["a"]) == "refused: the lease passed on"
        tick(app)
        (event,) = publish(app)
        assert (event["attempt"], app.remote_finish(id_, event["token"], ["a", "b", "c"])) == (2, "saved")
        assert app.status(id_).state == "done"


def test_events_of_a_document_go_out_one_after_the_other(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_, event = handed_over(app)
        app.remote_fail(id_, event["token"], code="corrupt", retryable=False)
        app.requeue(id_)
        tick(app)
        assert [event.name for event in waiting(app)] == ["JSONParseFailed"]
        publish(app)
        assert [event.name for event in waiting(app)] == ["ArchiveIngested"]


def test_what_no_broker_takes_is_tried_again_later_and_told(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        app.add(text="a", pipeline=archives)
        tick(app)
        (event,) = waiting(app)
        store = app.service.store
        app._call(store.outbox_failed([(event, 60_000, "nobody listens\0")]))
        assert waiting(app) == []
        state = app._call(store.outbox_state())
        assert (state.waiting, state.since_ms) == (1, event.created_ms)
        assert state.reason is not None
        assert state.reason.startswith("nobody listens")
        app.clock.advance(61)
        assert [again.tries for again in waiting(app)] == [1]
        assert app._call(store.outbox_late_ms()) == 1000
        publish(app)
        assert app._call(store.outbox_state()).waiting == 0


def test_a_large_input_is_named_and_not_sent(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        text = "x" * 200_000
        _, event = handed_over(app, text=text)
        assert "text" not in event["document"]
        assert event["document"]["blob"] == event["document"]["content_hash"]
        blob = event["inputs"]["ingest"]["blob"]
        assert app._call(app.service.blobs.get(blob)) == json.dumps(text.upper()).encode()


def test_an_answer_must_say_whom_it_means(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_, _ = handed_over(app)
        for token in ("", "x", 0, -1, 2**63):
            with pytest.raises(InputInvalid):
                app.remote_finish(id_, token, {})
        with pytest.raises(DocumentUnknown):
            app.remote_finish("nobody", 5, {})
        with pytest.raises(InputInvalid):
            app.remote_fail(id_, 5, code="two words")


def test_what_begins_elsewhere_goes_on_here(store_url: str) -> None:
    """Nothing was saved before the answer, which alone says that there is something to take up."""
    begun = Pipeline("begun")
    begun.remote_stage("fetch", event="Wanted", done="Fetched", output=str)

    @begun.stage(lease_s=77)
    def read(fetch: str) -> int:
        return len(fetch)

    with trial(begun, store=store_url) as app:
        id_, event = handed_over(app, begun)
        assert app.remote_finish(id_, event["token"], "text") == "saved"
        job = app._call(app.service.store.job_at("default", id_, f"doc-{id_}"))
        assert job is not None
        assert job.lease_ms == 77_000
        assert drain(app).done == 1
        assert (app.output(id_, "read"), waiting(app)) == (4, [])


def test_other_content_withdraws_the_event_of_the_old_but_not_of_its_follow_ups(store_url: str) -> None:
    told = Pipeline("told")
    told.remote_stage("tell", event="Stored", done="Told", output=str)
    kept = Pipeline("kept", then=[told])

    @kept.stage
    def keep(doc: Document) -> Result[int]:
        return Result(doc.size, spawn=[told.job(doc)])

    again = kept.remote_stage("check", event="Kept", done="Checked", output=str)
    assert again.failed == "KeptFailed"
    with trial(kept, store=store_url) as app:
        id_ = app.add(text="a", key="k", pipeline=kept).id
        tick(app)
        (check,) = publish(app)
        assert app.remote_finish(id_, check["token"], "fine") == "saved"
        tick(app)  # the follow-up is handed over, and its event waits
        assert app.add(text="b", key="k", pipeline=kept).answer == "refreshed"
        tick(app)  # so does the new content
        assert app.add(text="c", key="k", pipeline=kept).answer == "refreshed"
        assert [event.name for event in waiting(app)] == ["Stored"]
        (stored,) = publish(app)
        answer = app.remote_finish(id_, stored["token"], "told", job=stored["job"])
        assert (answer, stored["generation"]) == ("saved", 1)


def test_an_answer_to_a_stage_that_is_gone_lets_the_document_go_on(store_url: str) -> None:
    before, now = Pipeline("evolving"), Pipeline("evolving")
    before.remote_stage("old", event="Wanted", done="Made")

    @before.stage
    @now.stage
    def last(doc: Document) -> str:
        return doc.text

    with trial(before, store=store_url) as app:
        id_, event = handed_over(app, before)
    with trial(now, store=store_url) as app:
        assert app.remote_finish(id_, event["token"], "anything") == "saved"
        assert drain(app).done == 1


def test_another_version_of_the_stage_asks_again(store_url: str) -> None:
    before, now = Pipeline("evolving"), Pipeline("evolving")
    before.remote_stage("make", event="Wanted", done="Made", version=1)
    now.remote_stage("make", event="Wanted", done="Made", version=2)

    @before.stage
    @now.stage
    def last(make: str) -> str:
        return make

    with trial(before, store=store_url) as app:
        id_, event = handed_over(app, before)
    with trial(now, store=store_url) as app:
        assert app.remote_finish(id_, event["token"], "old") == "saved"
        tick(app)
        (event,) = publish(app)
        assert app.remote_finish(id_, event["token"], "new") == "saved"
        assert drain(app).done == 1
        assert (app.output(id_, "last"), app.status(id_).attempts_made) == ("new", 1)


def test_an_answer_that_cannot_be_written_now_is_not_a_failure(store_url: str, monkeypatch: Any) -> None:
    with trial(archives, store=store_url) as app:
        id_, event = handed_over(app)

        async def away(_: bytes) -> str:
            raise OSError("no space left on device")

        with monkeypatch.context() as broken:
            broken.setattr(app.service.blobs, "put", away)
            with pytest.raises(OSError, match="no space"):
                app.remote_finish(id_, event["token"], {str(n): n for n in range(5_000)})
        assert app.status(id_).remote
        assert app.remote_finish(id_, event["token"], {"messages": 1}) == "saved"


def test_the_token_of_a_worker_of_ours_is_nobody_elses(store_url: str) -> None:
    with trial(archives, store=store_url) as app:
        id_ = app.add(text="a", pipeline=archives).id
        store = app.service.store
        from perdure.store.operations import Claim

        app._call(store.claim(Claim(7, ("documents",), 11, 1)))
        assert app.remote_finish(id_, 11, {"messages": 1}) == "refused: the lease passed on"
        assert app.remote_fail(id_, 11) == "refused: the lease passed on"
        assert app.remote_beat(id_, 11) == "refused: the lease passed on"
        assert (app.status(id_).state, app.status(id_).remote) == ("running", False)


@pytest.mark.parametrize(
    "options",
    [
        {"event": "", "done": "B"}, {"event": "A#", "done": "B"}, {"event": "A", "done": "B", "failed": "B"},
        {"event": "A", "done": "B", "reads": ["nothing"]}, {"event": "A", "done": "B", "lease": 0},
        {"event": "A", "done": "B", "attempts": 0}, {"event": "A" * 201, "done": "B"},
    ],
)  # fmt: skip
def test_a_definition_that_does_not_fit_is_refused(options: Any) -> None:
    with pytest.raises(PipelineInvalid):
        Pipeline("wrong").remote_stage("work", **options)


def test_two_stages_of_one_name_are_refused() -> None:
    twice = Pipeline("twice")
    twice.remote_stage("work", event="A", done="B")
    with pytest.raises(PipelineInvalid):
        twice.remote_stage("work", event="C", done="D")
    with pytest.raises(PipelineInvalid):
        twice.stages[0](doc=None)
