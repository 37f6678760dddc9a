"""Repeatable chance for a simulated fleet: a draw follows from the seed, its purpose, the device and the moment.

Two runs with the same seed meet the same devices, speeds, delays and absences, whatever algorithm they
compare and whichever devices it happens to ask. Whoever knows the seed can repeat every draw: this is
simulation, and nothing drawn here protects anyone.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from server_kit.simulation.ragged import FloatArray, IntArray

_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: consecutive numbers land far apart


def generator(seed: int, purpose: str) -> np.random.Generator:
    """A stream of its own for each purpose, so that a new setting leaves the other draws as they were."""
    return np.random.default_rng(_word(f"{purpose}:{seed}"))


def uniforms(seed: int, purpose: str, devices: IntArray, moment: int | IntArray = 0) -> FloatArray:
    """A number in [0, 1) for each device at this moment (a round, a day), the same alone and in company."""
    moments = np.asarray(moment, dtype=np.int64).astype(np.uint64)
    key = np.uint64(_word(f"{purpose}:{seed}") & 0xFFFF_FFFF_FFFF_FFFF)
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        words = _mixed(_mixed(key + moments * _ODD) + np.asarray(devices).astype(np.uint64) * _ODD)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _word(name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"covey:{name}".encode()).digest()[:16])


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of a word depends on every bit of what came in (the finaliser of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
