"""Auxo: cohorts found while they train, from the updates that come anyway (Liu et al. 2023).

Every participant of a step gets a sub-cluster and, once there are several cohorts, a reward for how well it
fitted. Both go back to the device, which keeps them and asks by them next time: the server can lose
everything it knows about devices and still go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from server_kit.affinity_feedback import Strikes, reward_changes
from server_kit.clustering import UNLABELLED, Labels, OnlineKMeans
from server_kit.clustering.kmeans import means_of, nearest_centre
from server_kit.clustering.online_kmeans import directions
from server_kit.cohort_tree import ROOT
from server_kit.formation.never import Never
from server_kit.formation.split_rules import Evidence
from server_kit.interfaces import Answer, Look, Split, SplitRule, Wants

if TYPE_CHECKING:
    from server_kit.interfaces import DeviceId, Federated, Memory, Seen


@dataclass(frozen=True)
class Online(Never):
    """Sub-clusters by online k-means, split by `rule`, feedback by reward; see the parts for what they promise."""

    rule: SplitRule = field(default_factory=Evidence)
    clusterer: OnlineKMeans = field(default_factory=OnlineKMeans)
    start_round: int = 2
    stop_round: int | None = None
    centres: Literal["running", "labelled"] = "running"
    """Where a sub-cluster is: the running mean of its members' updates, or (the paper) the mean of this step's
    participants that brought its label. Where few take part at a time these are one or two, and labels are lost
    in their noise: on four rotations of MNIST the first way finds all groups, the second none."""
    centre_memory: float = 0.8
    sketch: int | None = None
    """None: whole updates are compared. Else sketches of this length."""
    reward_width: float = 1.0
    most_cohorts: int = 8
    strikes: Strikes | None = field(default_factory=Strikes)

    @property
    def wants(self) -> Wants:
        return Wants(updates=True, halves=isinstance(self.rule, Evidence), sketch=self.sketch, feedback=True)

    def look(self, seen: Seen, memory: Memory, federation: Federated, rng: np.random.Generator) -> Look:
        if not seen.devices:
            return Look()
        rewards = self._rewards(seen, federation)
        before = _labels_before(seen, self.clusterer.clusters)
        labels = self._labels(seen, before, memory, rng)
        known = memory.setdefault("labels", {})
        decision = self._decision(seen, memory, federation)
        known.update((device, int(label)) for device, label in zip(seen.devices, labels, strict=True) if label >= 0)
        answers = tuple(
            Answer(device, seen.cohort, seen.round, reward, None if label == UNLABELLED else int(label))
            for device, reward, label in zip(seen.devices, rewards, labels, strict=True)
        )
        self._judge(seen, rewards, federation.memory)
        return Look(decision, answers)

    def _rewards(self, seen: Seen, federation: Federated) -> list[float | None]:
        """How well each participant fitted; no verdict while there is one cohort, or too few are known to belong."""
        if len(federation.leaves) < 2:
            return [None] * len(seen.devices)
        known = [_claims(seen, device) for device in seen.devices]
        centred = seen.updates - seen.updates.mean(dim=0)
        changes = reward_changes(centred, known, self.reward_width)
        return [None] * len(seen.devices) if changes is None else list(changes)

    def _labels(self, seen: Seen, before: Labels, memory: Memory, rng: np.random.Generator) -> Labels:
        over = self.stop_round is not None and seen.round > self.stop_round
        if seen.round < self.start_round or over:
            return before
        if memory.get("started"):
            if self.centres == "labelled":
                return self.clusterer.later(seen.updates, before).labels
            return self._nearest(directions(seen.updates), memory)
        # Whoever came to a child by chance says nothing about its structure.
        rows = [row for row, device in enumerate(seen.devices) if seen.cohort == ROOT or _claims(seen, device)]
        labels = np.full(len(seen.devices), UNLABELLED, dtype=np.int64)
        if len(rows) >= self.clusterer.min_participants:
            labels[rows] = self.clusterer.first(seen.updates[torch.tensor(rows)], rng).labels
            memory["started"] = bool((labels != UNLABELLED).any())
        if memory.get("started"):
            points = directions(seen.updates[torch.tensor(rows)])
            memory["centres"] = means_of(points, torch.from_numpy(labels[rows]))
        return labels

    def _nearest(self, points: torch.Tensor, memory: Memory) -> Labels:
        """Everyone to the nearest running centre, and the centres a step towards those who came."""
        centres: torch.Tensor = memory["centres"]
        labels = nearest_centre(points, centres)[0]
        here = means_of(points, labels, centres)
        memory["centres"] = self.centre_memory * centres + (1 - self.centre_memory) * here
        return labels.numpy()

    def _decision(self, seen: Seen, memory: Memory, federation: Federated) -> Split | None:
        labels: Mapping[DeviceId, int] = memory["labels"]
        parts = self.clusterer.clusters
        if len(federation.leaves) + parts - 1 > self.most_cohorts or not labels:
            return None
        reason = self.rule.reason(seen, labels, memory)
        return None if reason is None else Split(seen.cohort, parts, dict(labels), None, reason)

    def _judge(self, seen: Seen, rewards: list[float | None], memory: Memory) -> None:
        if self.strikes is None:
            return
        for device, reward in zip(seen.devices, rewards, strict=True):
            claim = seen.claims.get(device)
            if reward is not None and claim is not None and claim.cohort == seen.cohort:
                self.strikes.judge(device, claim.reward, reward, seen.round, memory)


def _claims(seen: Seen, device: DeviceId) -> bool:
    """Whether the device came because it has fitted here before."""
    claim = seen.claims.get(device)
    return claim is not None and claim.cohort == seen.cohort and claim.reward > 0


def _labels_before(seen: Seen, clusters: int) -> Labels:
    """The sub-clusters that devices brought along; one that does not exist is none."""
    labels = np.full(len(seen.devices), UNLABELLED, dtype=np.int64)
    for row, device in enumerate(seen.devices):
        claim = seen.claims.get(device)
        brought = None if claim is None or claim.cohort != seen.cohort else claim.sub_cluster
        if brought is not None and 0 <= brought < clusters:
            labels[row] = brought
    return labels
