"""How fast and at what cost a run got somewhere, and whether it found the groups that there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server_kit.errors import InvalidSetting
from server_kit.simulation.ragged import IntArray


@dataclass(frozen=True)
class Progress:
    """A run as it stands at one evaluation: everything spent since its start, and how good it is."""

    round: int
    seconds: float
    accuracy: float
    bytes_down: int = 0
    bytes_up: int = 0
    client_steps: int = 0

    @property
    def bytes(self) -> int:
        """All traffic."""
        return self.bytes_down + self.bytes_up


def first_reaching(curve: Sequence[Progress], target: float, window: int = 5) -> Progress | None:
    """The first evaluation at which the mean of the last `window` accuracies is at least `target`; None if none.

    A mean, because a single lucky evaluation is no arrival; with fewer evaluations than `window` there is none.
    """
    if window < 1:
        raise InvalidSetting(f"window must be at least 1, got {window}; nothing was computed")
    for end in range(window, len(curve) + 1):
        if sum(point.accuracy for point in curve[end - window : end]) >= target * window - 1e-12:
            return curve[end - 1]
    return None


def time_to_accuracy(curve: Sequence[Progress], target: float, window: int = 5) -> float | None:
    """Seconds on the simulation's clock until the accuracy is reached for good measure; None when never."""
    point = first_reaching(curve, target, window)
    return None if point is None else point.seconds


def steps_to_accuracy(curve: Sequence[Progress], target: float, window: int = 5) -> int | None:
    """Local steps of all devices together until then, those in vain included; None when never."""
    point = first_reaching(curve, target, window)
    return None if point is None else point.client_steps


def bytes_to_accuracy(curve: Sequence[Progress], target: float, window: int = 5) -> int | None:
    """Traffic of all devices together until then; None when never."""
    point = first_reaching(curve, target, window)
    return None if point is None else point.bytes


@dataclass(frozen=True)
class FinalAccuracy:
    """The largest accuracy flatters; the median and the mean of the last evaluations say what one would get."""

    best: float
    median: float
    last_mean: float


def final_accuracy(curve: Sequence[Progress], last: int = 10) -> FinalAccuracy:
    """Of a run with at least one evaluation."""
    if not curve or last < 1:
        raise InvalidSetting("a final accuracy needs at least one evaluation; nothing was computed")
    accuracies = np.array([point.accuracy for point in curve])
    return FinalAccuracy(float(accuracies.max()), float(np.median(accuracies)), float(accuracies[-last:].mean()))


def agreement(found: IntArray, true_groups: IntArray | None) -> float | None:
    """Adjusted Rand index: 1 where clusters are the true groups, about 0 where they have nothing to do with them.

    None where the truth is not known.
    """
    if true_groups is None:
        return None
    from server_kit.clustering import adjusted_rand_index

    return adjusted_rand_index(found, true_groups)
