"""Labelled samples, kept as compactly as they came: bytes stay bytes until a device trains on them.

A sample's input is `x[i] * scale`. What else is known of a sample stands beside it, one entry each: who made
it (`users`), which part of a published split it is in (`split`), which larger population its maker belongs to
(`populations`: a true group for clustering), and what it must stay together with (`blocks`: windows of one
recording overlap, so a block is trained on or tested on, never both).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from server_kit.simulation.datasets.errors import InvalidDataset
from server_kit.simulation.ragged import IntArray

Inputs = NDArray[np.uint8] | NDArray[np.float32]
TRAIN, TEST = 0, 1
"""The values of `split`."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """Inputs [N, ...] and labels [N]; images are [N, height, width] or [N, channels, height, width]."""

    x: Inputs
    y: IntArray
    users: IntArray | None = None
    split: IntArray | None = None
    name: str = "data"
    num_classes: int = 0
    """0: as many as the largest label asks for."""
    populations: IntArray | None = None
    blocks: IntArray | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check_inputs(self.name, self.x)
        for what, values in {"y": self.y, **self._beside()}.items():
            _check_beside(self.name, what, values, len(self.x))
        if self.num_classes == 0:
            object.__setattr__(self, "num_classes", int(self.y.max()) + 1)
        if self.y.min() < 0 or self.y.max() >= self.num_classes:
            raise InvalidDataset(f"labels of {self.name} lie outside 0..{self.num_classes - 1}; nothing was kept")
        if self.split is not None and not np.isin(self.split, (TRAIN, TEST)).all():
            raise InvalidDataset(f"split of {self.name} holds something else than 0 and 1; nothing was kept")

    def __len__(self) -> int:
        return len(self.x)

    @property
    def num_users(self) -> int:
        """How many people made these samples; 0 where that is unknown."""
        return 0 if self.users is None else len(np.unique(self.users))

    @property
    def class_counts(self) -> IntArray:
        """How many samples each class has."""
        return np.bincount(self.y, minlength=self.num_classes)

    def inputs(self, rows: IntArray) -> NDArray[np.float32]:
        """The inputs of these samples as numbers, scaled."""
        return np.multiply(self.x[rows], np.float32(self.scale), dtype=np.float32)

    def take(self, rows: IntArray) -> Dataset:
        """Only these samples, with all that is known of them."""
        beside: dict[str, Any] = {name: values[rows] for name, values in self._beside().items()}
        return replace(self, x=self.x[rows], y=self.y[rows], **beside)

    def subset(self, count: int, rng: np.random.Generator) -> Dataset:
        """`count` samples chosen at random; all where there are no more."""
        return self.take(np.sort(rng.permutation(len(self))[:count]))

    def _beside(self) -> Mapping[str, IntArray]:
        known = {"users": self.users, "split": self.split, "populations": self.populations, "blocks": self.blocks}
        return {name: values for name, values in known.items() if values is not None}


class DataSource(Protocol):
    """Where data come from; nothing is read before `load`."""

    def load(self) -> Dataset: ...


def _check_inputs(name: str, x: NDArray[Any]) -> None:
    if x.dtype not in (np.uint8, np.float32):
        raise InvalidDataset(f"x of {name} must be uint8 or float32, got {x.dtype}; convert it; nothing was kept")
    if x.ndim < 2 or x.size == 0:
        raise InvalidDataset(f"x of {name} must be an array for each sample, got shape {x.shape}; nothing was kept")
    if x.dtype == np.float32 and not np.isfinite(x).all():
        raise InvalidDataset(f"x of {name} holds NaN or infinity, which would spoil every model; nothing was kept")


def _check_beside(name: str, what: str, values: NDArray[Any], samples: int) -> None:
    if values.shape != (samples,):
        raise InvalidDataset(f"{what} of {name} has shape {values.shape}, x has {samples} samples; nothing was kept")
    if values.dtype != np.int64:
        raise InvalidDataset(f"{what} of {name} must be int64, got {values.dtype}; convert it; nothing was kept")
