"""Gaussian noise for simulated DP-SGD: repeatable, fast, and good enough to learn from, never to protect.

Sixteen bits of a key stream pick one of 65,536 points of the plane that stand for equally likely pieces of a
Gaussian: rings at its quantiles, turned by the golden angle so that no direction is favoured. The two
coordinates are two draws. Each takes about 65,000 different values up to 4.9 standard deviations; mean and
variance are right to the last digits of a float, and what lies beyond 4.9 does not occur. A step of training
needs as many draws as the model has parameters, and this is several times as fast as torch's generator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from privacy.key_stream import KeyStream
from server_kit.simulation.training.workspace import Workspace

_POINTS = 1 << 16
_PER_WORD = 4  # draws out of 32 bits: two points of two coordinates
_DRAWN_AHEAD = 1 << 13  # coordinates: many small draws would cost more to ask for than to make


@lru_cache(maxsize=16)
def _points(deviation: float) -> NDArray[np.complex64]:
    number = np.arange(_POINTS)
    radius = np.sqrt(-2 * np.log1p(-(number + 0.5) / _POINTS))
    angle = number * math.pi * (3 - math.sqrt(5))
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)])
    points -= points.mean(axis=1, keepdims=True)
    points *= deviation / points.std(axis=1, keepdims=True)
    drawn: NDArray[np.complex64] = (points[0] + 1j * points[1]).astype(np.complex64)
    return drawn


class DeviceNoise:
    """The Gaussian draws of one device in one round, one after the other."""

    def __init__(self, key: bytes) -> None:
        self._stream = KeyStream(key)

    def fill(self, values: NDArray[np.float32], deviation: float, scratch: NoiseScratch) -> None:
        """Overwrite `values`, contiguous and flat, with draws of that standard deviation."""
        whole = values.size - values.size % _PER_WORD
        if whole:
            self._fill_whole(values[:whole], deviation, scratch)
        if whole < values.size:
            last = np.empty(_PER_WORD, dtype=np.float32)
            self._fill_whole(last, deviation, scratch)
            values[whole:] = last[: values.size - whole]

    def _fill_whole(self, values: NDArray[np.float32], deviation: float, scratch: NoiseScratch) -> None:
        words, zeros = scratch.words(values.size // _PER_WORD)
        self._stream.fill(words, zeros)
        np.take(_points(deviation), words.view(np.uint16), out=values.view(np.complex64), mode="clip")


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
        """Overwrite `values`, a contiguous tensor, with the next draws of one device."""
        self.streams[device].fill(values.view(-1).numpy(), deviation, self.scratch)


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
            for device in range(len(values)):
                self._noise.fill(device, self._drawn[device], self._deviation)
        values.add_(self._drawn[: len(values), place * self._size : (place + 1) * self._size], alpha=share)
