"""True groups made on top of another rule: devices that see turned images, or call things by other names."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.datasets.dataset import Dataset
from server_kit.simulation.partition.assignment import Partition, PartitionRule
from server_kit.simulation.partition.whole import Iid
from server_kit.simulation.ragged import IntArray
from server_kit.simulation.transforms import IDENTITY, Transform


@dataclass(frozen=True)
class RotationGroups:
    """Group g sees its images turned by `degrees[g]`; groups are equal in size, up to one device."""

    degrees: tuple[float, ...] = (0, 90, 180, 270)
    base: PartitionRule = field(default_factory=Iid)

    def __post_init__(self) -> None:
        if not self.degrees or len({degrees % 360 for degrees in self.degrees}) < len(self.degrees):
            raise InvalidSetting(f"rotations must be different angles, got {self.degrees}; nothing was dealt")

    def assign(self, dataset: Dataset, num_devices: int, rng: np.random.Generator) -> Partition:
        if dataset.x.ndim < 3 or dataset.x.shape[-1] != dataset.x.shape[-2]:
            raise InvalidSetting(f"{dataset.name} does not hold square images to rotate; nothing was dealt")
        dealt = self.base.assign(dataset, num_devices, rng)
        return _grouped(dealt, tuple(Transform(degrees) for degrees in self.degrees), rng)


@dataclass(frozen=True)
class LabelPermutationGroups:
    """Group 0 keeps the labels; each other group has its own random permutation of them."""

    groups: int = 4
    base: PartitionRule = field(default_factory=Iid)

    def assign(self, dataset: Dataset, num_devices: int, rng: np.random.Generator) -> Partition:
        possible = np.prod(np.arange(1, dataset.num_classes + 1, dtype=np.float64))
        if not 1 <= self.groups <= possible:
            raise InvalidSetting(
                f"there are not {self.groups} ways to permute {dataset.num_classes} labels; nothing was dealt"
            )
        dealt = self.base.assign(dataset, num_devices, rng)
        ways = [IDENTITY]
        while len(ways) < self.groups:
            way = Transform(relabel=tuple(rng.permutation(dataset.num_classes).tolist()))
            if way not in ways:
                ways.append(way)
        return _grouped(dealt, tuple(ways), rng)


def _grouped(dealt: Partition, ways: tuple[Transform, ...], rng: np.random.Generator) -> Partition:
    """Each device gets one of the `ways`, after whatever transform it had already."""
    way_of = rng.permutation(len(dealt)) % len(ways)
    before = np.zeros(len(dealt), dtype=np.int64) if dealt.transform_of is None else dealt.transform_of
    together = tuple(first.then(way) for first in dealt.transforms for way in ways)
    transforms, numbers = distinct(together)
    return replace(dealt, transforms=transforms, transform_of=numbers[before * len(ways) + way_of])


def distinct(transforms: tuple[Transform, ...]) -> tuple[tuple[Transform, ...], IntArray]:
    """Each transform once, and for each of those that came in its number among them."""
    number = {transform: place for place, transform in enumerate(dict.fromkeys(transforms))}
    return tuple(number), np.array([number[transform] for transform in transforms], dtype=np.int64)
