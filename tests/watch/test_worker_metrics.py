"""`/metrics` of a real worker that works on real documents, is killed in between, and is scraped."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from perdure import Perdure
from perdure.watch.metrics import BY_NAME, METRICS
from tests.doors.command import COMMAND, environment, succeeded
from tests.faults.rabbit import free_ports
from tests.watch.monitoring import fetched, until_ready
from tests.watch.shop import shop

TEXTS = ("light", "lighter", "heavy", "stumbles", "dies", "kills")
WORK_S = 60.0
PENDING = {
    "retry_job_stuck_documents", "retry_job_failed_documents", "retry_job_duration_seconds", "perdure_documents",
    "perdure_stuck_oldest_seconds", "perdure_starved_documents", "perdure_escalation_tier",
    "perdure_audit_difference",
}  # fmt: skip
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class Worked:
    """A worker that has done all there was to do."""

    directory: Path
    port: int

    @property
    def store(self) -> str:
        return f"sqlite:///{self.directory}/shop.db"

    @property
    def metrics(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def value(self, name: str, **labels: str) -> float:
        return samples(fetched(self.metrics))[name, frozenset(labels.items())]


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    directory = tmp_path_factory.mktemp("shop")
    shutil.copy(Path(__file__).parent / "shop.py", directory / "parcels.py")
    (port,) = free_ports(1)
    found = Worked(directory, port)
    with Perdure(found.store, pipelines=[shop]) as app:
        for text in TEXTS:
            app.add(text=text, pipeline=shop, collection="parcels")
        with (directory / "log").open("wb") as log:
            worker = subprocess.Popen(
                [*COMMAND, "worker", "parcels:app"], cwd=directory, stderr=log,
                env=environment(PERDURE_STORE=found.store, PERDURE_METRICS_PORT=str(port)),
            )  # fmt: skip
        try:
            until_ready(found.metrics, worker)
            give_up_s = time.monotonic() + WORK_S
            while len(app.documents(state="done")) + len(app.documents(state="dead")) < len(TEXTS):
                assert time.monotonic() < give_up_s, (directory / "log").read_text()
                time.sleep(0.1)
            time.sleep(1.2)  # what services do is noted every second
            yield found
        finally:
            worker.terminate()
            worker.wait(20)


def test_what_the_child_counted_is_there_although_it_was_killed_once(worked: Worked) -> None:
    ended = {
        dict(labels)["outcome"]: value
        for (name, labels), value in samples(fetched(worked.metrics)).items()
        if name == "perdure_attempts_total"
    }
    assert ended == {
        "done": 5, "dead": 1, "retry": 2, "later": ended["later"], "rescheduled": 0, "hold": 0, "gather": 0,
        "answered": 0,
    }  # fmt: skip
    assert worked.value("perdure_documents_dead_total", collection="parcels") == 1
    sized = {"pipeline": "shop", "size": "64KiB"}
    assert worked.value("perdure_stage_seconds_count", stage="ship", **sized) == 5
    assert worked.value("perdure_stage_seconds_bucket", stage="ship", le="+Inf", **sized) == 5
    assert worked.value("perdure_stage_seconds_count", stage="ship", pipeline="shop", size="larger") == 0


def test_what_is_saved_does_not_run_again_and_that_is_counted(worked: Worked) -> None:
    assert worked.value("perdure_stages_resumed_total", pipeline="shop", stage="wrap") >= 2
    assert worked.value("perdure_stages_rerun_total", pipeline="shop", stage="ship") >= 1


def test_what_the_supervisor_saw_is_in_the_same_place(worked: Worked) -> None:
    assert worked.value("perdure_workers_lost_total") == 1
    assert worked.value("perdure_lease_recoveries_total", reason="worker_lost") >= 1
    assert worked.value("perdure_lease_recoveries_total", reason="lease_expired") == 0


def test_calls_are_counted_in_threads_and_in_cells(worked: Worked) -> None:
    scale = {"dependency": "scale"}
    assert worked.value("perdure_calls_total", outcome="ok", **scale) >= 10
    assert worked.value("perdure_calls_total", outcome="failed", **scale) == 0
    assert worked.value("perdure_calls_retried_total", outcome="ok", **scale) >= 6
    retries = worked.value("perdure_call_retries_total", **scale)
    assert worked.value("perdure_call_added_seconds_count", **scale) == retries >= 6
    failures = worked.value("perdure_request_failures_total", kind="outage", **scale)
    assert retries >= failures >= 1  # these two are noted every second: what was killed took some with it
    assert worked.value("perdure_requests_total", **scale) > failures
    assert worked.value("perdure_breaker_state", **scale) == 0
    assert 0 < worked.value("perdure_retry_budget_tokens", **scale) <= 10


def test_the_store_is_told_of_as_well(worked: Worked) -> None:
    assert worked.value("perdure_workers") == 1
    assert worked.value("perdure_queue_depth", queue="documents", state="queued") == 0
    assert worked.value("perdure_dependency_held_seconds", dependency="scale") == 0
    assert worked.value("perdure_heartbeat_age_seconds") == 0
    assert not [
        value
        for (name, _), value in samples(fetched(worked.metrics)).items()
        if name == "perdure_scrape_errors_total" and value
    ]


def test_every_metric_is_shown_and_says_what_it_is(worked: Worked) -> None:
    shown = {family.name: family for family in text_string_to_metric_families(fetched(worked.metrics))}
    for metric in METRICS:
        family = shown[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert family.samples or metric.name in PENDING, f"{metric.name} shows nothing"
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


def test_whoever_asks_for_something_else_is_told_where_it_is(worked: Worked) -> None:
    import urllib.error

    with pytest.raises(urllib.error.HTTPError) as caught:
        fetched(worked.metrics.replace("/metrics", "/"))
    assert (caught.value.code, caught.value.read()) == (404, b"metrics are at /metrics\n")
    caught.value.close()


def test_the_command_prints_those_of_the_store(worked: Worked) -> None:
    printed = {family.name: family for family in text_string_to_metric_families(
        succeeded("metrics", "--store", worked.store)
    )}  # fmt: skip
    assert printed["perdure_workers"].samples[0].value == 1
    of_store = {metric.name.removesuffix("_total") for metric in BY_NAME.values() if metric.of == "store"}
    assert set(printed) == of_store
