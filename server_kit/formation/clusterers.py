"""Clusterers that need no search: the truth, and chance (FedGroup's controls RCC and RAC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from server_kit.clustering import Clustering
from server_kit.clustering.distances import unit_rows
from server_kit.clustering.partition import in_order_of_appearance

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Given:
    """Devices come with their group's number."""

    def cluster(self, points: torch.Tensor, rng: np.random.Generator) -> Clustering[None]:
        del rng
        return Clustering(in_order_of_appearance(points.flatten().long().numpy()), None)


@dataclass(frozen=True)
class RandomCentres:
    """RCC: some devices drawn at random are the centres; the others join the one whose update is most alike."""

    groups: int = 3

    def cluster(self, points: torch.Tensor, rng: np.random.Generator) -> Clustering[None]:
        units = unit_rows(points)
        centres = units[rng.choice(len(units), min(self.groups, len(units)), replace=False)]
        return Clustering(in_order_of_appearance((units @ centres.T).argmax(dim=1).numpy()), None)


@dataclass(frozen=True)
class RandomLabels:
    """RAC: groups that mean nothing."""

    groups: int = 3

    def cluster(self, points: torch.Tensor, rng: np.random.Generator) -> Clustering[None]:
        return Clustering(in_order_of_appearance(rng.integers(self.groups, size=len(points))), None)
