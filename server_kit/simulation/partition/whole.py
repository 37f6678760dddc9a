"""Devices as they are: real users, or (the control) a random cut of everything."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.datasets.dataset import Dataset
from server_kit.simulation.partition.apportion import class_counts
from server_kit.simulation.partition.assignment import Partition, require_devices
from server_kit.simulation.partition.dealing import deal, require_loose
from server_kit.simulation.partition.sizes import Equal, Sizes
from server_kit.simulation.ragged import Ragged


@dataclass(frozen=True)
class Iid:
    """The control: every device is a random sample of the same data, so there is one true group."""

    sizes: Sizes = field(default_factory=Equal)

    def assign(self, dataset: Dataset, num_devices: int, rng: np.random.Generator) -> Partition:
        require_devices(num_devices)
        require_loose(dataset)
        counts = class_counts(np.ones((num_devices, 1)), self.sizes, np.array([len(dataset)]), 1, rng)
        rows = deal([np.arange(len(dataset))], counts, rng)
        return Partition(rows, np.zeros(num_devices, dtype=np.int64))


@dataclass(frozen=True)
class NaturalUsers:
    """Each device is one of the data set's users, its samples in their order; true groups are populations.

    Where fewer devices are asked for than there are users with `least_samples`, they are chosen at random.
    """

    least_samples: int = 1

    def assign(self, dataset: Dataset, num_devices: int, rng: np.random.Generator) -> Partition:
        require_devices(num_devices)
        if dataset.users is None:
            raise InvalidSetting(f"{dataset.name} does not say who made its samples; nothing was dealt")
        counts = np.unique(dataset.users, return_counts=True)[1]
        able = np.flatnonzero(counts >= self.least_samples)
        if num_devices > len(able):
            raise InvalidSetting(
                f"{dataset.name} has {len(able)} users with at least {self.least_samples} samples, "
                f"not {num_devices}; nothing was dealt"
            )
        chosen = np.sort(rng.permutation(able)[:num_devices])
        all_rows = Ragged.of_sizes(np.argsort(dataset.users, kind="stable"), counts)
        rows = np.concatenate([all_rows[user] for user in chosen])
        ragged = Ragged.of_sizes(rows, counts[chosen])
        groups = None if dataset.populations is None else dataset.populations[rows[ragged.offsets[:-1]]]
        return Partition(ragged, groups)
