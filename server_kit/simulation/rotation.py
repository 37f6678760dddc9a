"""Turning images by any angle, counter-clockwise; quarter turns are exact, what comes in from outside is black."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from server_kit.errors import InvalidSetting
from server_kit.simulation.datasets.dataset import Inputs

_QUARTER = 90
_IMAGES_AT_ONCE = 4096


def rotate(images: Inputs, degrees: float) -> Inputs:
    """Images [N, ..., side, side] turned by `degrees`; the same type, as near as interpolation comes."""
    if images.ndim < 3 or images.shape[-1] != images.shape[-2]:
        raise InvalidSetting(
            f"only square images can be rotated, these samples have shape {images.shape[1:]}; nothing was rotated"
        )
    turns, rest = divmod(degrees % 360, _QUARTER)
    if rest == 0:
        return np.rot90(images, int(turns), axes=(-2, -1)).copy()
    blend = _Blend.of(images.shape[-1], degrees)
    flat = images.reshape(-1, images.shape[-1] ** 2)
    turned = np.empty_like(flat)
    for start in range(0, len(flat), _IMAGES_AT_ONCE):
        part = slice(start, start + _IMAGES_AT_ONCE)
        turned[part] = blend.apply(flat[part])
    return turned.reshape(images.shape)


@dataclass(frozen=True, eq=False)
class _Blend:
    """For each pixel of the turned image, the four pixels around the place it came from, and their weights."""

    sources: NDArray[np.int64]
    weights: NDArray[np.float32]

    @classmethod
    def of(cls, side: int, degrees: float) -> _Blend:
        angle, middle = math.radians(degrees), (side - 1) / 2
        down, right = np.mgrid[0:side, 0:side].reshape(2, -1) - middle
        # Rows count downwards, so counter-clockwise to the eye is clockwise in these coordinates.
        row = middle + math.cos(angle) * down + math.sin(angle) * right
        column = middle - math.sin(angle) * down + math.cos(angle) * right
        top, left = np.floor(row).astype(np.int64), np.floor(column).astype(np.int64)
        corners = [_corner(top + below, left + beside, row, column, side) for below in (0, 1) for beside in (0, 1)]
        return cls(np.stack([source for source, _ in corners]), np.stack([weight for _, weight in corners]))

    def apply(self, flat: Inputs) -> NDArray[Any]:
        blended = np.zeros(flat.shape, dtype=np.float32)
        for source, weight in zip(self.sources, self.weights, strict=True):
            blended += flat[:, source] * weight
        return np.rint(blended) if flat.dtype == np.uint8 else blended


def _corner(
    at_row: NDArray[np.int64],
    at_column: NDArray[np.int64],
    row: NDArray[np.float64],
    column: NDArray[np.float64],
    side: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Which pixel a corner is, and how much it counts: less the farther away, nothing outside the image."""
    inside = (at_row >= 0) & (at_row < side) & (at_column >= 0) & (at_column < side)
    nearness = np.clip(1 - np.abs(row - at_row), 0, 1) * np.clip(1 - np.abs(column - at_column), 0, 1)
    return np.where(inside, at_row * side + at_column, 0), np.where(inside, nearness, 0).astype(np.float32)
