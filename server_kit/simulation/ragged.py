"""Rows of different lengths in two flat arrays: a hundred thousand devices without as many Python lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Ragged(Generic[Scalar]):
    """Row i is `values[offsets[i]:offsets[i + 1]]`, handed out as a view."""

    values: NDArray[Scalar]
    offsets: IntArray

    @classmethod
    def of_sizes(cls, values: NDArray[Scalar], sizes: NDArray[np.integer[Any]]) -> Ragged[Scalar]:
        """Cut `values` into rows of these lengths, in order."""
        offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
        np.cumsum(sizes, out=offsets[1:])
        return cls(values, offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> NDArray[Scalar]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def sizes(self) -> IntArray:
        """How long each row is."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> IntArray:
        """For each value, the number of its row."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def where(self, chosen: BoolArray) -> Ragged[Scalar]:
        """The same rows with only the chosen values in them, in their order."""
        kept = np.concatenate([[0], np.cumsum(chosen)])
        return Ragged(self.values[chosen], kept[self.offsets])
