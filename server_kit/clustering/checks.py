"""What comes from devices is checked once, where it enters: its shape, its type, and that it is finite.

A NaN that slipped through would make every distance to it false and land its device in an arbitrary
cluster. Messages name positions, never values.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from server_kit.errors import InvalidSummary

ELEMENTS_AT_ONCE = 1 << 24
"""A check of many gigabytes looks at this many numbers at a time."""


def as_tensor(values: npt.ArrayLike | torch.Tensor) -> torch.Tensor:
    """The values as a tensor, without a copy where there is one already."""
    return values if isinstance(values, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(values))


def require_rows(values: torch.Tensor, what: str) -> None:
    """Raise for anything but one row of numbers for each of at least one device."""
    if values.ndim != 2 or 0 in values.shape:
        raise InvalidSummary(
            f"{what} come as one row for each device, got shape {tuple(values.shape)}; nothing was computed"
        )


def require_vectors(vectors: torch.Tensor, what: str = "vectors") -> torch.Tensor:
    """One finite row of float32 or float64 for each device, at least one of them."""
    require_rows(vectors, what)
    if vectors.dtype not in {torch.float32, torch.float64}:
        raise InvalidSummary(f"{what} are float32 or float64, got {vectors.dtype}; nothing was computed")
    require_finite(vectors, what)
    return vectors


def require_finite(values: torch.Tensor, what: str) -> None:
    """Raise for the first row that holds NaN or infinity."""
    rows_at_once = max(1, ELEMENTS_AT_ONCE // max(1, math.prod(values.shape[1:])))
    for start in range(0, len(values), rows_at_once):
        block = values[start : start + rows_at_once]
        finite = torch.isfinite(block).flatten(1).all(dim=1)
        if not bool(finite.all()):
            row = start + int((~finite).nonzero()[0])
            raise InvalidSummary(
                f"row {row} of the {what} is not finite; refuse that device's summary; nothing was computed"
            )


def require_same_length(first: int, second: int, what: str) -> None:
    """Raise where two descriptions of the same devices differ in their number."""
    if first != second:
        raise InvalidSummary(f"{what}: {first} against {second} devices; give one for each; nothing was computed")
