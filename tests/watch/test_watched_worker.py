"""A real worker works on real documents and is killed in between: its `/metrics`, a Prometheus that scrapes it, its
spans."""

from __future__ import annotations

import itertools
import math
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from perdure import Perdure
from perdure.watch.metrics import BY_NAME, METRICS
from perdure.watch.shared_counters import SHARED
from tests.doors.command import COMMAND, environment, succeeded
from tests.ports import free_ports
from tests.watch.collector import Collector, collecting
from tests.watch.monitoring import asked, fetched, prometheus, until_ready
from tests.watch.shop import shop
from tests.watch.test_dashboard import QUERIES

TEXTS = ("light", "lighter", "heavy", "stumbles", "dies", "kills")
WORK_S = 300.0
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass
class Worked:
    """A worker that has done all there was to do."""

    directory: Path
    port: int
    prometheus: str | None
    collector: Collector
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def store(self) -> str:
        return f"sqlite:///{self.directory}/shop.db"

    @property
    def metrics(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def told_of(self, id_: str) -> bool:
        """Whether the span of its last attempt has arrived."""
        attempts = self.collector.of(id_, "attempt shop")
        return bool(attempts) and attempts[-1].attributes["perdure.outcome"] in ("done", "dead")

    def value(self, name: str, **labels: str) -> float:
        """NaN, which equals nothing, where there is no such sample yet."""
        return samples(fetched(self.metrics)).get((name, frozenset(labels.items())), math.nan)


def samples(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    directory = tmp_path_factory.mktemp("shop")
    (port,) = free_ports(1)
    with collecting() as collector, working(Worked(directory, port, None, collector)) as found:
        yield found


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that saw a worker do all that."""
    directory = tmp_path_factory.mktemp("scraped")
    port, scraping = free_ports(2)
    with (
        collecting() as collector,
        prometheus(directory, scraping, [f"127.0.0.1:{port}"]) as address,
        working(Worked(directory, port, address, collector)),
    ):
        yield address


@contextmanager
def working(found: Worked) -> Iterator[Worked]:
    """A worker that has done all there was to do, until the block ends."""
    directory = found.directory
    shutil.copy(Path(__file__).parent / "shop.py", directory / "parcels.py")
    variables = {
        "PERDURE_STORE": found.store, "PERDURE_METRICS_PORT": str(found.port),
        "OTEL_EXPORTER_OTLP_ENDPOINT": found.collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "200",
    }  # fmt: skip
    with Perdure(found.store, pipelines=[shop]) as app:
        with (directory / "log").open("wb") as log:
            worker = subprocess.Popen(
                [*COMMAND, "worker", "parcels:app"], cwd=directory, stderr=log, env=environment(**variables)
            )
        try:
            until_ready(found.metrics, worker, WORK_S)
            if found.prometheus is not None:  # one that saw the counters at 0 sees them rise
                until_scraped(found.prometheus, 'perdure_attempts_total{outcome="done"} == 0')
            for texts in (TEXTS[:-1], TEXTS[-1:]):  # a process that is killed takes its last spans along
                for text in texts:
                    meta = {"traceparent": TRACEPARENT} if text == "heavy" else {}
                    added = app.add(text=text, pipeline=shop, collection="parcels", meta=meta)
                    found.ids[text] = added.id
                until(lambda: ended(app) == len(found.ids), directory / "log")
                until(lambda: all(map(found.told_of, found.ids.values())), directory / "log")
            until(lambda: found.value("perdure_documents", collection="parcels", state="done") == 5)
            until(lambda: found.value("perdure_requests_total", dependency="scale") >= 10)
            if found.prometheus is not None:
                until_scraped(found.prometheus, 'perdure_attempts_total{outcome="done"} == 5')
                until_scraped(found.prometheus, 'perdure_documents{collection="parcels", state="done"} == 5')
            yield found
        finally:
            worker.terminate()
            worker.wait(60)


def until(condition: Callable[[], bool], log: Path | None = None) -> None:
    """Wait until it holds."""
    give_up_s = time.monotonic() + WORK_S
    while not condition():
        assert time.monotonic() < give_up_s, log and log.read_text()
        time.sleep(0.1)


def until_scraped(address: str, expression: str) -> None:
    """Wait until a Prometheus has seen it."""
    until(lambda: bool(asked(address, expression)))


def ended(app: Perdure) -> int:
    """The number of documents that are done or dead."""
    return len(app.documents(state="done")) + len(app.documents(state="dead"))


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
    assert worked.value("perdure_documents", collection="parcels", state="done") == 5
    assert worked.value("perdure_documents", collection="parcels", state="dead") == 1
    assert worked.value("perdure_documents_open", state="held") == 0
    assert worked.value("retry_job_failed_documents", collection="parcels") == 1
    assert worked.value("retry_job_stuck_documents", collection="archives") == 0
    assert worked.value("perdure_escalation_tier") == 1
    assert worked.value("perdure_audit_difference") == 0
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
        assert family.samples, f"{metric.name} shows nothing"
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)


def test_whoever_asks_for_something_else_is_told_where_it_is(worked: Worked) -> None:
    import urllib.error

    with pytest.raises(urllib.error.HTTPError) as caught:
        fetched(worked.metrics.replace("/metrics", "/"))
    assert (caught.value.code, caught.value.read()) == (404, b"metrics are at /metrics\n")
    caught.value.close()


def test_the_command_prints_those_of_the_store_and_sums_of_workers(worked: Worked) -> None:
    printed = {family.name: family for family in text_string_to_metric_families(
        succeeded("metrics", "--store", worked.store)
    )}  # fmt: skip
    assert printed["perdure_workers"].samples[0].value == 1
    of_store = {metric.name.removesuffix("_total") for metric in BY_NAME.values() if metric.of == "store"}
    added_up = {name.removesuffix("_total") for name in SHARED}  # by workers without a port
    assert of_store <= set(printed) <= of_store | added_up


@pytest.mark.full
def test_every_query_of_the_dashboard_has_an_answer(scraped: str) -> None:
    assert len(QUERIES) > 30
    unanswered = [query for query in QUERIES if not asked(scraped, query.replace("$__rate_interval", "1m"))]
    assert not unanswered


@pytest.mark.full
def test_the_queries_see_what_happened(scraped: str) -> None:
    (died,) = asked(scraped, 'sum(increase(perdure_attempts_total{outcome="dead"}[10m]))')
    assert float(died["value"][1]) > 0
    (retried,) = asked(
        scraped,
        "sum by (dependency) (increase(perdure_calls_retried_total[10m])) "
        "/ sum by (dependency) (increase(perdure_calls_total[10m])) > 0.2",
    )
    assert retried["metric"] == {"dependency": "scale"}


def test_an_attempt_is_a_span_with_its_stages_and_their_calls_in_it(worked: Worked) -> None:
    id_ = worked.ids["light"]
    (attempt, *_) = worked.collector.of(id_, "attempt shop")
    assert attempt.attributes["perdure.org"] == "default"
    stages = [worked.collector.of(id_, f"stage {name}")[-1] for name in ("weigh", "wrap", "ship")]
    assert {stage.trace for stage in stages} == {attempt.trace}
    for stage in stages[:2]:
        calls = [span for span in worked.collector.spans if span.parent == stage.id]
        assert [call.name for call in calls] == ["call scale"], "in a thread, and in a cell"
        assert stage.start_ns - 5_000_000 <= calls[0].start_ns <= calls[0].end_ns <= stage.end_ns + 5_000_000


def test_attempts_of_a_document_are_one_trace_and_each_names_the_one_before(worked: Worked) -> None:
    attempts = worked.collector.of(worked.ids["stumbles"], "attempt shop")
    assert len(attempts) >= 3
    assert len({attempt.trace for attempt in attempts}) == 1
    assert attempts[0].links == ()
    for before, attempt in itertools.pairwise(attempts):
        assert attempt.links == ((before.trace, before.id),)
    assert [attempt.attributes["perdure.outcome"] for attempt in attempts][-3:] == ["retry", "retry", "done"]
    assert attempts[-2].error == "not today"
    assert attempts[-1].error is None


def test_the_attempt_of_a_process_that_was_killed_is_not_missing(worked: Worked) -> None:
    first, *others = worked.collector.of(worked.ids["kills"], "attempt shop")
    assert first.attributes["perdure.outcome"] == "recovered"
    assert "SIGKILL" in (first.error or "")
    assert others[0].links == ((first.trace, first.id),)
    assert others[-1].attributes["perdure.outcome"] == "done"


def test_a_document_belongs_to_the_trace_that_it_came_with(worked: Worked) -> None:
    _, trace, parent, _ = TRACEPARENT.split("-")
    attempts = worked.collector.of(worked.ids["heavy"], "attempt shop")
    assert {(attempt.trace, attempt.parent) for attempt in attempts} == {(trace, parent)}
