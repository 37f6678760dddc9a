"""Which of a device's samples are kept for testing. What is tested on is never trained on, by any device.

A device that has only one sample (or one block) trains on it and has nothing to test with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.datasets.dataset import TEST, Dataset
from server_kit.simulation.partition.assignment import Partition
from server_kit.simulation.ragged import BoolArray, IntArray, Ragged


class Holdout(Protocol):
    """Decides for each sample of each device whether it is a test sample."""

    def test_mask(self, dataset: Dataset, partition: Partition, rng: np.random.Generator) -> BoolArray:
        """One entry for each value of `partition.rows`."""


@dataclass(frozen=True)
class LastFraction:
    """The last `fraction` of each device's samples.

    Where devices share samples, a sample is a test sample for all or for none: `fraction` of the shared data
    set is chosen at random, and a device tests on what it has of these.
    """

    fraction: float = 0.2

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    def test_mask(self, dataset: Dataset, partition: Partition, rng: np.random.Generator) -> BoolArray:
        if dataset.blocks is not None:
            raise InvalidSetting(
                f"samples of {dataset.name} overlap within their blocks; hold out WholeBlocks; nothing was split"
            )
        rows = partition.rows
        if np.bincount(rows.values).max() > 1:
            return self._shared(rows, len(dataset), rng)
        kept = rows.sizes - np.minimum(_tests(rows.sizes, self.fraction), rows.sizes - 1)
        place = np.arange(len(rows.values)) - np.repeat(rows.offsets[:-1], rows.sizes)
        return place >= np.repeat(kept, rows.sizes)

    def _shared(self, rows: Ragged[np.int64], samples: int, rng: np.random.Generator) -> BoolArray:
        tested = np.zeros(samples, dtype=bool)
        tested[rng.permutation(samples)[: round(self.fraction * samples)]] = True
        # A device with nothing else to train on gets its first sample back, and so do all who share it.
        trains = np.logical_or.reduceat(~tested[rows.values], rows.offsets[:-1])
        tested[rows.values[rows.offsets[:-1][~trains]]] = False
        return tested[rows.values]


@dataclass(frozen=True)
class WholeBlocks:
    """The last blocks of each device, as many as come nearest to `fraction` of them, one at least."""

    fraction: float = 0.2

    def __post_init__(self) -> None:
        _check_fraction(self.fraction)

    def test_mask(self, dataset: Dataset, partition: Partition, rng: np.random.Generator) -> BoolArray:
        if dataset.blocks is None:
            raise InvalidSetting(f"{dataset.name} has no blocks; hold out LastFraction; nothing was split")
        rows = partition.rows
        blocks = dataset.blocks[rows.values]
        owned, which = np.unique(rows.owners * (dataset.blocks.max() + 1) + blocks, return_inverse=True)
        per_device = np.bincount(owned // (dataset.blocks.max() + 1), minlength=len(rows))
        if len(np.unique(owned % (dataset.blocks.max() + 1))) < len(owned):
            raise InvalidSetting("a block was dealt to several devices; use NaturalUsers; nothing was split")
        kept = per_device - np.minimum(_tests(per_device, self.fraction), per_device - 1)
        place = np.arange(len(owned)) - np.repeat(np.cumsum(per_device) - per_device, per_device)
        return (place >= np.repeat(kept, per_device))[which]


@dataclass(frozen=True)
class GivenSplit:
    """The test part of the data set's own split."""

    def test_mask(self, dataset: Dataset, partition: Partition, rng: np.random.Generator) -> BoolArray:
        if dataset.split is None:
            raise InvalidSetting(f"{dataset.name} comes without a split; hold out LastFraction; nothing was split")
        tested: BoolArray = dataset.split[partition.rows.values] == TEST
        if not np.logical_or.reduceat(~tested, partition.rows.offsets[:-1]).all():
            raise InvalidSetting(
                f"a device would have only test samples of {dataset.name}; hold out LastFraction; nothing was split"
            )
        return tested


def _tests(available: IntArray, fraction: float) -> IntArray:
    """At least one where there is a fraction at all; the caller keeps one for training."""
    tests: IntArray = np.rint(fraction * available).astype(np.int64)
    return np.maximum(tests, 1 if fraction > 0 else 0)


def _check_fraction(fraction: float) -> None:
    if not 0 <= fraction < 1:
        raise InvalidSetting(f"the fraction held out must be at least 0 and below 1, got {fraction}; nothing was split")
