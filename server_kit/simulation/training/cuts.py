"""Where to cut a list of devices into parts that train side by side, all padded to the first of their part.

Few parts mean few steps to call; parts of devices that are alike mean little padding. Costs are counted in
multiplications, and the cheapest of all cuts of the list is found by working from its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_STEP_COST = 2e6  # multiplications in the time that it takes to ask for a step. Measured


@dataclass(frozen=True)
class Alike:
    """Some devices with equally many records, and what a device padded to that size costs."""

    devices: int
    steps: int
    once: float
    """Multiplications before and after the steps of a device."""
    each_step: float


def cheapest_parts(kinds: Sequence[Alike]) -> list[slice]:
    """Parts of `kinds`, which come with falling steps: the cheapest way to train all of them."""
    devices = np.cumsum([0, *(kind.devices for kind in kinds)])
    steps = np.cumsum([0, *(kind.devices * kind.steps for kind in kinds)])
    rest = np.zeros(len(kinds) + 1)  # the least cost of what comes from there on
    ends = np.zeros(len(kinds), dtype=np.int64)
    for start in range(len(kinds) - 1, -1, -1):
        first = kinds[start]
        costs = rest[start + 1 :] + first.steps * _STEP_COST
        costs += first.once * (devices[start + 1 :] - devices[start])
        costs += first.each_step * (steps[start + 1 :] - steps[start])
        best = int(costs.argmin())
        rest[start], ends[start] = costs[best], start + 1 + best
    parts, start = [], 0
    while start < len(kinds):
        parts.append(slice(start, int(ends[start])))
        start = int(ends[start])
    return parts
