"""`perdure worker`: a wrong target is the caller's mistake, a right one works until it is told to stop."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from perdure import Perdure
from tests.doors.command import COMMAND, environment, facts, refused, succeeded
from tests.doors.slow import slow

ROOT = Path(__file__).parents[2]


@contextmanager
def running(store: str) -> Iterator[subprocess.Popen[str]]:
    """A worker of the slow app on this store; ended with the block."""
    process = subprocess.Popen(
        [*COMMAND, "worker", "tests.doors.slow:app", "--concurrency", "2", "--store", store],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("shop", "'shop' does not name an app"),
        (":app", "':app' does not name an app"),
        ("no_such_module:app", "there is no module 'no_such_module'"),
        ("json:dumps", "'json:dumps' is not a Perdure app"),
        ("perdure.cli.builtin:nothing", "is not a Perdure app"),
    ],
)
def test_a_wrong_target_is_named_with_the_right_form(target: str, why: str, tmp_path: Path) -> None:
    said = refused(2, "target_invalid", "worker", target, cwd=tmp_path)
    assert why in said
    assert "books:app" in said


def test_an_app_with_a_wrong_store_is_the_callers_mistake(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from perdure import Perdure\napp = Perdure('books.db')\n")
    refused(2, "store_url_invalid", "worker", "shop:app", cwd=tmp_path)


def test_an_unknown_log_level_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    assert "WARNING" in refused(
        2, "log_level_invalid", "worker", "shop:app", cwd=tmp_path, PERDURE_LOG_LEVEL="loud"
    )


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("PERDURE_EMBEDDER", "foo", "auto, minilm, wordllama, hashing"),
        ("OPENAI_RETRY_MAX", "x", "a whole number"),
    ],
)
def test_an_invalid_setting_of_a_stage_is_refused_before_documents_are_taken(
    variable: str, value: str, allowed: str, tmp_path: Path
) -> None:
    on, wrong = ("--store", f"sqlite:///{tmp_path}/perdure.db"), cast("Any", {variable: value})
    succeeded("add", "--text", "Whales sing.", *on)
    for command in (("worker", *on), ("add", "--text", "Eels swim.", "--work", *on)):
        said = refused(2, "setting_invalid", *command, **wrong)
        assert f"{variable} is {value!r}" in said
        assert allowed in said
    assert facts(*on)["documents"]["queued"] == sum(facts(*on)["documents"].values()) == 1


def test_it_works_until_sigterm_and_leaves_nothing_behind(store_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with Perdure(store_url, pipelines=[slow]) as app:
        id_ = app.add(text="x", pipeline=slow, meta={"gate": str(gate)}).id
    with running(store_url) as worker:
        end_s = time.monotonic() + 90
        while (found := facts(id_, "--store", store_url))["stage"] != "second" or found["state"] != "running":
            assert time.monotonic() < end_s, found
            assert worker.poll() is None
        [record] = facts("--store", store_url)["workers"]
        assert (record["alive"], record["in_hand"], record["queues"]) == (True, 1, ["documents"])
        assert record["name"].endswith(f":{worker.pid}")
        worker.send_signal(signal.SIGTERM)
        gate.touch()
        _, log = worker.communicate(timeout=90)
        assert worker.returncode == 0, log
    lines = [json.loads(line) for line in log.splitlines()]
    assert {line["document_id"] for line in lines if "document_id" in line} == {id_}
    # the store says who searches vectors
    told = [line for line in lines if line.get("logger") != "perdure.store"]
    assert [line["event"] for line in told if "document_id" not in line] == [
        "worker started",
        "worker stopped",
    ]
    assert facts(id_, "--store", store_url)["state"] == "done"
    assert facts("--store", store_url)["workers"] == []
