"""LEAF's format: JSON files with `users` and `user_data`, in folders `train` and `test` or without such a split."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server_kit.simulation.datasets.dataset import TEST, TRAIN, Dataset
from server_kit.simulation.datasets.errors import DatasetNotFound, InvalidDataset
from server_kit.simulation.datasets.files import readable


@dataclass(frozen=True)
class LeafFolder:
    """All JSON files of a folder. LEAF writes images as flat lists: `image_shape` gives them their form back."""

    folder: Path
    image_shape: tuple[int, ...] | None = None

    def load(self) -> Dataset:
        files = leaf_files(self.folder)
        if not files:
            raise DatasetNotFound(
                f"no JSON of LEAF in {self.folder}; give data_dir or use dataset = 'digits'; nothing was read"
            )
        parts = [part for path, split in files for part in _parts(path, split)]
        if not parts:
            raise InvalidDataset(f"{self.folder} names no users with samples; nothing was kept")
        if len({part.x.shape[1:] for part in parts}) > 1:
            raise InvalidDataset(f"users in {self.folder} have inputs of different shapes; nothing was kept")
        code = {user: number for number, user in enumerate(sorted({part.user for part in parts}))}
        splits = [np.full(len(part.y), part.split) for part in parts if part.split is not None]
        return Dataset(
            self._shaped(np.concatenate([part.x for part in parts])),
            np.concatenate([part.y for part in parts]),
            users=np.concatenate([np.full(len(part.y), code[part.user]) for part in parts]),
            split=np.concatenate(splits) if splits else None,
            name=self.folder.name,
        )

    def _shaped(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        if self.image_shape is None:
            return x
        with readable(self.folder):
            return x.reshape(len(x), *self.image_shape)


@dataclass(frozen=True, eq=False)
class _Part:
    user: str
    split: int | None
    x: NDArray[np.float32]
    y: NDArray[np.int64]


def leaf_files(folder: Path) -> list[tuple[Path, int | None]]:
    """The JSON files of a folder, each with the part of the split that it belongs to."""
    found: list[tuple[Path, int | None]] = []
    for name, split in (("train", TRAIN), ("test", TEST)):
        found += [(path, split) for path in _json_files(folder / name)]
    return found or [(path, None) for path in _json_files(folder)]


def _json_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _parts(path: Path, split: int | None) -> Iterator[_Part]:
    with readable(path):
        content = json.loads(path.read_bytes())
        for user in content["users"]:
            samples = content["user_data"][user]
            x, y = _numbers(samples["x"], path), _labels(samples["y"], path)
            if len(x) != len(y):
                raise InvalidDataset(f"a user in {path} has {len(x)} inputs for {len(y)} labels; nothing was kept")
            if len(y):
                yield _Part(str(user), split, x, y)


def _numbers(values: Any, path: Path) -> NDArray[np.float32]:
    x = np.asarray(values)
    if x.dtype.kind not in "iuf":
        raise InvalidDataset(f"inputs in {path} are not numbers; text has to be encoded first; nothing was kept")
    return x.astype(np.float32)


def _labels(values: Any, path: Path) -> NDArray[np.int64]:
    y = np.asarray(values)
    if y.dtype.kind not in "iuf" or not np.isfinite(y).all() or (y != np.trunc(y)).any():
        raise InvalidDataset(f"labels in {path} are not whole numbers; nothing was kept")
    return y.astype(np.int64)
