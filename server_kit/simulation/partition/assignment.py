"""Who gets which samples: the outcome of every partition rule, and the rule's one method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.datasets.dataset import Dataset
from server_kit.simulation.ragged import IntArray, Ragged
from server_kit.simulation.transforms import IDENTITY, Transform


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of each device as rows of the data set, and how the device sees them.

    Rows of a device are all different. `label_groups` is the true group of each device as far as its choice
    of samples makes one, None where a rule forms no groups.
    """

    rows: Ragged[np.int64]
    label_groups: IntArray | None = None
    transforms: tuple[Transform, ...] = (IDENTITY,)
    transform_of: IntArray | None = None
    """For each device the number of its transform; None: all have the first."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def groups(self) -> IntArray | None:
        """The true group of each device: devices alike in their choice of samples and in how they see them."""
        if self.transform_of is None:
            return self.label_groups
        return combined(self.label_groups, self.transform_of)

    def transform(self, device: int) -> Transform:
        """How this device sees its samples."""
        return self.transforms[0 if self.transform_of is None else int(self.transform_of[device])]


class PartitionRule(Protocol):
    """Deals the samples of a data set to devices; the same generator, the same deal."""

    def assign(self, dataset: Dataset, num_devices: int, rng: np.random.Generator) -> Partition: ...


def combined(first: IntArray | None, second: IntArray) -> IntArray:
    """Groups by both criteria, numbered from 0; a first criterion that is unknown separates nobody."""
    if first is None:
        return np.unique(second, return_inverse=True)[1]
    return np.unique(first * (second.max() + 1) + second, return_inverse=True)[1]


def require_devices(num_devices: int) -> None:
    """Raise unless there is at least one device."""
    if num_devices < 1:
        raise InvalidSetting(f"num_devices must be at least 1, got {num_devices}; nothing was dealt")
