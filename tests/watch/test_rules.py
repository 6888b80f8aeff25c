"""The alert rules: right by Prometheus's own tool, each seen to fire and to clear, each with a runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from perdure.watch.metrics import METRICS
from tests.debian import ROOT
from tests.watch.monitoring import program

RULES = ROOT / "src/perdure/watch/rules/perdure.rules.yml"
TESTS = Path(__file__).parent / "rules_test.yml"
#: What a histogram is asked for, and what Prometheus itself knows.
SUFFIXES = ("_bucket", "_count", "_sum")


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def kebab(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "-", name).lower()


@pytest.mark.full
def test_prometheus_takes_the_rules() -> None:
    checked = subprocess.run(
        [program("promtool"), "check", "rules", RULES], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.full
def test_each_alert_fires_and_clears(tmp_path: Path) -> None:
    for file in (RULES, TESTS):
        shutil.copy(file, tmp_path)
    tested = subprocess.run(
        [program("promtool"), "test", "rules", TESTS.name], cwd=tmp_path, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("name", sorted(alerts()))
def test_no_alert_is_left_out_of_that_test(name: str) -> None:
    told = [
        bool(case["exp_alerts"])
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == name
    ]
    assert True in told, "it is never seen to fire"
    assert False in told[told.index(True) :], "it is never seen to clear"


@pytest.mark.parametrize("name", sorted(alerts()))
def test_each_says_what_it_means_and_what_to_do(name: str) -> None:
    rule = alerts()[name]
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert {"summary", "description", "runbook_url"} == set(rule["annotations"])
    runbook = ROOT / rule["annotations"]["runbook_url"]
    assert runbook == ROOT / "docs" / "runbooks" / f"{kebab(name)}.md"
    assert runbook.exists()


@pytest.mark.parametrize("name", sorted(alerts()))
def test_each_asks_for_metrics_that_exist(name: str) -> None:
    known = {metric.name for metric in METRICS} | {
        metric.name + suffix for metric in METRICS if metric.kind == "histogram" for suffix in SUFFIXES
    }
    asked = set(re.findall(r"\b(?:perdure|retry_job)_\w+", alerts()[name]["expr"]))
    assert asked
    assert asked <= known


def test_numbers_of_the_store_are_never_added_up_over_processes() -> None:
    """They are the same from each of them; a sum would be too large by as many as there are."""
    of_store = {metric.name for metric in METRICS if metric.of == "store"}
    for name, rule in alerts().items():
        for metric in set(re.findall(r"\b(?:perdure|retry_job)_\w+", rule["expr"])) & of_store:
            inner = re.search(rf"(\w+)\s*(?:by \(\w+\))?\s*\((?:abs\(|increase\()?{metric}", rule["expr"])
            assert inner, f"{name}: {metric}"
            assert inner[1] in ("max", "absent"), f"{name}: {metric}"
