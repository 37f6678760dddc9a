"""Devices that differ in which labels they have: the rules of FedGroup, HACCS, CASA, and given counts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.datasets.dataset import Dataset
from server_kit.simulation.datasets.label_counts import LabelCounts
from server_kit.simulation.partition.apportion import class_counts
from server_kit.simulation.partition.assignment import Partition, require_devices
from server_kit.simulation.partition.dealing import class_pools, deal
from server_kit.simulation.partition.sizes import Equal, Sizes
from server_kit.simulation.ragged import FloatArray, IntArray


@dataclass(frozen=True)
class ClassesPerDevice:
    """Each device has samples of exactly `classes` labels, as many of each.

    `neighbouring`: device i has labels i, i + 1, … modulo their number, as in the MNIST of FedProx and
    FedGroup. `random`: any set is as likely. Devices with the same set are a true group.
    """

    classes: int = 2
    sizes: Sizes = field(default_factory=Equal)
    choice: Literal["neighbouring", "random"] = "neighbouring"

    def assign(self, dataset: Dataset, num_devices: int, rng: np.random.Generator) -> Partition:
        present = _present(dataset, num_devices, self.classes)
        if self.choice == "neighbouring":
            first = rng.permutation(num_devices)[:, None]
            sets = np.sort((first + np.arange(self.classes)) % len(present), axis=1)
        else:
            sets = np.sort(rng.random((num_devices, len(present))).argsort(axis=1)[:, : self.classes], axis=1)
        shares = np.zeros((num_devices, dataset.num_classes))
        np.put_along_axis(shares, present[sets], 1 / self.classes, axis=1)
        groups = np.unique(sets, axis=0, return_inverse=True)[1].reshape(-1)
        return _dealt(dataset, shares, self.sizes, rng, groups=groups, least=self.classes)


@dataclass(frozen=True)
class Dirichlet:
    """Each device's label shares come from a Dirichlet around those of the data set (Hsu et al. 2019).

    With k labels in equal numbers this is Dir(α, …, α): near 0 a device has one label, towards infinity all
    devices have the data set's own mix. There are no true groups.
    """

    alpha: float
    sizes: Sizes = field(default_factory=Equal)

    def __post_init__(self) -> None:
        if not 0 < self.alpha < math.inf:
            raise InvalidSetting(f"alpha must be above 0, got {self.alpha}; nothing was dealt")

    def assign(self, dataset: Dataset, num_devices: int, rng: np.random.Generator) -> Partition:
        present = _present(dataset, num_devices, 1)
        mix = dataset.class_counts[present] / len(dataset)
        shares = np.zeros((num_devices, dataset.num_classes))
        shares[:, present] = rng.dirichlet(self.alpha * len(present) * mix, num_devices)
        return _dealt(dataset, shares, self.sizes, rng)


@dataclass(frozen=True)
class MajorityMix:
    """One label has the majority, some random others the rest (HACCS: 75/12/7/6 or 70/10/10/10 %).

    Devices with the same majority are a true group; groups are equal in size, up to one device.
    """

    shares: tuple[float, ...] = (0.75, 0.12, 0.07, 0.06)
    sizes: Sizes = field(default_factory=Equal)

    def __post_init__(self) -> None:
        if not self.shares or min(self.shares) <= 0 or not math.isclose(sum(self.shares), 1):
            raise InvalidSetting(f"shares must be positive and add up to 1, got {self.shares}; nothing was dealt")

    def assign(self, dataset: Dataset, num_devices: int, rng: np.random.Generator) -> Partition:
        present = _present(dataset, num_devices, len(self.shares))
        majority = rng.permutation(num_devices) % len(present)
        chance = rng.random((num_devices, len(present)))
        np.put_along_axis(chance, majority[:, None], -1.0, axis=1)  # comes first
        chosen = chance.argsort(axis=1)[:, : len(self.shares)]
        shares = np.zeros((num_devices, dataset.num_classes))
        np.put_along_axis(shares, present[chosen], np.broadcast_to(self.shares, chosen.shape), axis=1)
        return _dealt(dataset, shares, self.sizes, rng, groups=majority)


@dataclass(frozen=True, eq=False)
class GivenLabelCounts:
    """Device i has exactly the label counts of real device i; samples come from the data set."""

    given: LabelCounts

    def assign(self, dataset: Dataset, num_devices: int, rng: np.random.Generator) -> Partition:
        _present(dataset, num_devices, 1)
        if num_devices > len(self.given) or self.given.num_classes != dataset.num_classes:
            raise InvalidSetting(
                f"{self.given.name} has {len(self.given)} devices and {self.given.num_classes} labels, asked for are "
                f"{num_devices} and {dataset.num_classes} of {dataset.name}; nothing was dealt"
            )
        return Partition(deal(class_pools(dataset), self.given.counts[:num_devices], rng))


def _present(dataset: Dataset, num_devices: int, needed: int) -> IntArray:
    """The labels that occur, at least `needed` of them."""
    require_devices(num_devices)
    present = np.flatnonzero(dataset.class_counts)
    if not 1 <= needed <= len(present):
        raise InvalidSetting(
            f"a device cannot have {needed} labels, {dataset.name} has {len(present)}; nothing was dealt"
        )
    return present


def _dealt(
    dataset: Dataset,
    shares: FloatArray,
    sizes: Sizes,
    rng: np.random.Generator,
    *,
    groups: IntArray | None = None,
    least: int = 1,
) -> Partition:
    pools = class_pools(dataset)
    counts = class_counts(shares, sizes, dataset.class_counts, least, rng)
    return Partition(deal(pools, counts, rng), groups)
