"""How long an update can be: what clipping and noise explain. Longer ones were not made by the task's mechanism."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from device_sdk.wire.messages import RecordLevelTerms
from device_sdk.wire.task_terms import mechanism_of
from privacy.packing import unpack_array

if TYPE_CHECKING:
    from collections.abc import Iterable

    from device_sdk.wire.messages import GridEncoding, LocalObjective, PrivacyTerms, Task, TensorSpec

_MORE_RECORDS = 10
"""How many times more records a device may hold than the sampling rate was made for."""
_DEVIATIONS = 10
"""Beyond √d, in which the length of d noised coordinates may lie; more happens to nobody."""


def longest(task: Task) -> float:
    """The length that an honest update does not exceed.

    Noise of deviation s on d coordinates is about s·√d long. A round of DP-SGD adds up its steps, and in each of them
    at most all of a device's records are clipped and summed: as many as the sampling rate was made for, or some more.
    """
    return _longest(task.model.tensors, task.objective, task.privacy, mechanism_of(task).step)


@lru_cache(maxsize=16)  # the same for all tasks of many rounds
def _longest(tensors: tuple[TensorSpec, ...], objective: LocalObjective, terms: PrivacyTerms, step: float) -> float:
    size = sum(math.prod(spec.shape) for spec in tensors)
    clip, noise = float(Fraction(terms.clip_norm)), float(Fraction(terms.noise_multiplier))
    spread = noise * clip * (math.sqrt(size) + _DEVIATIONS)
    rounding = step * math.sqrt(size)
    if not isinstance(terms, RecordLevelTerms):
        return clip + spread + rounding
    batch = float(Fraction(terms.expected_batch_size))
    records = _MORE_RECORDS * batch / float(Fraction(terms.sampling_rate))
    reach = objective.learning_rate / (1 - objective.momentum) * (objective.steps or 0)
    return reach * (records * clip + spread) / batch + rounding


def length(task: Task, encoding: GridEncoding, pieces: Iterable[bytes]) -> float:
    """The length of an update; `pieces` hold whole numbers of it."""
    total = 0.0
    for piece in pieces:
        values = unpack_array(piece, len(piece) // encoding.width_bytes, encoding.width_bytes).astype(np.float64)
        total += float(values @ values)
    return math.sqrt(total) * mechanism_of(task).step
