"""Three kinds of data from scikit-learn's digits: each kind has its own favourite digits and its own way up.

A device of a kind holds images of that kind. What is tested on is never trained on, by any device, turned or not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from server_kit.simulation.datasets.dataset import Dataset

LABELS = 10
TRAIN_RECORDS, TEST_RECORDS = 300, 60
_TESTED_SHARE = 0.25
_FAVOURITE_SHARE = 0.6


@dataclass(frozen=True)
class Kind:
    """What devices of one kind hold: mostly some of the digits, these equally often, turned by quarter turns."""

    name: str
    favourites: tuple[int, ...]
    degrees: int


KINDS = (
    Kind("upright, mostly 0-3", (0, 1, 2, 3), 0),
    Kind("on its side, mostly 3-6", (3, 4, 5, 6), 90),
    Kind("upside down, mostly 6-9", (6, 7, 8, 9), 180),
)


@dataclass(frozen=True, eq=False)
class Records:
    """Images as rows of pixels from 0 to 1, and their labels."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]

    def save(self, path: Path) -> None:
        np.savez(path, images=self.images, labels=self.labels)

    @classmethod
    def load(cls, path: Path) -> Records:
        with np.load(path, allow_pickle=False) as arrays:
            return cls(arrays["images"], arrays["labels"])


@dataclass(frozen=True, eq=False)
class DeviceRecords:
    """All that one device holds. Only `train` goes to the device; the demo keeps `test` to measure with."""

    name: str
    kind: int
    train: Records
    test: Records


def deal(num_devices: int, num_kinds: int = len(KINDS), seed: int = 0) -> list[DeviceRecords]:
    """Records for so many devices, the first so many kinds by turns; the same for the same seed."""
    from server_kit.simulation.datasets.digits import Digits

    digits = Digits().load()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(digits))
    cut = round(_TESTED_SHARE * len(digits))
    pools = {"train": order[cut:], "test": order[:cut]}
    return [
        DeviceRecords(
            f"device-{number:02d}",
            number % num_kinds,
            _drawn(digits, pools["train"], TRAIN_RECORDS, KINDS[number % num_kinds], rng),
            _drawn(digits, pools["test"], TEST_RECORDS, KINDS[number % num_kinds], rng),
        )
        for number in range(num_devices)
    ]


def _drawn(digits: Dataset, pool: NDArray[np.int64], count: int, kind: Kind, rng: np.random.Generator) -> Records:
    from server_kit.simulation.rotation import rotate

    labels = digits.y[pool]
    of_each = round(_FAVOURITE_SHARE * count / len(kind.favourites))
    favourites = [rng.choice(pool[labels == label], of_each, replace=False) for label in kind.favourites]
    others = pool[~np.isin(labels, kind.favourites)]
    rest = rng.choice(others, count - of_each * len(favourites), replace=False)
    rows = np.concatenate([*favourites, rest])
    images = rotate(digits.x[rows], kind.degrees).reshape(count, -1)
    return Records(np.multiply(images, np.float32(digits.scale), dtype=np.float32), digits.y[rows])
