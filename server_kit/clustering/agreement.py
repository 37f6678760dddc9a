"""How well two partitions of the same devices agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server_kit.clustering.checks import require_same_length
from server_kit.clustering.partition import Labels, as_labels

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Shared:
    """The non-empty fields of the contingency table: how many devices, in which cluster of the first partition."""

    counts: Counts
    first: Counts
    sizes_first: Counts
    sizes_second: Counts


def adjusted_rand_index(first: Labels, second: Labels) -> float:
    """1 for the same partition, about 0 for unrelated ones, below 0 for less agreement than by chance."""
    shared = _shared(first, second)
    together, in_first, in_second, everywhere = (
        _pairs(counts) for counts in (shared.counts, shared.sizes_first, shared.sizes_second, np.array([len(first)]))
    )
    expected = in_first * in_second / max(1.0, everywhere)
    most = (in_first + in_second) / 2
    # Both all alone, or both all together: nothing is left to chance, and they agree.
    return 1.0 if most == expected else (together - expected) / (most - expected)


def purity(found: Labels, truth: Labels) -> float:
    """The share of devices that belong to the commonest true group of their cluster; 1 without devices."""
    shared = _shared(found, truth)
    commonest = np.zeros(len(shared.sizes_first), dtype=np.int64)
    np.maximum.at(commonest, shared.first, shared.counts)
    return float(commonest.sum() / len(found)) if len(found) else 1.0


def _shared(first: Labels, second: Labels) -> _Shared:
    require_same_length(len(first), len(second), "two partitions")
    _, one = np.unique(as_labels(first), return_inverse=True)
    names, other = np.unique(as_labels(second), return_inverse=True)
    fields, counts = np.unique(one * len(names) + other, return_counts=True)
    return _Shared(counts, fields // max(1, len(names)), np.bincount(one), np.bincount(other))


def _pairs(counts: Counts) -> float:
    """How many pairs of devices there are within groups of these sizes."""
    sizes = counts.astype(np.float64)
    return float((sizes * (sizes - 1)).sum() / 2)
