"""From shares to whole samples: how many of each class each device gets."""

from __future__ import annotations

import numpy as np

from server_kit.simulation.partition.sizes import Sizes
from server_kit.simulation.ragged import FloatArray, IntArray

_PARTS = 1 << 20
_HALVINGS = 20  # of the interval in which the mean size lies: finer than one sample


def apportion(shares: FloatArray, totals: IntArray, starts: FloatArray) -> IntArray:
    """Whole counts [n, k] that add up to `totals` [n], each within one of its share (of any scale) of the total.

    The shares are laid end to end and marked off at every whole step from a start in [0, 1): with random
    `starts` [n] nobody is favoured by rounding, and what has no share gets nothing.
    """
    ends = np.cumsum(shares, axis=1, dtype=np.float64)
    ends *= totals[:, None] * _PARTS / ends[:, -1:]
    # In whole parts of a sample, because the sum of two floats may round up to one sample too many.
    marks = (np.rint(ends).astype(np.int64) + (starts[:, None] * _PARTS).astype(np.int64)) // _PARTS
    return np.diff(marks, axis=1, prepend=0)


def class_counts(shares: FloatArray, sizes: Sizes, supply: IntArray, least: int, rng: np.random.Generator) -> IntArray:
    """Counts [devices, classes] with these shares and sizes.

    Where `sizes` names no mean, devices get as many as keep every class within its `supply`, so that no sample
    is dealt twice; `least` each at any rate.
    """
    weights = sizes.weights(len(shares), rng)
    starts, first = rng.random(len(shares)), rng.random(1)

    def counts(mean_samples: float) -> IntArray:
        whole = np.array([round(mean_samples * len(weights))])
        totals = apportion(weights[None], whole, first)[0]
        return apportion(shares, np.maximum(totals, max(least, sizes.least)), starts)

    if sizes.mean_samples is not None:
        return counts(sizes.mean_samples)
    low, high = 0.0, supply.sum() / len(shares)
    if _fits(everything := counts(high), supply):
        return everything
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _fits(counts(middle), supply) else (low, middle)
    return counts(low)


def _fits(counts: IntArray, supply: IntArray) -> bool:
    return bool((counts.sum(axis=0) <= supply).all())
