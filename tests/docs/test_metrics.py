"""Every metric is documented, and nothing is documented that does not exist."""

from __future__ import annotations

import re

import pytest

from perdure.watch.metrics import ADDED_BUCKETS, METRICS, STAGE_BUCKETS, SWEEP_BUCKETS, Metric
from tests.debian import ROOT

PAGE = (ROOT / "docs" / "metrics.md").read_text()
ROW = re.compile(r"^\| `((?:retry_job|perdure)_\w+)` \| (\w+) \| (\w+) \| (.*?) \| (.*?) \|$", re.M)


def row(metric: Metric) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return metric.name, metric.kind, metric.of, labels, metric.help


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_is_documented(metric: Metric) -> None:
    assert row(metric) in ROW.findall(PAGE), "| `{}` | {} | {} | {} | {} |".format(*row(metric))


def test_no_metric_is_documented_that_does_not_exist() -> None:
    assert {found[0] for found in ROW.findall(PAGE)} == {metric.name for metric in METRICS}


def test_the_buckets_are_documented() -> None:
    for buckets in (STAGE_BUCKETS, ADDED_BUCKETS, SWEEP_BUCKETS):
        assert ", ".join(f"{bound:g}" for bound in buckets) in PAGE.replace("\n", " ")
