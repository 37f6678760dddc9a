"""Everything in the text form that Prometheus reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from server_kit.metric_names import COUNTERS, EVERY, GAUGES, HISTOGRAMS
from server_kit.snapshots import BUCKET_SECONDS

if TYPE_CHECKING:
    from server_kit.observer.store_reader import StoreFacts
    from server_kit.privacy_spend import PrivacySpend
    from server_kit.snapshots import Labels, Series, Snapshot

_ENDS = (*(format(end, "g") for end in BUCKET_SECONDS), "+Inf")
Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)
class Exposed(Collector):
    """What is known at one moment, as families of metrics."""

    snapshots: Sequence[Snapshot]
    facts: StoreFacts | None
    spend: PrivacySpend | None
    policy_epsilon: float
    at: float

    def text(self) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._of_processes()
        yield from self._counted()
        yield _gauge("covey_store_up", {(): float(self.facts is not None)})
        if self.facts is not None:
            yield from self._of_store(self.facts)
        if self.spend is not None:
            yield from self._of_privacy(self.spend)

    def _of_processes(self) -> Iterator[Metric]:
        by_process: dict[Labels, Snapshot] = {(("process", each.process),): each for each in self.snapshots}
        yield _gauge("covey_process_resident_bytes", {key: each.rss_bytes for key, each in by_process.items()})
        yield _gauge("covey_process_started_at_seconds", {key: each.started_at for key, each in by_process.items()})
        silence = {key: max(0.0, self.at - each.at) for key, each in by_process.items()}
        yield _gauge("covey_process_silence_seconds", silence)

    def _counted(self) -> Iterator[Metric]:
        for name in COUNTERS:
            yield from _counter(name, _labelled(name, [(each.process, each.counters) for each in self.snapshots]))
        for name in GAUGES:
            values = _labelled(name, [(each.process, each.gauges) for each in self.snapshots])
            yield from [_gauge(name, values)] if values else []
        for name in HISTOGRAMS:
            yield from self._histogram(name)

    def _histogram(self, name: str) -> Iterator[Metric]:
        found = _labelled(name, [(each.process, each.histograms) for each in self.snapshots])
        if not found:
            return
        family = HistogramMetricFamily(name, EVERY[name], labels=_label_names(found))
        for labels, histogram in found.items():
            buckets = list(zip(_ENDS, accumulate(histogram.counts), strict=True))
            family.add_metric(_label_values(labels, found), buckets, histogram.sum_seconds)
        yield family

    def _of_store(self, facts: StoreFacts) -> Iterator[Metric]:
        yield _gauge("covey_devices_enrolled", {(): facts.devices.enrolled})
        yield _gauge("covey_devices_revoked", {(): facts.devices.revoked})
        yield _gauge("covey_devices_seen_lately", {(): facts.devices.seen_lately})
        yield from _counter("covey_refusals_total", {(("reason", name),): n for name, n in facts.refusals.items()})
        states = facts.cohorts_by_state
        yield _gauge("covey_cohorts_by_state", {(("state", state),): count for state, count in states.items()})
        training = {(("cohort", each.cohort),): each for each in facts.cohorts if each.state.value == "training"}
        yield _gauge("covey_cohort_round", {key: each.round for key, each in training.items()})
        yield _gauge("covey_cohort_version", {key: each.version for key, each in training.items()})

    def _of_privacy(self, spend: PrivacySpend) -> Iterator[Metric]:
        ranks = {"median": spend.median_epsilon, "most": spend.most_epsilon}
        yield _gauge("covey_privacy_epsilon", {(("rank", rank),): epsilon for rank, epsilon in ranks.items()})
        yield _gauge("covey_privacy_policy_epsilon", {(): self.policy_epsilon})
        yield _gauge("covey_privacy_devices_left_out", {(): len(spend.left_out)})
        yield from _counter("covey_releases_total", {(): spend.releases})


def _labelled(name: str, found: Iterable[tuple[str, Mapping[Series, Value]]]) -> dict[Labels, Value]:
    """The series of a name in all processes, each with the process as a label unless it is about another one."""
    return {
        (("process", process), *labels): value
        for process, series in found
        for (called, labels), value in series.items()
        if called == name
    }


def _gauge(name: str, values: Mapping[Labels, float]) -> Metric:
    family = GaugeMetricFamily(name, EVERY[name], labels=_label_names(values))
    for labels, value in values.items():
        family.add_metric(_label_values(labels, values), value)
    return family


def _counter(name: str, values: Mapping[Labels, float]) -> Iterator[Metric]:
    if not values:
        return
    family = CounterMetricFamily(name, EVERY[name], labels=_label_names(values))
    for labels, value in values.items():
        family.add_metric(_label_values(labels, values), value)
    yield family


def _label_names(found: Iterable[Labels]) -> list[str]:
    return sorted({name for labels in found for name, _ in labels})


def _label_values(labels: Labels, among: Iterable[Labels]) -> list[str]:
    """In the order of the names; a series without one of them has it empty."""
    return [dict(labels).get(name, "") for name in _label_names(among)]
