"""The dashboard for Grafana: whole, complete, and asking only for what exists."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from perdure.watch.metrics import METRICS
from tests.debian import ROOT
from tests.doors.command import succeeded

FILE = ROOT / "src/perdure/watch/dashboards/retry-policy-monitoring.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS: list[dict[str, Any]] = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES: list[str] = [target["expr"] for panel in PANELS for target in panel["targets"]]


def panel(title: str) -> dict[str, Any]:
    (found,) = [panel for panel in PANELS if panel["title"] == title]
    return found


def test_it_has_the_name_that_people_look_for_and_no_datasource_of_its_own() -> None:
    assert BOARD["title"] == "Retry Policy Monitoring"
    assert {panel["datasource"]["uid"] for panel in PANELS} == {"${datasource}"}


def test_the_gauge_of_stuck_documents_is_by_collection_and_turns_at_50_and_200() -> None:
    stuck = panel("Stuck documents")
    assert stuck["type"] == "gauge"
    assert stuck["targets"][0]["expr"] == "max by (collection) (retry_job_stuck_documents)"
    steps = stuck["fieldConfig"]["defaults"]["thresholds"]["steps"]
    assert [(step["color"], step["value"]) for step in steps] == [
        ("green", None),
        ("yellow", 50),
        ("red", 200),
    ]


def test_no_panel_is_without_a_title_a_sentence_and_a_place_of_its_own() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)
    assert all(panel["description"] for panel in PANELS)
    taken: set[tuple[int, int]] = set()
    for each in BOARD["panels"]:
        at = each["gridPos"]
        cells = {(at["x"] + dx, at["y"] + dy) for dx in range(at["w"]) for dy in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, each["title"]
        taken |= cells


def test_every_metric_that_is_asked_for_exists() -> None:
    suffixes = ("_bucket", "_count", "_sum")
    known = {metric.name for metric in METRICS} | {
        metric.name + suffix for metric in METRICS if metric.kind == "histogram" for suffix in suffixes
    }
    asked = {name for query in QUERIES for name in re.findall(r"\b(?:perdure|retry_job)_\w+", query)}
    assert asked <= known


@pytest.mark.parametrize("metric", [m.name for m in METRICS if m.name.startswith("retry_job_")])
def test_every_number_of_the_retry_job_is_on_it(metric: str) -> None:
    assert any(metric in query for query in QUERIES)


def test_the_command_prints_it() -> None:
    assert json.loads(succeeded("rules", "--dashboard")) == BOARD
    assert "StuckDocumentsWarning" in succeeded("rules")


def test_each_panel_that_the_requirements_name_asks_for_its_metric() -> None:
    asked = {
        "Retry rate": "perdure_calls_retried_total",
        "Max retries exceeded": "retry_job_documents_max_retries_exceeded_total",
        "Backoff skipped": "retry_job_documents_skipped_backoff_total",
        "Duration": "retry_job_duration_seconds",
        "Holds": "perdure_documents_held",
        "Breaker": "perdure_breaker_state",
        "Down for": "perdure_dependency_held_seconds",
        "Escalation tier": "perdure_escalation_tier",
    }
    for title, metric in asked.items():
        assert any(metric in target["expr"] for target in panel(title)["targets"]), title
