"""When sub-clusters of a cohort deserve models of their own: three answers to one question.

Auxo's paper splits when the spread inside sub-clusters falls to 1/√K of the whole; its released code splits at
rounds written into the configuration. Both are here, and a test that training noise cannot fool.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from server_kit.clustering import heterogeneity, rms_ratio
from server_kit.errors import InvalidSummary

if TYPE_CHECKING:
    from server_kit.clustering import Labels
    from server_kit.interfaces import DeviceId, Memory, Seen


@dataclass(frozen=True)
class Counts:
    """Enough labelled members for each child, and none much smaller than another."""

    least_members: int = 10
    least_ratio: float = 0.2

    def hold(self, labels: Mapping[DeviceId, int]) -> bool:
        sizes = Counter(labels.values())
        if len(sizes) < 2:
            return False
        smallest, largest = min(sizes.values()), max(sizes.values())
        return smallest >= self.least_members and smallest >= self.least_ratio * largest


@dataclass(frozen=True)
class FixedRounds:
    """At these rounds, whatever the evidence (what Auxo's released configuration does)."""

    rounds: tuple[int, ...] = (50, 100)

    def reason(self, seen: Seen, labels: Mapping[DeviceId, int], memory: Memory) -> str | None:
        del memory
        due = seen.round in self.rounds and len(set(labels.values())) > 1
        return f"round {seen.round} was set for a split" if due else None


@dataclass(frozen=True)
class PaperRatio:
    """Auxo's criterion as printed: RMS distance within sub-clusters ≤ 1/√K of that in the cohort, smoothed."""

    counts: Counts = field(default_factory=Counts)
    smoothing: float = 0.2

    def reason(self, seen: Seen, labels: Mapping[DeviceId, int], memory: Memory) -> str | None:
        rows, groups = labelled(seen, labels)
        clusters = len(set(groups.tolist()))
        if clusters < 2 or len(rows) <= clusters:
            return None
        ratio = rms_ratio(seen.updates[rows], groups)
        memory["ratio"] = ratio + (1 - self.smoothing) * (memory.get("ratio", ratio) - ratio)
        enough = self.counts.hold(labels) and memory["ratio"] <= 1 / math.sqrt(clusters)
        return f"spread fell to {memory['ratio']:.2f} of the cohort's" if enough else None


@dataclass(frozen=True)
class Evidence:
    """Differences between devices with training noise taken out, over several rounds.

    J of two halves is free of noise. A split must leave at most `most_left` of it, and J must be `signal` of the
    whole variance at least: on IID data the ratio means nothing. Labels are those that devices had before the
    round, so that this round's noise has no part in them.

    Auxo's lemma asks for 1/K. Two sub-clusters of four equal groups leave 0.55 to 0.6 however well they are found,
    so with that bound a cohort of four kinds of devices would never split in two; hence three quarters.
    """

    counts: Counts = field(default_factory=Counts)
    rounds: int = 10
    signal: float = 0.045
    most_left: float = 0.75
    memory_rounds: int = 30

    def reason(self, seen: Seen, labels: Mapping[DeviceId, int], memory: Memory) -> str | None:
        rows, groups = labelled(seen, labels)
        clusters = len(set(labels.values()))
        if seen.halves is None or len(set(groups.tolist())) < max(2, clusters) or len(rows) <= clusters + 1:
            return None
        try:
            step = heterogeneity(seen.halves[0][rows], seen.halves[1][rows], groups)
        except InvalidSummary:
            return None
        history = [*memory.get("evidence", []), [step.before, step.after, step.total]][-self.memory_rounds :]
        memory["evidence"] = history
        before, after, total = np.sum(history, axis=0)
        if len(history) < self.rounds or not self.counts.hold(labels) or before <= 0 or total <= 0:
            return None
        convincing = before / total > self.signal and after <= self.most_left * before
        return f"{1 - after / before:.0%} of the differences lie between sub-clusters" if convincing else None


def labelled(seen: Seen, labels: Mapping[DeviceId, int]) -> tuple[list[int], Labels]:
    """The rows of devices that have a label, and the labels."""
    rows = [row for row, device in enumerate(seen.devices) if device in labels]
    return rows, np.array([labels[seen.devices[row]] for row in rows], dtype=np.int64)
