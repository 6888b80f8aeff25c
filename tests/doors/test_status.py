"""`perdure status`: the store at a glance, or one document with its history; for people and as JSON."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from perdure import Context, Document, Perdure, Permanent, Pipeline, Transient
from perdure.operate import status
from perdure.store.open import open_store
from perdure.testing import drain, trial
from tests.doors.command import COMMAND, environment, facts, refused, succeeded

OVERVIEW_KEYS = (
    "headline problems now_ms dependencies calls documents next_due_ms late_writes_refused fallbacks queues workers "
    "dead stuck escalation audit outbox durability store"
).split()
STATES = "queued running waiting held done dead cancelled".split()
QUEUE_KEYS = "name paused ready_since_ms ready running waiting held over_limit stopped remote workers".split()
DOCUMENT_KEYS = (
    "now_ms id org collection pipeline name state stage generation attempts_made attempts_max claims suspect degraded "
    "last_heartbeat_ms created_ms finished_ms held_by remote next_due_ms error why stages attempts"
).split()
STAGE_KEYS = "stage generation version model saved_ms duration_ms size".split()
ATTEMPT_KEYS = (
    "job generation claim attempt charged stage worker started_ms ended_ms outcome error_type error_code status_code "
    "fingerprint message delay_ms why requests"
).split()

letters = Pipeline("letters", backoff_s=0.0)
parcels = Pipeline("parcels", queue="parcels")


@letters.stage
def weigh(doc: Document) -> int:
    if doc.text == "empty":
        raise Permanent("no_content", "there is nothing in it")
    return len(doc.text)


@letters.stage(version=2)
def stamp(doc: Document, weigh: int, ctx: Context) -> str:
    if doc.text == "rain" and ctx.attempt == 1:
        raise Transient("the ink is wet")
    return "x" * weigh


@parcels.stage(needs=["scales"])
def lift(doc: Document) -> int:
    return 1


@dataclass(frozen=True)
class Sorted:
    """A store in which everything has happened once."""

    url: str
    plain: str
    retried: str
    dead: str
    later: str
    held: str


@pytest.fixture
def sorted_(store_url: str) -> Sorted:
    with Perdure(store_url, pipelines=[letters, parcels]) as app:
        app.hold("scales", "out for repair")
        plain = app.add(text="sun", name="sun.txt", pipeline=letters, collection="mail").id
        retried, dead = (app.add(text=text, pipeline=letters).id for text in ("rain", "empty"))
        later = app.add(text="spring", pipeline=letters, delay_s=7_000).id
        held = app.add(text="stone", pipeline=parcels).id
        app.run_until_idle(wait=2)
        app.pause("parcels")
    return Sorted(store_url, plain, retried, dead, later, held)


def test_looking_at_a_store_that_is_not_there_does_not_make_one(tmp_path: Path) -> None:
    said = refused(1, "store_unavailable", "status", "--store", f"sqlite:///{tmp_path}/mistyped.db")
    assert "mistyped.db" in said
    assert list(tmp_path.iterdir()) == []


def test_an_empty_store(store_url: str) -> None:
    succeeded("migrate", "--store", store_url)
    found = facts("--store", store_url)
    assert list(found) == OVERVIEW_KEYS
    assert found["documents"] == dict.fromkeys(STATES, 0)
    assert (found["queues"], found["workers"], found["dependencies"]) == ([], [], [])
    assert found["headline"] == "All well: no documents yet."
    said = succeeded("status", "--store", store_url)
    assert "Documents: 0" in said
    assert "none: start one with perdure worker" in said


def test_documents_by_state_queues_and_what_is_down(sorted_: Sorted) -> None:
    found = facts("--store", sorted_.url)
    counts = {"done": 2, "dead": 1, "waiting": 1, "held": 1}
    assert found["documents"] == dict.fromkeys(STATES, 0) | counts
    by_name = {queue["name"]: queue for queue in found["queues"]}
    assert all(sorted(queue) == sorted(QUEUE_KEYS) for queue in found["queues"])
    assert (by_name["documents"]["waiting"], by_name["documents"]["paused"]) == (1, False)
    assert (by_name["parcels"]["held"], by_name["parcels"]["paused"]) == (1, True)
    assert by_name["documents"]["ready_since_ms"] is None
    [scales] = [one for one in found["dependencies"] if one["state"] == "down"]
    assert (scales["name"], scales["reason"], scales["held"]) == ("scales", "out for repair", 1)
    assert 0 <= found["now_ms"] - scales["since_ms"] < 60_000
    [group] = found["dead"]["groups"]
    assert (group["count"], group["code"], group["stages"]) == (1, "no_content", ["weigh"])
    assert found["headline"].startswith(
        "1 document is dead of no_content at stage weigh: press `perdure dead groups`"
    )
    presses = [one["press"] for one in found["problems"]]
    assert presses == ["perdure dead groups", "perdure release scales", "perdure resume parcels"]
    assert 6_000_000 < found["next_due_ms"] - found["now_ms"] <= 7_000_000


def test_the_age_of_the_oldest_ready_job(store_url: str) -> None:
    with Perdure(store_url, pipelines=[letters]) as app:
        app.raise_(app.add(text="first", pipeline=letters).id)  # which sets its due time to 0
        app.add(text="second", pipeline=letters)
    found = facts("--store", store_url)
    [queue] = found["queues"]
    assert queue["ready"] == 2
    assert 0 <= found["now_ms"] - queue["ready_since_ms"] < 60_000


def test_the_overview_fits_80_columns(sorted_: Sorted) -> None:
    said = succeeded("status", "--store", sorted_.url)
    assert max(map(len, said.splitlines())) <= 80
    assert "\x1b" not in said
    assert "2 done" in said
    assert "parcels (paused)" in said
    assert "out for repair" in said
    assert "Next one due: in 1.9 h" in said


def test_a_document_that_was_tried_twice(sorted_: Sorted) -> None:
    found = facts(sorted_.retried, "--store", sorted_.url)
    assert sorted(found) == sorted(DOCUMENT_KEYS)
    assert (found["state"], found["attempts_made"], found["attempts_max"]) == ("done", 2, 3)
    assert [(s["stage"], s["version"], s["size"]) for s in found["stages"]] == [
        ("weigh", 1, 1),
        ("stamp", 2, 6),
    ]
    assert all(sorted(stage) == sorted(STAGE_KEYS) for stage in found["stages"])
    first, second = found["attempts"]
    assert sorted(first) == sorted(ATTEMPT_KEYS)
    assert (first["attempt"], first["stage"], first["outcome"]) == (1, "stamp", "retry")
    assert (first["error_type"], first["error_code"], first["message"]) == (
        "Transient",
        "transient",
        "the ink is wet",
    )
    assert "attempt 1 of 3" in first["why"]
    assert (second["attempt"], second["outcome"], second["error_code"]) == (2, "done", None)


def test_a_dead_document_says_why(sorted_: Sorted) -> None:
    found = facts(sorted_.dead, "--store", sorted_.url)
    assert found["error"] == {"code": "no_content", "message": "there is nothing in it"}
    said = succeeded("status", sorted_.dead, "--store", sorted_.url)
    assert "dead at stage weigh" in said
    assert "no_content: there is nothing in it" in said
    assert max(map(len, said.splitlines())) <= 80


def test_documents_that_wait_say_for_what(sorted_: Sorted) -> None:
    later, held = (facts(id_, "--store", sorted_.url) for id_ in (sorted_.later, sorted_.held))
    assert (later["state"], later["attempts"], later["held_by"]) == ("waiting", [], None)
    assert 6_000_000 < later["next_due_ms"] - later["now_ms"] <= 7_000_000
    assert (held["state"], held["held_by"], held["next_due_ms"]) == ("held", "scales", None)
    assert "next due" in succeeded("status", sorted_.later, "--store", sorted_.url)
    assert "scales" in succeeded("status", sorted_.held, "--store", sorted_.url)


def test_the_newest_save_of_each_stage_is_shown_with_its_generation(store_url: str) -> None:
    with Perdure(store_url, pipelines=[letters]) as app:
        id_ = app.add(text="sun", pipeline=letters).id
        app.run_until_idle()
        assert app.requeue(id_, from_stage="stamp", reason="another stamp") == "requeued"
        app.run_until_idle()
    found = facts(id_, "--store", store_url)
    assert found["generation"] == 2
    assert [(s["stage"], s["generation"]) for s in found["stages"]] == [("weigh", 1), ("stamp", 2)]
    said = succeeded("status", id_, "--store", store_url)
    assert "stamp (generation 2)" in said
    assert "g2 1" in said


def test_an_unknown_document_is_the_callers_mistake(store_url: str) -> None:
    succeeded("migrate", "--store", store_url)
    said = refused(2, "document_unknown", "status", "no-such-id", "--store", store_url)
    assert "no-such-id" in said


def test_what_a_message_brings_along_changes_nothing_on_the_screen(tmp_path: Path) -> None:
    """Markup and newlines in a message are text."""
    url = f"sqlite:///{tmp_path}/books.db"
    bad = Pipeline("bad", attempts=1)

    @bad.stage
    def fail(doc: Document) -> int:
        raise ValueError("[bold]not bold[/bold] :smile: [/]")

    with Perdure(url, pipelines=[bad]) as app:
        id_ = app.add(text="x", pipeline=bad).id
        app.run_until_idle()
    assert "[bold]not bold[/bold] :smile: [/]" in succeeded("status", id_, "--store", url)


def test_looking_changes_nothing(sorted_: Sorted) -> None:
    async def look() -> list[object]:
        store = open_store(sorted_.url)
        await store.open()
        try:
            seen = (await status.overview(store), await status.document(store, sorted_.dead))
        finally:
            await store.close()
        return [{**each, "now_ms": 0, "why": ""} for each in seen]

    assert asyncio.run(look()) == asyncio.run(look())


def test_what_another_service_works_on(store_url: str) -> None:
    away = Pipeline("away")
    away.remote_stage("weigh", event="Weigh", done="Weighed")
    with Perdure(store_url, pipelines=[away]) as app:
        id_ = app.add(text="a", pipeline=away).id
        assert app.run_until_idle().done == 0
    found = facts("--store", store_url)
    assert (found["documents"]["running"], found["outbox"]["waiting"], found["outbox"]["reason"]) == (
        1,
        1,
        None,
    )
    (queue,) = found["queues"]
    assert (queue["running"], queue["remote"]) == (1, 1)
    assert facts(id_, "--store", store_url)["remote"] is True
    assert "1 event to be published" in succeeded("status", "--store", store_url)
    assert "running at stage weigh, in another service" in succeeded("status", id_, "--store", store_url)


def test_what_stood_in_and_what_was_made_good_is_counted(store_url: str) -> None:
    fallen = Pipeline("fallen")

    @fallen.stage(needs=["scales"])
    def lift() -> int:
        return 1

    @lift.fallback
    def guess() -> int:
        return 0

    with trial(fallen, store=store_url) as app:
        app.hold("scales", "out for repair")
        for text in "ab":
            app.add(text=text, pipeline=fallen)
        drain(app)
        assert "Fallbacks stood in: 2   Made good since: 0" in succeeded("status", "--store", store_url)
        app.release("scales")
        drain(app)
    assert facts("--store", store_url)["fallbacks"] == {"degraded": 2, "repaired": 2}


def test_watching_it_writes_a_line_when_the_headline_changes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/p.db"
    with (
        Perdure(url, pipelines=[letters]) as app,
        subprocess.Popen(
            [*COMMAND, "status", "--watch", "--store", url],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        ) as watching,
    ):
        assert watching.stdout is not None
        assert "All well: no documents yet." in watching.stdout.readline()
        app.add(text="sun", pipeline=letters)
        said = watching.stdout.readline()
        assert "No worker serves 1 job in queue documents: press `perdure worker`." in said
        watching.send_signal(signal.SIGINT)
        assert watching.wait(90) == 0
        assert watching.stdout.read() == ""


def test_a_store_whose_only_worker_is_gone_says_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/p.db"

    async def die() -> None:
        store = open_store(url)
        await store.open()
        worker = await store.register("worker", "host:1", ["documents"])
        await store.driver.unlock("worker", worker)
        await store.close()

    asyncio.run(die())
    said = succeeded("status", "--store", url)
    assert "gone" in said
    assert "none is alive: start one with perdure worker" in said
