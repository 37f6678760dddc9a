"""Handing out samples: each pool is shuffled and dealt from the top, and again from the start when it is used up.

So no sample is dealt twice before all of its pool have been dealt once, and a device never holds a sample twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.datasets.dataset import Dataset
from server_kit.simulation.ragged import IntArray, Ragged

_VALUES_AT_ONCE = 1 << 20


def class_pools(dataset: Dataset) -> list[IntArray]:
    """The rows of each class."""
    require_loose(dataset)
    order = np.argsort(dataset.y, kind="stable")
    return np.split(order, np.cumsum(dataset.class_counts)[:-1])


def require_loose(dataset: Dataset) -> None:
    """Raise where samples overlap each other, so that dealing them singly would put a test into training."""
    if dataset.blocks is not None:
        raise InvalidSetting(
            f"samples of {dataset.name} overlap within their blocks and cannot be dealt one by one; "
            "use NaturalUsers, which keeps blocks whole; nothing was dealt"
        )


def deal(pools: Sequence[IntArray], counts: IntArray, rng: np.random.Generator) -> Ragged[np.int64]:
    """Device i gets `counts[i, p]` samples of pool p, all different, in random order."""
    _check_supply(pools, counts)
    sizes = counts.sum(axis=1)
    dealt = Ragged.of_sizes(np.empty(sizes.sum(), dtype=np.int64), sizes)
    # Where the samples of each pool begin in each device's row.
    begin = dealt.offsets[:-1].copy()
    for pool, wanted in zip(pools, counts.T, strict=True):
        before = np.cumsum(wanted) - wanted
        places = np.repeat(begin - before, wanted) + np.arange(wanted.sum())
        dealt.values[places] = _stream(pool, wanted, rng)
        begin += wanted
    shuffle_rows(dealt, rng)
    return dealt


def shuffle_rows(ragged: Ragged[np.int64], rng: np.random.Generator) -> None:
    """Shuffle each row in place; a part of the rows at a time, to keep memory flat."""
    starts = np.searchsorted(ragged.offsets, np.arange(0, max(1, len(ragged.values)), _VALUES_AT_ONCE), side="left")
    for first, last in zip(starts, [*starts[1:], len(ragged)], strict=True):
        low, high = ragged.offsets[first], ragged.offsets[last]
        owners = np.repeat(np.arange(last - first), np.diff(ragged.offsets[first : last + 1]))
        ragged.values[low:high] = ragged.values[low:high][np.argsort(owners + rng.random(high - low))]


def _stream(pool: IntArray, wanted: IntArray, rng: np.random.Generator) -> IntArray:
    """Samples for all devices one after the other: shuffled laps through the pool."""
    total = int(wanted.sum())
    if total == 0:
        return np.empty(0, dtype=np.int64)
    laps = -(-total // len(pool))
    places = rng.permuted(np.broadcast_to(np.arange(len(pool)), (laps, len(pool))), axis=1)
    _separate_laps(places, np.cumsum(wanted), wanted)
    dealt: IntArray = pool[places.reshape(-1)[:total]]
    return dealt


def _separate_laps(places: IntArray, ends: IntArray, wanted: IntArray) -> None:
    """Where a device takes the end of one lap and the start of the next, let these be different samples."""
    size = places.shape[1]
    bounds = np.arange(1, len(places)) * size
    devices = np.searchsorted(ends, bounds, side="right")
    held = np.zeros(size, dtype=bool)
    for lap, device in enumerate(devices, start=1):
        tail = places[lap - 1, size - (lap * size - (ends[device] - wanted[device])) :]
        held[tail] = True
        again = held[places[lap]]
        held[tail] = False
        places[lap] = np.concatenate([places[lap][~again], places[lap][again]])


def _check_supply(pools: Sequence[IntArray], counts: IntArray) -> None:
    supply = np.array([len(pool) for pool in pools])
    short = np.flatnonzero(counts.max(axis=0) > supply)
    if len(short):
        pool = int(short[0])
        raise InvalidSetting(
            f"a device would need {counts[:, pool].max()} different samples of class {pool}, of which there are "
            f"{supply[pool]}; ask for fewer samples or another data set; nothing was dealt"
        )
