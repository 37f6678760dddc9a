"""How long an honest update is: from the terms of a task alone, exceeded with a chance below one in a thousand million.

What a device sends is what its records say, which clipping bounds, and noise, whose length hardly varies:

    level "device"   |v + n|, |v| ≤ C, n Gaussian: a noncentral χ² (Birgé 2001, lemma 8.1)
    level "record"   Σ h_t·(S_t + N_t)/B over the steps t: |S_t| ≤ C times the records in the batch, whose number is
                     binomial (Bernstein), and Σ h_t·N_t is Gaussian (Laurent and Massart 2000, lemma 1)

h_t is how far a gradient of step t has carried the weights at the end, through momentum and proximal term. At level
"record" a batch depends on the noise of earlier steps, so the two lengths are added; nothing else is given away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

_CHANCE = 1e-9
"""That an honest update is longer."""


@dataclass(frozen=True)
class Noised:
    """What both levels have: coordinates, clip norm, noise, and the grid that updates are rounded to."""

    size: int
    clip_norm: float
    noise_multiplier: float
    grid_step: float


@dataclass(frozen=True)
class Descent:
    """What DP-SGD adds: the steps that are taken, and how many records are expected in each."""

    steps: int
    expected_batch_size: float
    sampling_rate: float
    learning_rate: float
    momentum: float = 0.0
    proximal: float = 0.0


def device_level(noised: Noised) -> float:
    """Of an update that is clipped and noised as a whole."""
    deviation, exponent = noised.noise_multiplier * noised.clip_norm, -math.log(_CHANCE)
    squared = noised.noise_multiplier**-2  # what the update itself adds, in deviations
    spread = 2 * math.sqrt((noised.size + 2 * squared) * exponent) + 2 * exponent
    return deviation * math.sqrt(noised.size + squared + spread) + _rounding(noised)


def record_level(noised: Noised, descent: Descent, more_records: float = 1.0) -> float:
    """Of an update of DP-SGD, by a device that holds `more_records` times the records that the rate was made for."""
    exponent = -math.log(_CHANCE / 2)
    reach = _reach(descent.steps, descent.learning_rate, descent.momentum, descent.proximal)
    expected = more_records * descent.expected_batch_size
    records = expected * reach.total + math.sqrt(2 * expected * reach.power * exponent) + reach.most * exponent / 3
    # Nobody has more records in a batch than there are.
    records = min(records, expected / descent.sampling_rate * reach.total)
    noise = noised.noise_multiplier * math.sqrt(
        reach.power * (noised.size + 2 * math.sqrt(noised.size * exponent) + 2 * exponent)
    )
    length = noised.clip_norm / descent.expected_batch_size * (records + noise)
    # The sums of steps may be rounded too, each to the same grid.
    return length + _rounding(noised) * (1 + reach.total / descent.learning_rate)


def _rounding(noised: Noised) -> float:
    """What rounding to the nearest adds at most."""
    return noised.grid_step / 2 * math.sqrt(noised.size)


@dataclass(frozen=True)
class _Reach:
    """The steps' shares in where the weights end up: Σ|h|, Σh² and the largest |h|."""

    total: float
    power: float
    most: float


@lru_cache(maxsize=64)
def _reach(steps: int, learning_rate: float, momentum: float, proximal: float) -> _Reach:
    if not momentum and not proximal:
        return _Reach(steps * learning_rate, steps * learning_rate**2, learning_rate)
    total = power = most = velocity = carried = 0.0
    for step in range(steps):
        velocity = momentum * velocity + proximal * carried + (1.0 if step == 0 else 0.0)
        carried -= learning_rate * velocity
        total, power, most = total + abs(carried), power + carried * carried, max(most, abs(carried))
    return _Reach(total, power, most)
