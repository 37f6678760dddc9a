"""HACCS: clusters of similar devices are scheduled by loss and latency, the fastest device first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from server_kit.interfaces import DeviceId, DeviceView, Memory, RoundOutcome

_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class ClusterWeighted:
    """θ_c = ρ·(1 − latency_c/max latency) + (1−ρ)·loss_c/Σ loss, over the devices that wait (Wolfrath et al. 2022).

    `stratified` first gives each cluster ⌊p_c·k⌋ places and draws the rest; `with_replacement` draws all. Every
    draw takes the cluster's fastest device not taken yet; an exhausted cluster is drawn no more. A cluster's
    weight never falls below a hundredth of its equal share, or the slowest would never be drawn. A device never
    heard of counts with the highest loss and the median latency known; devices without a cluster stand alone.
    `explore` is the share of draws that takes a random device instead of the fastest, against starving slow ones.
    """

    rho: float = 0.5
    draw: Literal["stratified", "with_replacement"] = "stratified"
    explore: float = 0.0

    def select(
        self, waiting: Sequence[DeviceView], count: int, memory: Memory, rng: np.random.Generator
    ) -> list[DeviceId]:
        del memory
        if len(waiting) <= count:
            return [view.device for view in waiting]
        # Shuffled first, so that equally fast devices take turns.
        queues = self._queues([waiting[place] for place in rng.permutation(len(waiting))])
        weights = self.weights(waiting)
        chosen: list[DeviceId] = []
        if self.draw == "stratified":
            total = sum(weights.values())
            for cluster, weight in weights.items():
                places = min(int(weight / total * count), len(queues[cluster]))
                chosen += [self._take(queues[cluster], rng) for _ in range(places)]
        while len(chosen) < count:
            open_clusters = [cluster for cluster in weights if queues[cluster]]
            share = [weights[cluster] for cluster in open_clusters]
            total = sum(share)
            drawn = rng.choice(len(open_clusters), p=[weight / total for weight in share])
            chosen.append(self._take(queues[open_clusters[drawn]], rng))
        return chosen

    def observe(self, outcome: RoundOutcome, memory: Memory) -> None:
        del outcome, memory

    def weights(self, waiting: Sequence[DeviceView]) -> dict[object, float]:
        """θ of each cluster among the waiting devices, floored."""
        clusters: dict[object, list[DeviceView]] = {}
        for view in waiting:
            clusters.setdefault(_cluster_of(view), []).append(view)
        unknown_loss = max((view.loss for view in waiting if view.loss is not None), default=1.0)
        unknown_latency = _median([view.latency_seconds for view in waiting if view.latency_seconds is not None])
        loss = {c: _mean([_known(v.loss, unknown_loss) for v in views]) for c, views in clusters.items()}
        latency = {
            c: _mean([_known(v.latency_seconds, unknown_latency) for v in views]) for c, views in clusters.items()
        }
        most_latency, total_loss = max(latency.values()), sum(loss.values())
        floor = _LEAST_SHARE / len(clusters)
        return {
            cluster: max(
                floor,
                self.rho * (1 - latency[cluster] / most_latency if most_latency > 0 else 0.0)
                + (1 - self.rho) * (loss[cluster] / total_loss if total_loss > 0 else 1 / len(clusters)),
            )
            for cluster in clusters
        }

    def _queues(self, waiting: Sequence[DeviceView]) -> dict[object, list[DeviceView]]:
        """Each cluster's devices, the fastest first."""
        typical = _median([view.latency_seconds for view in waiting if view.latency_seconds is not None])
        queues: dict[object, list[DeviceView]] = {}
        for view in sorted(waiting, key=lambda view: _known(view.latency_seconds, typical)):
            queues.setdefault(_cluster_of(view), []).append(view)
        return queues

    def _take(self, queue: list[DeviceView], rng: np.random.Generator) -> DeviceId:
        place = int(rng.integers(len(queue))) if self.explore and rng.random() < self.explore else 0
        return queue.pop(place).device


def _cluster_of(view: DeviceView) -> object:
    return ("alone", view.device) if view.cluster is None else view.cluster


def _known(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
