"""How evenly a fleet is served: accuracy over devices, each with the model of its cohort, and who took part."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from server_kit.errors import InvalidSetting
from server_kit.simulation.ragged import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class AccuracySpread:
    """Accuracy over devices, each counting once; shares from 0 to 1, NaN where no device could be tested."""

    mean: float
    worst_tenth: float
    """Mean over the tenth of the devices that do worst, one device at least."""
    best_tenth: float
    variance: float
    tested: int
    untested: int
    """Devices without test samples, left out of the above."""

    @property
    def variance_points(self) -> float:
        """The variance in squared percentage points, as Auxo reports it."""
        return self.variance * 1e4


def accuracy_spread(accuracies: ArrayLike) -> AccuracySpread:
    """Of one accuracy for each device; NaN for a device without test samples."""
    values: FloatArray = np.asarray(accuracies, dtype=np.float64)
    known = np.sort(values[~np.isnan(values)])
    if values.ndim != 1 or (known < 0).any() or (known > 1).any():
        raise InvalidSetting("accuracies are one share from 0 to 1 for each device; nothing was computed")
    if not len(known):
        return AccuracySpread(math.nan, math.nan, math.nan, math.nan, 0, len(values))
    tenth = max(1, round(len(known) / 10))
    return AccuracySpread(
        mean=float(known.mean()),
        worst_tenth=float(known[:tenth].mean()),
        best_tenth=float(known[-tenth:].mean()),
        variance=float(known.var()),
        tested=len(known),
        untested=len(values) - len(known),
    )


def included_groups(took_part: BoolArray, groups: IntArray, share: float = 0.75) -> tuple[int, int]:
    """In how many groups at least `share` of the devices took part, and how many groups there are (HACCS)."""
    _, numbers, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    reached = np.bincount(numbers, weights=took_part, minlength=len(sizes)) / sizes
    return int((reached >= share).sum()), len(sizes)
