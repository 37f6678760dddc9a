"""Gaussian noise for the steps of DP-SGD: floating point, from the operating system's random source.

Unlike every other noise in Covey this one is not exact. It is drawn once a step for every parameter, and
exact integers would cost more than the training itself. Two things keep that honest:

- It is whole. Box and Muller (1958) make two normal numbers of two uniform ones, and the one for the radius
  must be fine at both ends: near 0, or the tail ends early (at 5.8 standard deviations for a float32
  generator), and near 1, or the middle has holes. There ours is drawn to 95 bits; the tail reaches 11
  standard deviations.
- Nobody sees it. What leaves the device is the sum of all steps, rounded to a grid that is thousands of
  times coarser than the spacing of these floats.

NumPy does the work, not torch: torch would share out these small pieces among threads, and on a busy
device waiting for the last of them took ten times as long as doing it all in one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privacy.key_stream import KeyStream

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]

_PAIRS = 1 << 16  # at a time
_BITS = 31
# Radius words outside of this are drawn to 95 bits: one in 256 above, one in a million below.
_LOW, _HIGH = np.float32(2.0**-20), np.float32(1 - 2.0**-8)


class StepNoise:
    """Adds independent N(0, deviation²) to vectors; every call draws anew from one key stream."""

    def __init__(self, key: bytes, deviation: float) -> None:
        self._stream = KeyStream(key)
        self._deviation = np.float32(deviation)
        self._words = np.empty(2 * _PAIRS, dtype=np.uint32)
        self._zeros = np.zeros_like(self._words)
        self._radius, self._angle, self._wave = (np.empty(_PAIRS, dtype=np.float32) for _ in range(3))

    def add_to(self, vector: Tensor) -> None:
        """`vector` += noise, in place; drawn on the CPU wherever `vector` lives."""
        if vector.device.type == "cpu":
            self.add_to_array(vector.numpy())
        else:
            drawn = vector.new_zeros(len(vector), device="cpu")
            self.add_to_array(drawn.numpy())
            vector += drawn.to(vector.device)

    def add_to_array(self, vector: NDArray[Any]) -> None:
        """The same for a vector of NumPy's, without torch."""
        for start in range(0, len(vector), 2 * _PAIRS):
            part = vector[start : start + 2 * _PAIRS]
            pairs = (len(part) + 1) // 2
            radius, angle = self._draw_pairs(pairs)
            for wave, place in ((np.cos, part[:pairs]), (np.sin, part[pairs:])):
                drawn = self._wave[: len(place)]
                wave(angle[: len(place)], out=drawn)
                drawn *= radius[: len(place)]
                np.add(place, drawn, out=place)

    def _draw_pairs(self, pairs: int) -> tuple[Floats, Floats]:
        """Fresh radii, scaled by the deviation, and angles. The added halves keep both from being exactly zero."""
        words = self._words[: 2 * pairs]
        self._stream.fill(words, self._zeros[: 2 * pairs])
        words[:pairs] >>= np.uint32(32 - _BITS)
        signed = words.view(np.int32)
        radius, angle = self._radius[:pairs], self._angle[:pairs]
        np.copyto(angle, signed[pairs:], casting="same_kind")
        angle += np.float32(0.5)
        angle *= np.float32(math.pi * 2.0**-31)
        np.copyto(radius, signed[:pairs], casting="same_kind")
        radius += np.float32(0.5)
        radius *= np.float32(2.0**-_BITS)
        unsure = np.flatnonzero((radius < _LOW) | (radius > _HIGH))
        np.log(radius, out=radius)
        radius[unsure] = self._refined(words[unsure])
        radius *= np.float32(-2.0)
        np.sqrt(radius, out=radius)
        radius *= self._deviation
        return radius, angle

    def _refined(self, words: NDArray[np.uint32]) -> NDArray[Any]:
        """ln of uniform numbers whose leading bits are `words`: 64 more bits, and no cancellation near 1."""
        more = np.empty(2 * len(words), dtype=np.uint32)
        self._stream.fill(more, np.zeros_like(more))
        whole, fraction = words.astype(np.float64), more.view(np.uint64)
        from_zero = (whole + (fraction + 0.5) * 2.0**-64) * 2.0**-_BITS
        to_one = (2**_BITS - 1 - whole + (~fraction + 0.5) * 2.0**-64) * 2.0**-_BITS
        return np.where(from_zero < 0.5, np.log(from_zero), np.log1p(-np.minimum(to_one, 0.5)))
