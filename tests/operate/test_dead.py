"""What operators do about dead documents: find them, see why, run them again, take them away."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from perdure import Context, Document, Permanent, Pipeline
from perdure.core.events import StageSaved
from perdure.core.outcome import Failure
from perdure.core.token import new_token
from perdure.errors import DocumentUnknown, InputInvalid, MoveForbidden, StoreUnavailable
from perdure.operate.choosing import age_ms, names_of
from perdure.operate.requeue import RequeueOptions
from perdure.store.operations import Claim
from perdure.testing import Trial, drain, recording, trial

#: What is wrong, by the text of a document; a test repairs it by taking it out.
WRONG = {"404": Permanent("http_404", "nothing at https://a.example/1"), "bad": ValueError("cannot be read")}


def books(wrong: dict[str, Exception] | None = None, **options: Any) -> Pipeline:
    """Reads, and then parses what can be parsed."""
    made = Pipeline("books", backoff_s=0, **({"attempts": 2} | options))
    failing = WRONG if wrong is None else wrong

    @made.stage
    def read(doc: Document) -> str:
        return doc.text

    @made.stage
    def parse(read: str) -> int:
        for word, error in failing.items():
            if word in read:
                raise error
        return len(read)

    return made


@contextmanager
def opened(store: str, wrong: dict[str, Exception] | None = None, **options: Any) -> Iterator[Trial]:
    with trial(books(wrong, **options), store=store) as app:
        yield app


def added(app: Trial, *texts: str, **options: Any) -> list[str]:
    """Documents that have been run to their end."""
    ids = [app.add(text=text, pipeline="books", **options).id for text in texts]
    drain(app)
    return ids


def test_dead_documents_are_listed_by_what_they_are_and_why_they_died(store_url: str) -> None:
    with opened(store_url) as app:
        good, gone, bad = added(app, "good", "a 404", "a bad one", collection="archives")
        app.clock.advance(3_600)
        (late,) = added(app, "another bad one", org="zeta")
        assert [one.id for one in app.dead().documents] == [late, bad, gone]
        record = app.dead(code="http_404").documents[0]
        assert (record.id, record.stage, record.error_type, record.attempts) == (
            gone,
            "parse",
            "Permanent",
            1,
        )
        assert (record.collection, record.message) == ("archives", "nothing at https://a.example/1")
        for which, expected in (
            ({"collection": "archives"}, {gone, bad}), ({"org": "zeta"}, {late}), ({"stage": "read"}, set()),
            ({"error_type": "ValueError"}, {bad, late}), ({"pipeline": "books"}, {gone, bad, late}),
            ({"failed": "archives.failed"}, {gone, bad}), ({"failed": "parse.failed"}, {gone, bad, late}),
            ({"failed": "books"}, {gone, bad, late}), ({"failed": "chunking.failed"}, set()),
            ({"older_than": "30m"}, {gone, bad}), ({"newer_than": "30m"}, {late}),
            ({"queue": "documents"}, {gone, bad, late}), ({"queue": "images"}, set()),
            ({"group": record.fingerprint[:5]}, {gone}), ({"collection": "archives", "code": "unexpected"}, {bad}),
        ):  # fmt: skip
            found = {one.id for one in app.dead(**which).documents}  # type: ignore[arg-type]
            assert found == expected, which
        assert good not in {one.id for one in app.dead().documents}


def test_pages_neither_repeat_nor_leave_out_while_documents_die_and_go(store_url: str) -> None:
    with opened(store_url) as app:
        ids = added(app, *(f"bad {n}" for n in range(7)))
        first = app.dead(limit=3)
        added(app, "bad, and late")
        app.requeue_dead([first.documents[-1].id, first.documents[0].id])
        second = app.dead(limit=3, after=first.after)
        third = app.dead(limit=3, after=second.after)
        seen = [one.id for page in (first, second, third) for one in page.documents]
        assert sorted(seen) == sorted(ids)
        assert third.after is None


def test_groups_say_how_many_since_when_and_what_to_do(store_url: str) -> None:
    with opened(store_url) as app:
        added(app, *(f"bad {n}" for n in range(3)), collection="a")
        app.clock.advance(60)
        *_, last = added(app, "bad again", collection="b")
        added(app, "404")
        bad, gone = app.groups()
        assert (bad.count, bad.stages, bad.collections, bad.code) == (4, ["parse"], ["a", "b"], "unexpected")
        assert (bad.example, bad.message, bad.last_ms - bad.first_ms) == (last, "cannot be read", 60_000)
        assert (bad.action, gone.action, gone.count) == ("look", "fix", 1)
        assert [group.fingerprint for group in app.groups(code="http_404")] == [gone.fingerprint]
        app.hold("nothing", new=True)  # what is down and not needed changes nothing
        assert app.groups()[0].action == "look"


def test_a_group_whose_service_is_away_waits(store_url: str) -> None:
    made = Pipeline("asking", attempts=1)

    @made.stage(needs=["openai"])
    def ask(doc: Document) -> str:
        raise ValueError("no answer")

    with trial(made, store=store_url) as app:
        id_ = app.add(text="a", pipeline=made).id
        drain(app)
        app.hold("openai")
        assert (app.groups()[0].action, app.inspect(id_).action) == ("wait", "wait")
        app.release("openai")
        assert app.groups()[0].action == "look"


def test_one_is_inspected_with_all_there_is(store_url: str) -> None:
    with opened(store_url) as app:
        good, bad = added(app, "good", "bad", meta={"from": "ann"})
        seen = app.inspect(bad)
        assert (seen.meta, seen.saved, seen.action) == ({"from": "ann"}, ["read"], "look")
        assert [attempt.outcome for attempt in seen.attempts] == ["retry", "dead"]
        with pytest.raises(MoveForbidden, match="done, not dead"):
            app.inspect(good)
        with pytest.raises(DocumentUnknown):
            app.inspect("nobody")


def test_what_begins_anew_stands_before_its_first_stage_and_under_its_limit(store_url: str) -> None:
    limited: dict[str, Any] = {"concurrency_key": lambda doc: "ours", "concurrency_until": "read"}
    with opened(store_url, **limited) as app:
        resumed, anew = added(app, "bad", "bad too")
        app.limit("ours", concurrency=1, new=True)
        app.requeue_dead([resumed])
        assert (app.status(resumed).stage, app.limits("ours")[0].used) == ("parse", 0)
        app.requeue_dead([anew], how={"fresh": True})
        assert (app.status(anew).stage, app.limits("ours")[0].used) == ("read", 1)


def test_a_requeue_goes_on_where_it_died_or_begins_anew(store_url: str) -> None:
    with opened(store_url) as app:
        resumed, anew = added(app, "bad", "bad too")
    with opened(store_url, wrong={}) as app:
        events = recording(app)
        told = app.requeue_dead([resumed], how={"reason": "repaired"})
        assert (told.requeued, told.answers) == (1, ((resumed, "requeued"),))
        drain(app)
        assert [event.stage for event in events.of(StageSaved)] == ["parse"]
        events.clear()
        assert app.requeue_dead([anew], how={"fresh": True}).requeued == 1
        drain(app)
        assert [event.stage for event in events.of(StageSaved)] == ["read", "parse"]
        assert {app.status(id_).state for id_ in (resumed, anew)} == {"done"}
        assert app.status(resumed).attempts_made == 1
        again = app.requeue_dead([resumed, "nobody"])
        assert (again.requeued, again.refused) == (0, 2)
        assert dict(again.answers)[resumed] == "refused: the document is done, not dead"
        acts = app.acts(verb="requeue")
        assert any((act.target, act.reason) == (resumed, "repaired") for act in acts)
        assert any(act.target == f"dead: {resumed}: 1 requeued, 0 refused" for act in acts)


def test_a_budget_of_its_own_stays_and_that_of_the_pipeline_is_the_present_one(store_url: str) -> None:
    with opened(store_url) as app:
        plain, own = added(app, "bad"), added(app, "bad too", attempts=4)
    with opened(store_url, attempts=3) as app:
        app.requeue_dead()
        drain(app)
        assert [app.status(*ids).attempts_made for ids in (plain, own)] == [3, 4]


def test_documents_of_a_pipeline_that_is_not_at_hand_go_on_but_do_not_begin_anew(store_url: str) -> None:
    with opened(store_url) as app:
        added(app, "bad")
    other = Pipeline("other")

    @other.stage
    def only(doc: Document) -> None: ...

    with trial(other, store=store_url) as app:
        (answer,) = app.requeue_dead(how={"fresh": True}).answers
        assert answer[1].startswith("refused: its pipeline books is not known here")
        assert app.requeue_dead().requeued == 1
    with opened(store_url, wrong={}) as app:
        assert drain(app).done == 1


def test_a_dry_run_changes_nothing(store_url: str) -> None:
    with opened(store_url) as app:
        ids = added(app, "bad", "bad too")
        before = [app.status(id_) for id_ in ids], app.acts()
        told = app.requeue_dead(how={"dry_run": True, "canary": 1})
        assert (told.found, told.requeued) == (2, 0)
        assert app.purge(export=None, dry_run=True).found == 2
        assert ([app.status(id_) for id_ in ids], app.acts()) == before


@contextmanager
def working(app: Trial) -> Iterator[None]:
    """Somebody runs documents meanwhile."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            drain(app)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()


def test_the_rest_follows_when_the_canaries_are_well(store_url: str) -> None:
    with opened(store_url) as app:
        added(app, *(f"bad {n}" for n in range(6)), "404")
    with opened(store_url, wrong={}) as app, working(app):
        told = app.requeue_dead(how={"canary": 2, "rate": 50})
        assert told.canary is not None
        assert (told.canary.sent, told.canary.done, told.stopped) == (2, 2, "")
        assert (told.found, told.requeued, len(told.answers)) == (7, 7, 7)


def test_the_rest_stays_when_the_canaries_die(store_url: str) -> None:
    only_404 = {"404": WRONG["404"]}
    with opened(store_url) as app:
        added(app, *(f"bad {n}" for n in range(4)), "404")
    with opened(store_url, wrong=only_404) as app:
        with working(app):
            told = app.requeue_dead(how={"canary": 2})  # one of each cause
            assert told.canary is not None
            assert (told.canary.sent, told.canary.done, told.canary.dead) == (2, 1, 1)
            assert told.stopped.startswith("1 of 2 canaries are done, and 100% are asked for; the other 3")
            assert told.requeued == 2
            enough = app.requeue_dead(how={"canary": 2, "canary_ok": 0.5})
            assert (enough.requeued, enough.stopped) == (4, "")
        drain(app)
        assert [one.error_code for one in app.dead().documents] == ["http_404"]  # once, not again and again


def test_nobody_works_and_so_nothing_follows(store_url: str) -> None:
    with opened(store_url) as app:
        added(app, "bad", "bad too")
        told = app.requeue_dead(how={"canary": 1, "canary_wait_s": 0.3})
        assert "1 of 1 canaries have not ended after 0.3 s (does a worker run?" in told.stopped
        assert (told.requeued, app._call(app.service.store.tally()).documents["dead"]) == (1, 1)


def test_canaries_are_of_those_that_were_named(store_url: str) -> None:
    with opened(store_url) as app:
        (id_, other) = added(app, "bad", "bad too")
        told = app.requeue_dead(["nobody"], how={"canary": 5})
        assert (told.requeued, told.refused) == (0, 1)
        app.requeue_dead([id_], how={"canary": 5, "canary_wait_s": 0.1})
        assert [one.id for one in app.dead().documents] == [other]


def test_what_was_interrupted_goes_on_with_those_that_are_left(store_url: str) -> None:
    async def first(app: Trial) -> None:
        doing = app.service.requeuing(await app.service.choose(), RequeueOptions(rate=4))
        async for told in doing:
            if told.requeued:
                break
        await doing.aclose()

    with opened(store_url) as app:
        ids = added(app, *(f"bad {n}" for n in range(4)))
        asyncio.run_coroutine_threadsafe(first(app), app._portal._loop).result()  # type: ignore[union-attr]
        told = app.requeue_dead()
        assert (told.found, told.requeued, told.refused) == (3, 3, 0)
        assert {app.status(id_).generation for id_ in ids} == {2}
        acts = [act.target for act in app.acts()]
        assert "dead: all dead documents: 1 requeued, 0 refused" in acts


def test_a_limit_and_a_rate(store_url: str) -> None:
    with opened(store_url) as app:
        added(app, *(f"bad {n}" for n in range(5)))
        told = app.requeue_dead(how={"limit": 3, "rate": 1_000})
        assert (told.found, told.requeued) == (3, 3)
        assert len(app.dead().documents) == 2


def test_purged_is_gone_and_can_be_brought_back(store_url: str, tmp_path: Path) -> None:
    with opened(store_url) as app:
        bad, gone = added(app, "bad", "404")
        file = tmp_path / "dead.jsonl.gz"
        told = app.purge(export=file, code="http_404", reason="nobody asked")
        assert (told.found, told.exported, told.purged, told.refused) == (1, 1, 1, 0)
        with pytest.raises(DocumentUnknown):
            app.status(gone)
        assert app._call(app.service.store.counted("purged")) == 1
        assert app.status(bad).state == "dead"
        back = app.import_(file)
        assert (back.lines, back.imported, back.answers[0].id) == (1, 1, gone)
        assert app.import_(file).exists == 1
        assert app.inspect(gone).document.error_code == "http_404"
        verbs = [(act.verb, act.reason) for act in app.acts()]
        assert ("purge", "nobody asked") in verbs
        assert ("import", "") in verbs
        assert [act.verb for act in app.acts(target=gone)] == ["import", "purge"]
    with opened(store_url, wrong={}) as app:
        app.requeue_dead([gone])
        drain(app)
        assert app.output(gone, "parse") == 3


def test_a_purge_whose_reply_is_lost_is_in_the_trail_and_loses_nothing(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(store_url) as app:
        (gone,) = added(app, "404")
        driver = app.service.store.driver
        write = driver.write
        deletes = app.service.store.purge

        async def lost(*given: Any, **options: Any) -> Any:
            async def broken(steps: Any) -> Any:
                await write(steps)
                raise StoreUnavailable("the connection was lost after COMMIT")

            with monkeypatch.context() as patch:
                patch.setattr(driver, "write", broken)
                return await deletes(*given, **options)

        monkeypatch.setattr(app.service.store, "purge", lost)
        file = tmp_path / "dead.jsonl.gz"
        with pytest.raises(StoreUnavailable):
            app.purge(export=file, reason="nobody asked", who="ann")
        (act,) = app.acts(target=gone)
        assert (act.who, act.verb, act.reason) == ("ann", "purge", "nobody asked")
        assert app.import_(file).imported == 1


def test_lines_are_as_many_as_documents(store_url: str, tmp_path: Path) -> None:
    with opened(store_url) as app:
        added(app, *(f"bad {n}" for n in range(65)))
        told = app.export(tmp_path / "dead.jsonl")
        assert (told.found, told.exported) == (65, 65)
        assert len((tmp_path / "dead.jsonl").read_text().splitlines()) == 65


def test_mistakes(store_url: str, tmp_path: Path) -> None:
    with opened(store_url) as app:
        (id_,) = added(app, "bad")
        prints = app.dead().documents[0].fingerprint
        for code, which in (
            ("group_unknown", {"group": "zz"}), ("group_unknown", {"group": "0" if prints[0] != "0" else "1"}),
            ("where_unknown", {"colour": "red"}), ("age_invalid", {"older_than": "2 fortnights"}),
        ):  # fmt: skip
            with pytest.raises(InputInvalid) as refused:
                app.dead(**which)  # type: ignore[arg-type]
            assert refused.value.code == code
        with pytest.raises(InputInvalid, match="no place"):
            app.dead(after="???")
        with pytest.raises(InputInvalid, match="not both"):
            app.requeue_dead([id_], code="unexpected")
        with pytest.raises(InputInvalid, match="standard output"):
            app.purge(export="-")
        wrong: list[RequeueOptions] = [{"canary_ok": 1.5}, {"canary": -1}, {"rate": 0}, {"limit": 0}]
        for how in wrong:
            with pytest.raises(InputInvalid):
                app.requeue_dead(how=how)


def test_several_groups_may_begin_alike(store_url: str) -> None:
    wrong: dict[str, Exception] = {f"w{chr(97 + n)}": ValueError(f"cause {chr(97 + n)}") for n in range(17)}
    with opened(store_url, wrong=wrong, attempts=1) as app:
        for text in wrong:
            added(app, text, org=text)
        found = sorted((one.fingerprint, one.org) for one in app.dead().documents)
        alike, org = next((a[0][0], a[1]) for a, b in pairwise(found) if a[0][0] == b[0][0])
        with pytest.raises(InputInvalid) as refused:
            app.dead(group=alike)
        assert refused.value.code == "group_ambiguous"
        assert [one.org for one in app.dead(group=alike, org=org).documents] == [org], (
            "others are not in the way"
        )


AGES: dict[str | float, int] = {
    "90s": 90_000, "30m": 1_800_000, "2h": 7_200_000, "3d": 259_200_000, "1w": 604_800_000, "1.5h": 5_400_000,
    "45": 45_000, 2.5: 2_500,
}  # fmt: skip


@pytest.mark.parametrize("age", AGES)
def test_ages(age: str | float) -> None:
    assert age_ms(age) == AGES[age]


def test_names_of_what_failed() -> None:
    assert names_of("archives.failed") == ("archives",)
    assert names_of("chunking.failed") == ("chunking", "chunk")
    with pytest.raises(InputInvalid):
        names_of(".failed")


def test_the_end_is_written_at_once_whoever_writes_it(store_url: str) -> None:
    """State, message, time, metadata, group and hook: by the handler, and by the recovery of a worker that is lost."""
    told: list[Failure] = []

    def hooked(postpones_max: int) -> Pipeline:
        made = books(attempts=1, postpones_max=postpones_max)

        @made.on_dead
        def tell(doc: Document, failure: Failure, ctx: Context) -> None:
            told.append(failure)

        return made

    async def lost(app: Trial) -> None:
        """A worker that takes what there is and is never heard of again."""
        worker = await app.service.store.register("worker", "lost", ["documents"])
        assert await app.service.store.claim(Claim(worker, ("documents",), new_token(), 1, 1))

    with trial(hooked(0), store=store_url) as app:
        handled = app.add(text="bad", pipeline="books").id
        drain(app)
        recovered = app.add(text="good", pipeline="books").id
        for _ in range(2):  # the first time it is only suspect
            app._call(lost(app))
            app.clock.advance(120)
            app._call(app.sweeper.sweep(app.clock.monotonic_s()))
        state, waiting = (
            app.status(recovered).state,
            app._call(app.service.store.jobs_open("default", [recovered])),
        )
        rows = app._call(app.service.store.archived([("default", handled), ("default", recovered)]))
        drain(app)
    assert (state, waiting) == ("dead", [f"doc-{recovered}/on_dead"])
    for one in rows:
        assert one.dead is not None
        (last,) = (attempt for attempt in one.attempts if attempt["outcome"] == "dead")
        assert one.document["finished_ms"] == one.dead["died_ms"] == last["ended_ms"]
        assert one.document["error_code"] == one.dead["error_code"] == last["error_code"]
        assert one.document["error_message"] == last["message"]
        assert one.dead["fingerprint"] == last["fingerprint"]
        assert '"stage"' in one.document["error_meta"]
    assert [failure.code for failure in told] == ["unexpected", "postpones_exhausted"]


def test_a_rate_is_kept(store_url: str) -> None:
    with opened(store_url) as app:
        added(app, *(f"bad {n}" for n in range(4)))
        began_s = time.monotonic()
        assert app.requeue_dead(how={"rate": 4}).requeued == 4
        assert time.monotonic() - began_s >= 0.74  # three waits of a quarter of a second
