"""Numbers as text that Prometheus reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from perdure.watch.board import SUM, Key
from perdure.watch.metrics import METRICS, Metric

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Given(Collector):
    """Shows numbers that somebody has counted."""

    def __init__(self, numbers: Mapping[Key, float], metrics: Iterable[Metric] = METRICS) -> None:
        self.numbers = numbers
        self.metrics = metrics

    def collect(self) -> Iterable[Family]:
        by_name: dict[str, list[tuple[tuple[str, ...], float]]] = defaultdict(list)
        for key, number in sorted(self.numbers.items()):
            by_name[key[0]].append((key[1:], number))
        for metric in self.metrics:
            family = Family(metric.name.removesuffix("_total"), metric.help, metric.kind)
            if metric.kind == "histogram":
                _add_buckets(family, metric, by_name[metric.name])
            else:
                for values, number in by_name[metric.name]:
                    family.add_sample(metric.name, dict(zip(metric.labels, values, strict=True)), number)
            yield family


def _add_buckets(family: Family, metric: Metric, found: Iterable[tuple[tuple[str, ...], float]]) -> None:
    """Each bucket holds what the smaller ones hold, too."""
    parts: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for labelled, number in found:
        parts[labelled[:-1]][labelled[-1]] = number
    for values, counted in parts.items():
        labels, total = dict(zip(metric.labels, values, strict=True)), 0.0
        for number, bound in enumerate((*metric.buckets, float("inf"))):
            total += counted.get(str(number), 0.0)
            family.add_sample(f"{metric.name}_bucket", {**labels, "le": _bound(bound)}, total)
        family.add_sample(f"{metric.name}_count", labels, total)
        family.add_sample(f"{metric.name}_sum", labels, counted.get(SUM, 0.0))


def _bound(value: float) -> str:
    return "+Inf" if value == float("inf") else f"{value:g}"


def registry_of(numbers: Mapping[Key, float], metrics: Iterable[Metric] = METRICS) -> CollectorRegistry:
    """A registry that shows these numbers and nothing else."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Given(numbers, metrics))
    return registry


def text(numbers: Mapping[Key, float], metrics: Iterable[Metric] = METRICS) -> bytes:
    """What a scrape answers."""
    return bytes(generate_latest(registry_of(numbers, metrics)))
