"""The format of MNIST: a magic number, the sizes, then bytes; plain or gzipped."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from server_kit.simulation.datasets.dataset import TEST, TRAIN, Dataset
from server_kit.simulation.datasets.errors import DatasetNotFound, InvalidDataset
from server_kit.simulation.datasets.files import readable, require_file

_UNSIGNED_BYTE = 0x08
_LARGEST_BYTES = 1 << 32  # a few kilobytes of gzip can claim to be much more


@dataclass(frozen=True)
class IdxFiles:
    """A folder with the four files of MNIST, or of a data set that took its names; the test part may be missing."""

    folder: Path

    def load(self) -> Dataset:
        parts = [self._part("train", TRAIN)]
        if _with_or_without_gz(self.folder / "t10k-images-idx3-ubyte").is_file():
            parts.append(self._part("t10k", TEST))
        x, y, split = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return Dataset(x, y, split=split, name=self.folder.name, scale=1 / 255)

    def _part(self, prefix: str, split: int) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
        x = read_idx(self.folder / f"{prefix}-images-idx3-ubyte")
        y = read_idx(self.folder / f"{prefix}-labels-idx1-ubyte").astype(np.int64)
        if len(x) != len(y):
            raise InvalidDataset(f"{self.folder}: {len(x)} images of {prefix} have {len(y)} labels; nothing was kept")
        return x, y, np.full(len(y), split, dtype=np.int64)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes; `.gz` is tried where the plain file is missing."""
    path = require_file(_with_or_without_gz(path))
    with readable(path):
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            magic = stream.read(4)
            if len(magic) < 4 or magic[:2] != b"\0\0":
                raise InvalidDataset(f"{path} is no idx file; nothing was kept")
            if magic[2] != _UNSIGNED_BYTE:
                raise InvalidDataset(f"{path} does not hold unsigned bytes; nothing was kept")
            shape = tuple(int.from_bytes(stream.read(4)) for _ in range(magic[3]))
            size = math.prod(shape)
            if size > _LARGEST_BYTES:
                raise InvalidDataset(f"{path} claims {size} bytes, which no data set here has; nothing was kept")
            content = stream.read(size + 1)
        if len(content) != size:
            raise InvalidDataset(f"{path} does not hold the {size} bytes that it claims; nothing was kept")
        return np.frombuffer(bytearray(content), dtype=np.uint8).reshape(shape)


def _with_or_without_gz(path: Path) -> Path:
    zipped = path.with_name(f"{path.name}.gz")
    return zipped if not path.is_file() and zipped.is_file() else path


def looks_like_idx(folder: Path) -> bool:
    """Whether the folder holds a training part in this format."""
    try:
        require_file(_with_or_without_gz(folder / "train-images-idx3-ubyte"))
    except DatasetNotFound:
        return False
    return True
