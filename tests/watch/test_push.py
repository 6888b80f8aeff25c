"""What `perdure sweep --once` brings to a real Pushgateway."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from perdure import Perdure
from perdure.app import AsyncPerdure
from perdure.core.events import DocumentDead, StuckSwept
from perdure.store.open import open_store
from perdure.watch.board import Board
from perdure.watch.metrics import RETRY_JOB
from perdure.watch.push import Pusher, store_name
from tests.doors.command import COMMAND, environment, perdure, succeeded
from tests.ports import free_ports
from tests.watch.monitoring import fetched, pushgateway
from tests.watch.shop import shop


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    (port,) = free_ports(1)
    with pushgateway(tmp_path_factory.mktemp("gateway"), port) as address:
        yield address


def pushed(gateway: str, store: str, name: str, **labels: str) -> dict[str, float]:
    """The values of a metric of this store that have these labels, by host."""
    return {
        sample.labels["instance"]: sample.value
        for family in text_string_to_metric_families(fetched(f"{gateway}/metrics"))
        for sample in family.samples
        if sample.name == name
        and sample.labels.get("store") == store_name(store)
        and labels.items() <= sample.labels.items()
    }


def swept(store: str, gateway: str) -> subprocess.CompletedProcess[str]:
    """A sweep that is told to push."""
    return perdure(
        "sweep", "--once", "--store", store, METRICS_BACKEND="prometheus_pushgateway", PUSHGATEWAY_URL=gateway
    )  # fmt: skip


def test_sweeps_add_up_and_one_whose_push_failed_is_made_good(gateway: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/perdure.db"
    succeeded("migrate", "--store", store)

    assert swept(store, gateway).returncode == 0
    (ran,) = pushed(gateway, store, "retry_job_runs_total", status="success").values()
    assert ran == 1
    (port,) = free_ports(1)
    ended = swept(store, f"http://127.0.0.1:{port}")
    assert ended.returncode == 3
    assert ended.stdout.startswith("success"), "the sweep was done"
    assert "could not be pushed" in ended.stderr
    assert swept(store, gateway).returncode == 0
    (ran,) = pushed(gateway, store, "retry_job_runs_total", status="success").values()
    assert ran == 3


@pytest.mark.parametrize(
    "command", [("sweep", "--once"), ("worker",), ("serve", "--port", "0")], ids=" ".join
)
def test_without_an_address_nothing_starts(command: tuple[str, ...], tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/perdure.db"
    succeeded("migrate", "--store", store)
    ended = perdure(*command, "--store", store, METRICS_BACKEND="prometheus_pushgateway")
    assert ended.returncode == 2
    assert "needs PUSHGATEWAY_URL [setting_invalid]" in ended.stderr
    assert "serving" not in ended.stderr


async def two_hosts(gateway: str, url: str) -> None:
    for host, requeued in (("here", 2), ("there", 5), ("here", 1)):
        app = AsyncPerdure(url)
        await app.start()
        try:
            pusher = Pusher(gateway, url, app.store, app.measure().boards, host)
            swept = StuckSwept(
                "partial",
                {},
                {},
                {"threads": requeued},
                {"a\tb": 1},
                {},
                {"StoreBusy": 1},
                None,
                duration_ms=1_500,
            )
            app.events.publish(swept)
            assert await pusher.push() is None
            app.events.publish(DocumentDead("doc-d", "d", "o", "p", 3, "s", "threads", exhausted=True))
            app.events.publish(
                DocumentDead("doc-d", "d", "o", "p", 3, "s", "threads", exhausted=True, follow_up="on_dead")
            )
            assert await pusher.push() is None
        finally:
            await app.close()


def test_two_hosts_do_not_overwrite_each_other_and_each_adds_up(gateway: str, store_url: str) -> None:
    asyncio.run(two_hosts(gateway, store_url))

    def found(name: str, **labels: str) -> dict[str, float]:
        return pushed(gateway, store_url, name, **labels)

    threads = {"collection": "threads"}
    assert found("retry_job_documents_requeued_total", **threads) == {"here": 3, "there": 5}
    assert found("retry_job_documents_max_retries_exceeded_total", **threads) == {"here": 2, "there": 1}
    assert found("retry_job_documents_skipped_backoff_total", collection="a\tb") == {"here": 2, "there": 1}
    assert found("retry_job_runs_total", status="partial") == {"here": 2, "there": 1}
    assert found("retry_job_runs_total", status="failure") == {"here": 0, "there": 0}
    assert found("retry_job_errors_total", error_type="StoreBusy") == {"here": 2, "there": 1}
    assert found("retry_job_errors_total", error_type="StoreUnavailable") == {"here": 0, "there": 0}
    assert found("retry_job_duration_seconds_count") == {"here": 2, "there": 1}
    assert found("retry_job_duration_seconds_sum") == {"here": 3.0, "there": 1.5}
    assert found("retry_job_duration_seconds_bucket", le="1") == {"here": 0, "there": 0}
    for metric in RETRY_JOB:
        name = f"{metric.name}_sum" if metric.kind == "histogram" else metric.name
        assert set(found(name)) == {"here", "there"}, metric.name


@pytest.mark.parametrize("moment", range(8))
def test_what_a_cancelled_push_had_counted_is_not_counted_twice(store_url: str, moment: int) -> None:
    async def act() -> None:
        store, board = open_store(store_url), Board.private()
        await store.open()
        try:
            pusher = Pusher("http://127.0.0.1:9", store_url, store, (board,), "here")
            for _ in range(2):
                board.add("retry_job_runs_total", "success")
                pushing = asyncio.create_task(pusher.push())
                for _ in range(moment):
                    await asyncio.sleep(0)
                pushing.cancel()
                await asyncio.wait([pushing])
            assert await pusher.push() is not None  # nobody is there
            assert await store.count_for("here", {}) == {'["retry_job_runs_total", "success"]': 2}
        finally:
            await store.close()

    asyncio.run(act())


def test_a_worker_pushes_what_it_counted_if_asked(gateway: str, tmp_path: Path) -> None:
    """At its end at the latest: a document that died of its last attempt is counted there."""
    store = f"sqlite:///{tmp_path}/perdure.db"
    with Perdure(store, pipelines=[shop]) as app:
        app.add(text="dies", pipeline="shop", collection="threads")
    asked = {"METRICS_BACKEND": "prometheus_pushgateway", "PUSHGATEWAY_URL": gateway}
    worker = subprocess.Popen(
        [*COMMAND, "worker", "tests.watch.shop:app", "--store", store],
        cwd=Path(__file__).parents[2], env=environment(**asked), stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while "threads" not in succeeded("list", "--state", "dead", "--json", "--store", store):
            assert worker.poll() is None, "the worker ended"
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
    threads = {"collection": "threads"}
    assert list(pushed(gateway, store, "retry_job_failed_documents", **threads).values()) == [1]
    assert list(pushed(gateway, store, "retry_job_errors_total", error_type="OSError").values()) == [0]
    assert pushed(gateway, store, "retry_job_documents_max_retries_exceeded_total", **threads)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://me:secret@db.example:5432/books?sslmode=require", "db.example/books"),
        ("sqlite:////var/lib/perdure.db", "var/lib/perdure.db"),
        ("sqlite:///perdure.db", "perdure.db"),
    ],
)
def test_a_store_is_named_without_passwords(url: str, name: str) -> None:
    assert store_name(url) == name
