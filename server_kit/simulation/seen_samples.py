"""The samples of a fleet as its devices see them: each (sample, transform) that somebody needs, computed once.

Devices of a group share the turned images; where nothing is turned or relabelled, the data set itself serves
and nothing is copied. When data shift, the world goes from one stage to the next; both are in the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from server_kit.simulation.datasets.dataset import Dataset, Inputs
from server_kit.simulation.ragged import BoolArray, IntArray, Ragged
from server_kit.simulation.transforms import Transform

Part = Literal["train", "test"]


@dataclass(frozen=True, eq=False)
class Table:
    """Inputs and labels of all that devices see, and where the sample `row` under transform t stands in it."""

    x: Inputs
    y: IntArray
    place: IntArray
    """[transforms, samples]; meaningless where nobody needs that."""

    @classmethod
    def of(cls, dataset: Dataset, transforms: Sequence[Transform], needed: BoolArray) -> Table:
        """`needed` [transforms, samples] says what somebody needs."""
        if all(transform.is_identity or not wanted.any() for transform, wanted in zip(transforms, needed, strict=True)):
            return cls(dataset.x, dataset.y, np.broadcast_to(np.arange(len(dataset)), needed.shape))
        place = np.cumsum(needed).reshape(needed.shape) - 1
        x = np.empty((int(place[-1, -1]) + 1, *dataset.x.shape[1:]), dtype=dataset.x.dtype)
        y = np.empty(len(x), dtype=np.int64)
        for transform, wanted, places in zip(transforms, needed, place, strict=True):
            if wanted.any():
                x[places[wanted]] = transform.inputs(dataset.x[wanted])
                y[places[wanted]] = transform.labels(dataset.y[wanted])
        return cls(x, y, place)


@dataclass(frozen=True, eq=False)
class SeenSamples:
    """Which rows of the data set each device has in each part, and under which transform in each stage."""

    dataset: Dataset
    rows: Mapping[Part, Ragged[np.int64]]
    transforms: tuple[Transform, ...]
    seen_as: Mapping[Part, IntArray]
    """For each part the number of each device's transform, [stages, devices]."""

    @cached_property
    def table(self) -> Table:
        needed = np.zeros((len(self.transforms), len(self.dataset)), dtype=bool)
        for part, rows in self.rows.items():
            for numbers in self.seen_as[part]:
                needed[np.repeat(numbers, rows.sizes), rows.values] = True
        return Table.of(self.dataset, self.transforms, needed)

    def located(self, part: Part, stage: int) -> Ragged[np.int64]:
        """For each device the rows of the table that it sees."""
        rows = self.rows[part]
        if self.table.x is self.dataset.x:
            return rows
        return Ragged(self.table.place[np.repeat(self.seen_as[part][stage], rows.sizes), rows.values], rows.offsets)

    def located_for(self, device: int, part: Part, stage: int) -> IntArray:
        """The same for one device, without looking at the others."""
        located: IntArray = self.table.place[self.seen_as[part][stage, device], self.rows[part][device]]
        return located
