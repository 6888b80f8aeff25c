"""Follow-up jobs that died are seen wherever dead documents are, and run again like them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perdure import Document, Permanent, Pipeline, Result
from perdure.cli.main import app as command
from perdure.errors import InputInvalid
from perdure.operate.requeue import RequeueOptions
from perdure.operate.status import overview
from perdure.testing import Trial, drain, trial

WRONG = "the list of books is not sorted"


def books(broken: list[str], **options: Any) -> Pipeline:
    """Reads; a follow-up job connects, and a hook tells, both of them as long as nothing is broken."""
    connect = Pipeline("connect", attempts=1)

    @connect.stage
    def link(doc: Document) -> int:
        if "connect" in broken:
            raise Permanent("connect_failed", WRONG)
        return 1

    made = Pipeline("books", backoff_s=0, then=[connect], **options)

    @made.stage
    def read(doc: Document) -> Result[str]:
        if "bad" in doc.text:
            raise Permanent("bad_file", "cannot be read")
        return Result(doc.text, spawn=[connect.job(doc)])

    @made.on_dead
    def told(doc: Document) -> None:
        if "hook" in broken:
            raise Permanent("hook_failed", "nobody listens")

    return made


@contextmanager
def opened(store: str, broken: list[str]) -> Iterator[Trial]:
    with trial(books(broken), store=store) as app:
        yield app


def facts(app: Trial) -> dict[str, Any]:
    return dict(app._call(overview(app.service.store)))


def added(app: Trial, *texts: str) -> list[str]:
    ids = [app.add(text=text, pipeline="books").id for text in texts]
    drain(app)
    return ids


def test_a_dead_follow_up_is_not_all_well(store_url: str) -> None:
    with opened(store_url, ["connect"]) as app:
        first, second = added(app, "one", "two")
        assert app.status(first).state == "done"
        page = app.dead().documents
        assert {(one.id, one.job, one.error_code, one.message) for one in page} == {
            (first, "connect", "connect_failed", WRONG),
            (second, "connect", "connect_failed", WRONG),
        }
        (group,) = app.groups()
        assert (group.job, group.count, group.stages, group.code) == (
            "connect",
            2,
            ["link"],
            "connect_failed",
        )
        told = facts(app)
        assert (
            told["headline"].startswith("2 follow-up jobs connect are dead") or "tier 2" in told["headline"]
        )
        assert any("2 follow-up jobs connect are dead" in one["text"] for one in told["problems"])
        assert told["dead"]["follow_ups"] == {"connect": 2}
        assert told["dead"]["documents"] == 0
        tier = app.escalation()
        assert (tier.tier, tier.why) == (2, "2 follow-up jobs are dead")
        assert f"perdure dead requeue {first}" in (app.why(first).press or "")


def test_metrics_count_dead_follow_ups(store_url: str) -> None:
    with opened(store_url, ["connect", "hook"]) as app:
        scrape = app.service.measure()
        added(app, "one", "a bad one")
        shown = app._call(scrape.text()).decode()
        assert 'perdure_follow_ups_dead{job="connect"} 1.0' in shown
        assert 'perdure_follow_ups_dead{job="on_dead"} 1.0' in shown
        assert 'perdure_follow_ups_dead{job="on_done"} 0.0' in shown
        assert 'perdure_follow_up_deaths_total{job="connect"} 1.0' in shown
        assert 'perdure_documents_dead_total{collection="documents"} 1.0' in shown


def test_follow_ups_are_requeued_by_name_group_or_document(store_url: str) -> None:
    broken = ["connect"]
    with opened(store_url, broken) as app:
        first, *others = added(app, "one", "two", "three")
        broken.clear()
        told = app.requeue_dead([first], how=RequeueOptions(reason="mended"))
        assert (told.requeued, told.refused) == (1, 0)
        app.clock.advance(1)
        drain(app)
        assert {one.id for one in app.dead().documents} == set(others)
        assert app.status(first).generation == 1  # the document itself was done
        assert app.requeue_dead(failed="connect.failed").requeued == 2
        app.clock.advance(1)
        drain(app)
        assert app.dead().documents == []
        assert app.escalation().tier == 1
        assert facts(app)["headline"].startswith("All well: 3 done")
        assert [act.reason for act in app.acts(target=first, verb="requeue-job")] == ["connect: mended"]


def test_a_follow_up_that_dies_again_is_listed_again(store_url: str) -> None:
    with opened(store_url, ["connect"]) as app:
        (id_,) = added(app, "one")
        assert app.requeue_dead(job="connect").requeued == 1
        assert app.dead().documents == []
        app.clock.advance(1)
        drain(app)
        (again,) = app.dead(job="connect").documents
        assert (again.id, again.attempts) == (id_, 1)
        assert app.audit().difference == 0


def test_a_new_generation_takes_the_old_follow_up_away_but_not_the_hook(store_url: str) -> None:
    broken = ["connect", "hook"]
    with opened(store_url, broken) as app:
        good, bad = added(app, "one", "a bad one")
        assert {(one.id, one.job) for one in app.dead().documents} == {
            (good, "connect"), (bad, ""), (bad, "on_dead"),
        }  # fmt: skip
        broken.remove("connect")
        for id_ in (good, bad):
            assert app.requeue(id_) == "requeued"
        drain(app)
        assert sorted((one.id == bad, one.job, one.generation) for one in app.dead().documents) == [
            (True, "", 2), (True, "on_dead", 1), (True, "on_dead", 2),
        ]  # fmt: skip


def test_only_documents_are_exported_and_purged(store_url: str, tmp_path: Path) -> None:
    with opened(store_url, ["connect", "hook"]) as app:
        good, bad = added(app, "one", "a bad one")
        out = tmp_path / "dead.jsonl"
        assert app.export(out).exported == 1
        assert bad in out.read_text()
        assert good not in out.read_text()
        purged = app.purge([good], export=None)
        assert (purged.purged, purged.refused) == (0, 1)
        assert app.purge(export=None, pipeline="books").purged == 1
        assert [(one.id, one.job) for one in app.dead().documents] == [(good, "connect")]
        page = app.dead(limit=1)
        assert page.after is None


def test_pages_of_documents_and_follow_ups_leave_none_out(store_url: str) -> None:
    with opened(store_url, ["connect", "hook"]) as app:
        added(app, *(f"{n}" for n in range(4)), *(f"bad {n}" for n in range(3)))
        found, after = [], None
        while True:
            page = app.dead(limit=2, after=after)
            found += [(one.id, one.job, one.generation) for one in page.documents]
            if (after := page.after) is None:
                break
        assert len(found) == len(set(found)) == 4 + 3 + 3


def test_canaries_of_follow_ups_are_waited_for(store_url: str) -> None:
    with opened(store_url, ["connect"]) as app:
        added(app, "one", "two", "three")

        async def go() -> Any:
            choice = await app.service.choose(job="connect")
            how = RequeueOptions(canary=1, canary_wait_s=0.01)
            return [told async for told in app.service.requeuing(choice, how)][-1]

        told = app._call(go())
        assert told.requeued == 1
        assert "have not ended" in told.stopped


def test_a_canary_of_several_follow_ups_of_one_document(store_url: str) -> None:
    """The rest waits for it, also where they were named by their one document."""
    jobs = [Pipeline("first", attempts=1), Pipeline("second", attempts=1)]

    def fail(doc: Document) -> int:
        raise Permanent("no", "no")

    for job in jobs:
        job.stage(fail)
    made = Pipeline("books", then=jobs)

    @made.stage
    def read(doc: Document) -> Result[str]:
        return Result(doc.text, spawn=[job.job(doc) for job in jobs])

    with trial(made, store=store_url) as app:
        (id_,) = added(app, "one")
        told = app.requeue_dead([id_], how={"canary": 1, "canary_wait_s": 0.01})
        assert (told.found, told.requeued) == (2, 1)
        assert told.stopped.endswith("the other 1 are still dead")


def test_to_export_or_purge_follow_ups_is_refused(store_url: str, tmp_path: Path) -> None:
    with opened(store_url, ["connect"]) as app:
        added(app, "one")
        for act in (
            lambda: app.export(tmp_path / "out.jsonl", job="connect"),
            lambda: app.purge(export=None, job="connect"),
        ):
            with pytest.raises(InputInvalid, match="neither exported nor purged") as refused:
                act()
            assert refused.value.code == "where_unknown"
        assert app.export(tmp_path / "all.jsonl").exported == 0


def test_the_command_shows_and_requeues_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with opened(url, ["connect"]) as app:
        (id_,) = added(app, "one")
    run = CliRunner()
    listed = run.invoke(command, ["dead", "list", "--store", url])
    assert id_ in listed.output
    assert "connect: link" in listed.output
    assert "1 follow-up job" in run.invoke(command, ["dead", "groups", "--store", url]).output
    shown = run.invoke(command, ["dead", "inspect", id_, "--store", url]).output
    assert "connect_failed" in shown
    assert WRONG in shown
    status = run.invoke(command, ["status", "--store", url])
    assert "All well" not in status.output
    assert "follow-up job" in status.output
    again = run.invoke(command, ["dead", "requeue", "--job", "connect", "--yes", "--store", url])
    assert "1 of 1 requeued" in again.output
