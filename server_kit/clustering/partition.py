"""What every clusterer returns: a label for each device, and the evidence that led to it.

Labels count from 0 in the order in which clusters first appear, so that the same partition always has
the same labels. `UNLABELLED` stands only where a clusterer says that it may leave a device open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from server_kit.errors import InvalidSummary

Labels = npt.NDArray[np.int64]
Evidence_co = TypeVar("Evidence_co", covariant=True)

UNLABELLED = -1


@dataclass(frozen=True)
class Clustering(Generic[Evidence_co]):
    """Which device belongs to which cluster, and why."""

    labels: Labels
    evidence: Evidence_co

    @property
    def count(self) -> int:
        """How many clusters there are."""
        return int(self.labels.max(initial=UNLABELLED)) + 1

    @property
    def sizes(self) -> Labels:
        """How many devices each cluster has."""
        return np.bincount(self.labels[self.labels != UNLABELLED], minlength=self.count)

    def members(self, cluster: int) -> Labels:
        """The positions of a cluster's devices, ascending."""
        return np.flatnonzero(self.labels == cluster)


def as_labels(labels: npt.ArrayLike | torch.Tensor) -> Labels:
    """One whole number for each device, `UNLABELLED` or from 0 on."""
    plain = labels.detach().cpu().numpy() if isinstance(labels, torch.Tensor) else np.asarray(labels)
    if plain.ndim != 1 or not (plain.size == 0 or np.issubdtype(plain.dtype, np.integer)):
        raise InvalidSummary("labels are one whole number for each device; nothing was computed")
    if plain.size and plain.min() < UNLABELLED:
        raise InvalidSummary(f"a label is {UNLABELLED} or counts from 0; nothing was computed")
    return plain.astype(np.int64)


def in_order_of_appearance(groups: npt.NDArray[np.integer]) -> Labels:
    """The same partition with labels that count from 0 as clusters first appear."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse]


def with_noise_as_singletons(groups: npt.NDArray[np.integer]) -> Labels:
    """The same partition, in which each point of noise (negative) is a cluster of its own."""
    alone = np.flatnonzero(groups < 0)
    separated = groups.astype(np.int64)
    separated[alone] = separated.max(initial=-1) + 1 + np.arange(len(alone))
    return in_order_of_appearance(separated)
