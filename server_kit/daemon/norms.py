"""How long an update may be: what the task's clipping and noise explain. Longer ones were not made by its mechanism."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from device_sdk.wire.messages import RecordLevelTerms
from device_sdk.wire.task_terms import mechanism_of
from privacy.packing import unpack_array
from server_kit.honest_lengths import Descent, Noised, device_level, record_level

if TYPE_CHECKING:
    from collections.abc import Iterable

    from device_sdk.wire.messages import GridEncoding, LocalObjective, PrivacyTerms, Task

MOST_RECORDS = 4.0
"""How many times the records that the sampling rate was made for a device may hold, unless an operator says more."""


def longest(task: Task, most_records: float = MOST_RECORDS) -> float:
    """The length that an honest update does not exceed, but for a chance of one in a thousand million.

    How many records a device holds is its secret, so level "record" reckons with devices that hold more than usual.
    """
    mechanism = mechanism_of(task)
    return _longest(mechanism.size, mechanism.step, task.objective, task.privacy, most_records)


@lru_cache(maxsize=16)  # the same for all tasks of many rounds
def _longest(size: int, grid_step: float, objective: LocalObjective, terms: PrivacyTerms, most_records: float) -> float:
    clip, noise = float(Fraction(terms.clip_norm)), float(Fraction(terms.noise_multiplier))
    noised = Noised(size, clip, noise, grid_step)
    if not isinstance(terms, RecordLevelTerms):
        return device_level(noised)
    descent = Descent(
        objective.steps or 0,
        float(Fraction(terms.expected_batch_size)),
        float(Fraction(terms.sampling_rate)),
        objective.learning_rate,
        objective.momentum,
        objective.proximal,
    )
    return record_level(noised, descent, most_records)


def length(task: Task, encoding: GridEncoding, pieces: Iterable[bytes]) -> float:
    """The length of an update; `pieces` hold whole numbers of it."""
    total = 0.0
    for piece in pieces:
        values = unpack_array(piece, len(piece) // encoding.width_bytes, encoding.width_bytes).astype(np.float64)
        total += float(values @ values)
    return math.sqrt(total) * mechanism_of(task).step
