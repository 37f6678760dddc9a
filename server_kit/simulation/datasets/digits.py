"""The 1,797 handwritten digits that come with scikit-learn: real data without a download."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privacy.errors import MissingExtra
from server_kit.simulation.datasets.dataset import Dataset


@dataclass(frozen=True)
class Digits:
    """8 x 8 pixels with values 0 to 16, ten classes."""

    def load(self) -> Dataset:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise MissingExtra(
                "dataset 'digits' comes with scikit-learn, which is not installed; "
                "run pip install 'covey[server]'; nothing was read"
            ) from error
        pixels, labels = load_digits(return_X_y=True)
        x = pixels.astype(np.uint8).reshape(-1, 8, 8)
        return Dataset(x, labels.astype(np.int64), name="digits", num_classes=10, scale=1 / 16)
