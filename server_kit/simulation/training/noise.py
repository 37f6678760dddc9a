"""Gaussian noise for simulated DP-SGD: repeatable, fast, and good enough to learn from, never to protect.

Fourteen bits of a key stream pick one of 16,384 points of four-dimensional space that are spread as a
Gaussian is: their coordinates are four draws. The points come from an even spread over the unit cube (two
coordinates by counting and counting with reversed bits, two by multiples of irrational numbers) through the
transform of Box and Muller, and are then made exactly uncorrelated, with mean 0 and variance 1. A single
draw takes thousands of values up to 4.5 standard deviations; its fourth moment is within half a per cent of
a Gaussian's, and anything that adds up hundreds of draws cannot tell the difference. A step of training
needs as many draws as the model has parameters, and this is eight times as fast as torch's generator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privacy.key_stream import KeyStream
from server_kit.simulation.training.workspace import Workspace

_BITS = 14  # the table, 256 KiB, stays in the cache
_PER_POINT = 4
_PER_WORD = 2 * _PER_POINT  # draws out of 32 bits
_TURNS = ((math.sqrt(5) - 1) / 2, math.sqrt(2) - 1)  # hard to approximate by fractions, so that angles spread
_DRAWN_AHEAD = 1 << 13  # coordinates: many small draws would cost more to ask for than to make


@lru_cache(maxsize=16)
def _points(deviation: float) -> NDArray[np.complex128]:
    """Each entry stands for four float32, so that one look-up fetches them."""
    number = np.arange(1 << _BITS)
    reverse = sum((number >> bit & 1) << (_BITS - 1 - bit) for bit in range(_BITS))
    coordinates = []
    for place, turn in zip((number, reverse), _TURNS, strict=True):
        radius = np.sqrt(-2 * np.log1p(-(place + 0.5) / len(number)))
        angle = 2 * math.pi * (number * turn % 1)
        coordinates += [radius * np.cos(angle), radius * np.sin(angle)]
    points = np.stack(coordinates)
    points -= points.mean(axis=1, keepdims=True)
    points = np.linalg.solve(np.linalg.cholesky(np.cov(points, bias=True)), points)
    table: NDArray[np.float32] = np.ascontiguousarray(deviation * points.T, dtype=np.float32)
    return table.view(np.complex128)[:, 0]


class DeviceNoise:
    """The Gaussian draws of one device in one round, one after the other."""

    def __init__(self, key: bytes) -> None:
        self._stream = KeyStream(key)

    def fill(self, values: NDArray[np.float32], deviation: float, scratch: NoiseScratch) -> None:
        """Overwrite `values`, contiguous and flat, with draws of that standard deviation."""
        words, zeros = scratch.words(-(-values.size // _PER_WORD))
        self._stream.fill(words, zeros)
        chosen = words.view(np.uint16)
        np.right_shift(chosen, 16 - _BITS, out=chosen)
        points, whole = _points(deviation), values.size // _PER_POINT
        points.take(chosen[:whole], out=values[: whole * _PER_POINT].view(np.complex128), mode="clip")
        if whole * _PER_POINT < values.size:
            last = points[chosen[whole : whole + 1]].view(np.float32)
            values[whole * _PER_POINT :] = last[: values.size - whole * _PER_POINT]


class NoiseScratch:
    """Room for random words, kept by a worker from draw to draw."""

    def __init__(self) -> None:
        self._words = self._zeros = np.zeros(0, dtype=np.uint32)

    def words(self, count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """`count` words to overwrite, and as many zeros."""
        if count > self._words.size:
            self._words, self._zeros = np.empty(count, dtype=np.uint32), np.zeros(count, dtype=np.uint32)
        return self._words[:count], self._zeros[:count]


@dataclass(frozen=True)
class Noise:
    """The draws of a chunk of devices, and the memory to make them in."""

    streams: tuple[DeviceNoise, ...]
    scratch: NoiseScratch

    def fill(self, device: int, values: Tensor, deviation: float) -> None:
        """Overwrite `values`, contiguous and flat, with the next draws of one device."""
        here = values if values.is_cpu else torch.empty(values.shape, device="cpu")
        self.streams[device].fill(here.numpy(), deviation, self.scratch)
        if here is not values:
            values.copy_(here)


class StepNoise:
    """Fresh noise for every step of a chunk of devices, on `size` coordinates each."""

    def __init__(self, noise: Noise, size: int, deviation: float, workspace: Workspace) -> None:
        self._noise, self._size, self._deviation = noise, size, deviation
        # How far ahead a device draws follows from the size alone: its draws must not depend on its company.
        self._ahead = max(1, _DRAWN_AHEAD // max(1, size))
        self._drawn = workspace.take("step-noise", len(noise.streams), self._ahead * size)

    def add_to(self, values: Tensor, step: int, share: float) -> None:
        """`values` [n, size] += share · noise, for the first n devices; steps must come in order."""
        place = step % self._ahead
        if place == 0:
            for device, row in enumerate(self._drawn[: len(values)].unbind()):
                self._noise.fill(device, row, self._deviation)
        values.add_(self._drawn[: len(values), place * self._size : (place + 1) * self._size], alpha=share)
