"""How many samples of each label a device has, without the samples: all that histogram clustering needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from server_kit.simulation.datasets.errors import InvalidDataset
from server_kit.simulation.datasets.files import as_integers, read_arrays
from server_kit.simulation.ragged import IntArray, Ragged


@dataclass(frozen=True, eq=False)
class LabelCounts:
    """Counts [devices, classes]; every device has a sample."""

    counts: IntArray
    name: str = "label counts"

    def __post_init__(self) -> None:
        if self.counts.ndim != 2 or 0 in self.counts.shape or self.counts.dtype != np.int64:
            raise InvalidDataset(
                f"{self.name} must be int64 [devices, classes], got {self.counts.dtype} {self.counts.shape}; "
                "nothing was kept"
            )
        if self.counts.min() < 0 or self.counts.sum(axis=1).min() < 1:
            raise InvalidDataset(f"{self.name} has a negative count or a device without samples; nothing was kept")

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def num_classes(self) -> int:
        return int(self.counts.shape[1])

    @property
    def sizes(self) -> IntArray:
        """How many samples each device has."""
        sizes: IntArray = self.counts.sum(axis=1)
        return sizes

    def labels(self, device: int) -> IntArray:
        """The labels themselves, sorted, as a device would count them."""
        return np.repeat(np.arange(self.num_classes), self.counts[device])


@dataclass(frozen=True)
class LabelCountsFile:
    """An array [devices, classes] in an `.npz` file."""

    path: Path
    array: str = "speech_label_counts"

    def load(self) -> LabelCounts:
        return LabelCounts(_array(self.path, self.array), name=self.array)


def read_sizes(path: Path, array: str) -> IntArray:
    """How many samples real devices have, one number each, for `DrawnSizes`."""
    sizes = _array(path, array)
    if sizes.ndim != 1 or sizes.size == 0:
        raise InvalidDataset(
            f"{array!r} in {path} must be a number for each device, got {sizes.shape}; nothing was kept"
        )
    return sizes


def count_labels(rows: Ragged[np.int64], labels: IntArray, num_classes: int) -> IntArray:
    """Counts [devices, classes] of devices whose samples are `rows` of `labels`."""
    cells = rows.owners * num_classes + labels[rows.values]
    return np.bincount(cells, minlength=len(rows) * num_classes).reshape(len(rows), num_classes)


def _array(path: Path, name: str) -> IntArray:
    arrays = read_arrays(path)
    if name not in arrays:
        raise InvalidDataset(f"{path} has no array {name!r}, only {sorted(arrays)}; nothing was kept")
    return as_integers(arrays[name], path, name)
