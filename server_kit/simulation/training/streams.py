"""Repeatable randomness that depends on nothing but its name: who draws, in which run, for what.

A device's batches and noise follow from (seed, device, round) alone. Which other devices take part, how they
are grouped and which thread computes them cannot change a draw. This is simulation: a run can be repeated by
whoever knows the seed, so nothing drawn here protects anyone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privacy.randomness import SeededSource


@dataclass(frozen=True)
class Draw:
    """Names the randomness of one device in one round of one run."""

    seed: int
    device: str
    round_number: int

    def words(self, purpose: str, count: int) -> NDArray[np.uint64]:
        """`count` uniform 64-bit words."""
        return named_words(f"{purpose}:{self.seed}:{self.round_number}:{self.device}", count)

    def noise_key(self) -> bytes:
        """The key of this device's noise in this round."""
        return SeededSource(f"simulated-training:{self.seed}:{self.round_number}:{self.device}").key()


def named_words(name: str, count: int) -> NDArray[np.uint64]:
    """`count` uniform 64-bit words that follow from `name` (SHAKE-256)."""
    return np.frombuffer(hashlib.shake_256(f"covey:{name}".encode()).digest(8 * count), dtype="<u8")
