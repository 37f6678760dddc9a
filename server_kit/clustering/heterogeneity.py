"""How much devices of a cohort really differ, with the noise of training taken out, and what a split would remove.

A device sends two sketches of its update, from disjoint halves of its batches. Noise of the two halves is
independent, so their product is free of it: J = mean ⟨h¹ − h̄¹, h² − h̄²⟩ estimates the variance between devices
without bias, which the squared distance to the centre, Auxo's measure, overstates by all of the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from server_kit.clustering.checks import require_same_length, require_vectors
from server_kit.clustering.kmeans import means_of
from server_kit.clustering.partition import Labels, as_labels, in_order_of_appearance
from server_kit.errors import InvalidSetting, InvalidSummary


@dataclass(frozen=True)
class Heterogeneity:
    """One round's evidence for a split. Average `before`, `after` and `total` over ten rounds or more, then divide."""

    before: float
    """J of the whole cohort."""
    after: float
    """J inside the proposed sub-clusters."""
    total: float
    """The variance of the halves themselves, training noise included."""

    @property
    def ratio(self) -> float:
        """What is left after the split: 1/K or less is what Auxo's lemma asks for; NaN where J is not positive."""
        return self.after / self.before if self.before > 0 else math.nan

    @property
    def signal(self) -> float:
        """J over total: near 0 when devices are alike, and then the ratio means nothing."""
        return self.before / self.total if self.total > 0 else 0.0


def heterogeneity(first: torch.Tensor, second: torch.Tensor, labels: Labels) -> Heterogeneity:
    """J before and after splitting by `labels`, from the half-sketches of the same devices."""
    one, other, groups = _halves(first, second, labels)
    count, clusters = len(one), int(groups.max()) + 1
    if count <= clusters:
        raise InvalidSummary(
            f"{count} devices in {clusters} clusters say nothing about differences; wait for more devices"
        )
    whole = torch.zeros_like(groups)
    total = (_spread(one, one, whole) + _spread(other, other, whole)) / 2
    before, after = _spread(one, other, whole), _spread(one, other, groups)
    # As many degrees of freedom as devices minus estimated means: labels drawn at random leave J unchanged.
    return Heterogeneity(before / (count - 1), after / (count - clusters), total / (count - 1))


def permutation_z(second: torch.Tensor, labels: Labels, rng: np.random.Generator, permutations: int = 200) -> float:
    """How many standard deviations the clusters stand out on data they were not made from.

    `labels` come from the first halves; the variance between clusters of the second halves is compared with
    that of shuffled labels. Ask for 3 or more, accumulated over rounds. Without any difference it is 0.
    """
    if permutations < 2:
        raise InvalidSetting(
            f"a permutation test needs at least 2 permutations, got {permutations}; nothing was computed"
        )
    _, other, groups = _halves(second, second, labels)
    centred = other - other.mean(dim=0)
    products = centred @ centred.T  # once; shuffled labels then need no coordinates
    observed = _between(products, groups)
    order = groups.cpu().numpy()
    shuffles = (torch.from_numpy(rng.permutation(order)).to(groups.device) for _ in range(permutations))
    shuffled = [_between(products, shuffle) for shuffle in shuffles]
    deviation = float(np.std(shuffled, ddof=1))
    return float((observed - np.mean(shuffled)) / deviation) if deviation > 0 else 0.0


def rms_ratio(updates: torch.Tensor, labels: Labels) -> float:
    """Auxo's own measure: root mean square distance to the sub-cluster's centre over that to the cohort's.

    The paper splits at 1/√K or below. In many dimensions training noise keeps it near 1; in one it splits noise.
    """
    _, points, groups = _halves(updates, updates, labels)
    before = _spread(points, points, torch.zeros_like(groups))
    return math.sqrt(_spread(points, points, groups) / before) if before > 0 else 1.0


def _halves(
    first: torch.Tensor, second: torch.Tensor, labels: Labels
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    require_vectors(first, "first halves")
    require_vectors(second, "second halves")
    if first.shape != second.shape:
        raise InvalidSummary("first and second halves differ in shape; give both of each device; nothing was computed")
    given = as_labels(labels)
    require_same_length(len(first), len(given), "sketches and labels")
    if given.min() < 0:
        raise InvalidSummary("evidence needs a label for each device; leave out the unlabelled; nothing was computed")
    groups = torch.from_numpy(in_order_of_appearance(given)).to(first.device)
    return first.double(), second.double(), groups


def _spread(one: torch.Tensor, other: torch.Tensor, groups: torch.Tensor) -> float:
    """The sum of products of both sides' deviations from the means of their group."""
    deviations = [side - means_of(side, groups)[groups] for side in (one, other)]
    return float((deviations[0] * deviations[1]).sum())


def _between(products: torch.Tensor, groups: torch.Tensor) -> float:
    """The variance between groups, summed over devices, from the products of their deviations from the mean."""
    membership = torch.nn.functional.one_hot(groups).to(products.dtype)
    return float(((membership * (products @ membership)).sum(dim=0) / membership.sum(dim=0)).sum())
