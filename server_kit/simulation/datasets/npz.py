"""Data sets as `.npz` files: `x`, `y`, and whatever of `user`, `split`, `population`, `block` and `classes` is known.

Bytes are images and scaled to [0, 1]; floats are taken as they are. Images with the channels last are turned
to have them first, as the models expect them. Where there is no `block` but an `experiment` (har_hapt),
a block is one experiment of one user.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server_kit.simulation.datasets.dataset import Dataset, Inputs
from server_kit.simulation.datasets.errors import InvalidDataset
from server_kit.simulation.datasets.files import as_codes, as_integers, read_arrays

_CHANNELS = (1, 3, 4)
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class NpzFile:
    """One `.npz` file; `split` names the array that says 0 for training and 1 for testing."""

    path: Path
    split: str = "split"

    def load(self) -> Dataset:
        arrays: Arrays = read_arrays(self.path)
        for name in ("x", "y"):
            if name not in arrays:
                raise InvalidDataset(f"{self.path} has no array {name!r}, only {sorted(arrays)}; nothing was kept")
        x = _inputs(arrays["x"], self.path)
        return Dataset(
            x,
            as_integers(arrays["y"], self.path, "y"),
            users=as_codes(arrays["user"]) if "user" in arrays else None,
            split=as_integers(arrays[self.split], self.path, self.split) if self.split in arrays else None,
            name=self.path.stem,
            num_classes=len(arrays["classes"]) if "classes" in arrays else 0,
            populations=as_codes(arrays["population"]) if "population" in arrays else None,
            blocks=_blocks(arrays),
            scale=1 / 255 if x.dtype == np.uint8 else 1.0,
        )


def _inputs(x: NDArray[Any], path: Path) -> Inputs:
    if x.dtype != np.uint8 and not np.issubdtype(x.dtype, np.floating):
        raise InvalidDataset(f"x in {path} must be uint8 or floats, got {x.dtype}; nothing was kept")
    if x.ndim == 4 and x.shape[3] in _CHANNELS and x.shape[1] not in _CHANNELS:
        x = np.moveaxis(x, 3, 1)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x, dtype=np.uint8)
    return np.ascontiguousarray(x, dtype=np.float32)


def _blocks(arrays: Arrays) -> NDArray[np.int64] | None:
    if "block" in arrays:
        return as_codes(arrays["block"])
    if "experiment" not in arrays:
        return None
    experiments = as_codes(arrays["experiment"])
    if "user" not in arrays or arrays["user"].shape != experiments.shape:
        return experiments
    return as_codes(as_codes(arrays["user"]) * (experiments.max() + 1) + experiments)
