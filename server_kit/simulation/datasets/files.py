"""What all readers of files share: a missing file and broken bytes become one sentence."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from server_kit.simulation.datasets.errors import DatasetNotFound, InvalidDataset


def require_file(path: Path) -> Path:
    """The path, if a file is there."""
    if not path.is_file():
        raise DatasetNotFound(f"{path} not found; give data_dir or use dataset = 'digits'; nothing was read")
    return path


_BROKEN = (OSError, EOFError, KeyError, TypeError, ValueError, RecursionError, zipfile.BadZipFile, zlib.error)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Whatever a broken or hostile file makes a reader raise is an `InvalidDataset` that names the file."""
    try:
        yield
    except InvalidDataset:
        raise
    except _BROKEN as error:
        raise InvalidDataset(f"{path} cannot be read ({error}); fetch it again; nothing was kept") from error


def read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """All arrays of an `.npz` file. Objects would be pickles, which run what they hold: they are refused."""
    with readable(require_file(path)), path.open("rb") as stream:
        stored = np.load(stream, allow_pickle=False)
        if isinstance(stored, np.ndarray):
            raise InvalidDataset(f"{path} holds a single array without a name; write it with numpy.savez")
        with stored:
            return {name: stored[name] for name in stored.files}


def as_integers(values: NDArray[np.generic], path: Path, what: str) -> NDArray[np.int64]:
    """Whole numbers as int64; floats are refused, since a rounded label is another label."""
    if not np.issubdtype(values.dtype, np.integer):
        raise InvalidDataset(f"{what} in {path} must be whole numbers, got {values.dtype}; nothing was kept")
    return values.astype(np.int64)


def as_codes(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Names or numbers as 0, 1, 2, … in sorted order."""
    codes: NDArray[np.int64] = np.unique(values, return_inverse=True)[1].astype(np.int64)
    return codes
