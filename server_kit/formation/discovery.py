"""Covey's own way to find cohorts: propose groups early, believe them late, and let devices choose.

Groups are proposed from two sides: label histograms, noised on the device, and the directions of updates. Both
are judged by the same measure, how much of the devices' real differences they explain, with training noise taken
out (`clustering.heterogeneity`). Nothing is split before several steps agree. Children start where their founders
were heading, so that every device can tell from its own data which of them is its own (`matching.OwnChoice`).

Where privacy leaves nothing to judge by (noise drowns directions, and halves would be releases of their own), groups
by labels are tried as they are, and `Gated` undoes what does not help. Without those, and where devices can tell
their choices reliably, children start apart at random and devices choose among them; not where labels differ from
device to device without making groups, for then choices would follow labels, and four models serve worse than one.
`Gated` undoes children between which devices do not choose alike twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from server_kit.clustering import KMeans, Labels, Optics
from server_kit.clustering.distances import gram_matrix
from server_kit.clustering.kmeans import means_of
from server_kit.clustering.online_kmeans import directions
from server_kit.clustering.partition import in_order_of_appearance
from server_kit.formation.never import Never
from server_kit.formation.summaries import Histograms, wanted_summary
from server_kit.interfaces import Clusterer, Distance, Look, Split, Summarizer, Wants

if TYPE_CHECKING:
    from server_kit.interfaces import DeviceId, Federated, Memory, Seen


@dataclass(frozen=True)
class Step:
    """What one step showed: who took part, where they were heading, and how their halves agree with each other's.

    `cross` [n, n] holds the products of first halves with second halves: all that groups of any kind need.
    """

    devices: tuple[DeviceId, ...]
    updates: torch.Tensor
    cross: torch.Tensor
    total: float
    """The variance of the halves themselves, training noise included."""

    @classmethod
    def of(cls, seen: Seen, halves: tuple[torch.Tensor, torch.Tensor]) -> Step:
        first, second = (half - half.mean(dim=0) for half in halves)
        total = float(first.square().sum(dtype=torch.float64) + second.square().sum(dtype=torch.float64)) / 2
        return cls(seen.devices, seen.updates, (first @ second.T).double(), total)

    @classmethod
    def recalled(cls, memory: Memory) -> Step:
        return cls(**{**memory, "devices": tuple(memory["devices"])})

    def remembered(self) -> Memory:
        """As a memory may hold it: values and tensors."""
        return {**vars(self), "devices": list(self.devices)}

    def left_within(self, rows: Sequence[int], labels: Labels) -> float:
        """Σ over groups of the covariance of halves inside the group: noise has no part in it."""
        chosen = self.cross[rows][:, rows]
        membership = torch.nn.functional.one_hot(torch.from_numpy(labels)).double()
        pooled = (membership.T @ chosen @ membership).diagonal() / membership.sum(dim=0)
        return float(chosen.diagonal().sum() - pooled.sum())


@dataclass(frozen=True)
class Proposal:
    """Groups among the devices of several steps, and how much of their differences is left inside."""

    labels: Mapping[DeviceId, int]
    groups: int
    left: float
    source: str


@dataclass(frozen=True)
class Discovery(Never):
    """Splits a cohort once its devices differ (`signal`) and groups explain all but `most_left` of that.

    Of all proposals the one with the fewest groups wins that leaves no more than `little`; if none does, the one
    that leaves least, at `cost_of_group` for each of its groups. A child needs `least_members` known devices.
    """

    summarizer: Summarizer | None = None
    distance: Distance = field(default_factory=Histograms)
    clusterer: Clusterer = field(default_factory=Optics)
    steps: int = 6
    signal: float = 0.045
    deviations: float = 2.0
    """Standard errors by which the signal must be above that: few devices a step say little."""
    most_left: float = 0.7
    differing: float = 0.9
    """Above this share of real differences devices have next to nothing in common: the best groups are tried however
    little they explain, unless a step shows too few devices to tell."""
    little: float = 0.15
    cost_of_group: float = 0.02
    most_groups: int = 8
    least_members: int = 5
    most_cohorts: int = 16
    blind_groups: int = 0
    """How many children to try where there is nothing to go by; fewer than 2 for none."""
    least_candour: float = 0.9
    """How often devices must tell the truth about their choice for that: mixed up, random starts stay alike."""
    most_label_spread: float = 2.0
    """And how far their labels may differ, in multiples of what chance and noise explain."""
    sketch: int | None = None

    @property
    def wants(self) -> Wants:
        return Wants(updates=True, halves=True, sketch=self.sketch, **wanted_summary(self.summarizer))

    def begin(self, federation: Federated, rng: np.random.Generator) -> Split | None:
        self._summarise(list(federation.fleet.waiting(0.0)), federation, rng)
        return None

    def welcome(self, newcomers: Sequence[DeviceId], federation: Federated, rng: np.random.Generator) -> None:
        self._summarise(newcomers, federation, rng)

    def look(self, seen: Seen, memory: Memory, federation: Federated, rng: np.random.Generator) -> Look:
        if seen.halves is None:
            return Look(self._unjudged(seen, memory, federation))
        if len(seen.devices) < 2:
            return Look()
        history = [*map(Step.recalled, memory.get("steps", [])), Step.of(seen, seen.halves)][-self.steps :]
        memory["steps"] = [step.remembered() for step in history]
        memory["count"] = memory.get("count", 0) + 1
        room = self.most_cohorts - len(federation.leaves) + 1
        # A proposal that failed will not be better for one step more.
        if len(history) < self.steps or room < 2 or memory["count"] % max(1, self.steps // 2):
            return Look()
        signal = signal_of(history, self.deviations)
        if signal <= self.signal:
            return Look()
        crowd = sum(len(step.devices) for step in history) / len(history)
        differing = signal > self.differing and crowd >= 3 * self.least_members
        most_left = math.inf if differing else self.most_left
        proposals = [
            proposal
            for proposal in self._proposals(history, federation, rng)
            if proposal.groups <= room and proposal.left <= most_left
        ]
        if not proposals:
            return Look()
        best = min(proposals, key=self._rank)
        return Look(self._split(seen, history, best, federation))

    def _summarise(self, devices: Sequence[DeviceId], federation: Federated, rng: np.random.Generator) -> None:
        """Clusters by what devices say about their labels, for proposals and for the selector."""
        if self.summarizer is None:
            return
        memory = federation.memory
        request = self.summarizer.request(federation.model(federation.leaves[0]), federation.task)
        rows = memory.setdefault("rows", {})
        rows.update(federation.fleet.summaries(request, devices))
        if not rows:
            return
        found = self.clusterer.cluster(
            self.distance.compare(torch.stack(list(rows.values())), request.noise_scale), rng
        )
        memory["clusters"] = dict(zip(rows, found.labels.tolist(), strict=True))

    def _proposals(self, history: Sequence[Step], federation: Federated, rng: np.random.Generator) -> list[Proposal]:
        found = []
        clusters = federation.memory.get("clusters")
        if clusters is not None:
            found += self._judged(
                history, {d: clusters[d] for s in history for d in s.devices if d in clusters}, "labels"
            )
        points = principal(torch.cat([directions(step.updates) for step in history]))
        devices = [device for step in history for device in step.devices]
        for groups in range(2, min(self.most_groups, len(points) // 3) + 1):
            labels = KMeans(groups, restarts=3).cluster(points, rng).labels
            found += self._judged(history, dict(zip(devices, labels.tolist(), strict=True)), "updates")
        return found

    def _unjudged(self, seen: Seen, memory: Memory, federation: Federated) -> Split | None:
        """A split, once, of a cohort whose updates say nothing."""
        memory["count"] = memory.get("count", 0) + 1
        if len(federation.leaves) > 1:
            return None
        labels: Mapping[DeviceId, int] = federation.memory.get("clusters", {})
        kept = self._large_enough(labels)
        room = self.most_cohorts - len(federation.leaves) + 1
        if 2 <= len(kept) <= room:
            if memory["count"] != self.steps:
                return None
            members = {device: kept[label] for device, label in labels.items() if label in kept}
            return Split(seen.cohort, len(kept), members, None, f"{len(kept)} groups by labels, on trial")
        # Nothing will be learnt about groups by waiting, and early on models are soon apart.
        if memory["count"] > 1 or self.blind_groups < 2:
            return None
        if len(seen.devices) < self.blind_groups * self.least_members:
            return None
        if federation.fleet.candour(self.blind_groups) < self.least_candour or self._labels_differ(federation):
            return None
        parent, start = federation.model(seen.cohort), federation.fresh_model(0)
        apart = [federation.fresh_model(number) - start for number in range(self.blind_groups)]
        models = [parent + difference for difference in apart]
        return Split(seen.cohort, self.blind_groups, {}, models, f"{self.blind_groups} random starts to choose from")

    def _labels_differ(self, federation: Federated) -> bool:
        rows = federation.memory.get("rows", {})
        if self.summarizer is None or len(rows) < 2:
            return False
        request = self.summarizer.request(federation.model(federation.leaves[0]), federation.task)
        return label_spread(torch.stack(list(rows.values())), request.noise_scale) > self.most_label_spread

    def _large_enough(self, labels: Mapping[DeviceId, int]) -> dict[int, int]:
        """New numbers for the groups that have enough members; none if they leave too many out."""
        sizes = np.bincount(list(labels.values())) if labels else np.zeros(0, dtype=np.int64)
        kept = np.flatnonzero(sizes >= self.least_members).tolist()
        if sum(sizes[group] for group in kept) < 0.8 * sizes.sum():
            return {}
        return {group: number for number, group in enumerate(kept)}

    def _rank(self, proposal: Proposal) -> tuple[float, float]:
        if proposal.left <= self.little:
            return 0.0, float(proposal.groups)
        return 1.0, proposal.left + self.cost_of_group * proposal.groups

    def _judged(self, history: Sequence[Step], labels: Mapping[DeviceId, int], source: str) -> list[Proposal]:
        kept = self._large_enough(labels)
        if len(kept) < 2:
            return []
        # Few devices that fit nowhere do not stand in the way; they will choose.
        named = {device: kept[label] for device, label in labels.items() if label in kept}
        return [Proposal(named, len(kept), left_by(history, named), source)]

    def _split(self, seen: Seen, history: Sequence[Step], best: Proposal, federation: Federated) -> Split:
        """Children start where the devices of their group were heading."""
        parent = federation.model(seen.cohort)
        models = None
        if self.sketch is None:
            rows = [
                (update, best.labels[device])
                for step in history[-2:]
                for device, update in zip(step.devices, step.updates, strict=True)
                if device in best.labels
            ]
            numbers = torch.tensor([number for _, number in rows])
            steps = means_of(
                torch.stack([update for update, _ in rows]), numbers, parent.new_zeros(best.groups, len(parent))
            )
            models = [parent + step for step in steps]
        reason = f"{1 - best.left:.0%} of the differences lie between {best.groups} groups, by {best.source}"
        return Split(seen.cohort, best.groups, best.labels, models, reason)


def label_spread(counts: torch.Tensor, noise_scale: float | None) -> float:
    """How far counts [n, labels] are from shares that all devices have in common; 1: as chance and noise explain."""
    counts = counts.flatten(1).double()
    totals = counts.sum(dim=1, keepdim=True).clamp_min(0)
    shares = counts.sum(dim=0).clamp_min(0)
    shares /= shares.sum().clamp_min(1)
    left = (counts - totals * shares).square().sum()
    drawn = (totals * (shares * (1 - shares))).sum()
    # Discrete Laplace noise on each count; that on their sum, shared out, is small beside it.
    noise = 2 * (noise_scale or 0.0) ** 2 * counts.numel()
    return float(left / (drawn + noise).clamp_min(1))


def signal_of(history: Sequence[Step], deviations: float = 0.0) -> float:
    """Real differences between devices over all their variance, less so many standard errors; 0 when alike."""
    steps = [step for step in history if step.total > 0]
    if len(steps) < 2:
        return 0.0
    real = [step.left_within(range(len(step.devices)), _alike(len(step.devices))) / step.total for step in steps]
    return float(np.mean(real) - deviations * np.std(real, ddof=1) / np.sqrt(len(real)))


def left_by(history: Sequence[Step], labels: Mapping[DeviceId, int]) -> float:
    """The share of real differences that remains inside the groups; 1 where groups mean nothing."""
    before = after = 0.0
    for step in history:
        rows = [row for row, device in enumerate(step.devices) if device in labels]
        groups = in_order_of_appearance(np.array([labels[step.devices[row]] for row in rows], dtype=np.int64))
        count = int(groups.max(initial=-1)) + 1
        if len(rows) <= count:
            continue
        # As many degrees of freedom as devices minus means: labels drawn at random leave all.
        before += step.left_within(rows, _alike(len(rows))) / (len(rows) - 1)
        after += step.left_within(rows, groups) / (len(rows) - count)
    return after / before if before > 0 else 1.0


def principal(points: torch.Tensor, most: int = 32) -> torch.Tensor:
    """The same points in the coordinates in which they differ most."""
    values, vectors = torch.linalg.eigh(gram_matrix(points))
    kept = min(most, len(points))
    coordinates: torch.Tensor = (vectors[:, -kept:] * values[-kept:].clamp_min(0).sqrt()).float()
    return coordinates


def _alike(count: int) -> Labels:
    return np.zeros(count, dtype=np.int64)
