"""A vector bounded in norm, as whole numbers: the sensitivity is then an integer fact, not a float hope."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TRIES = 4
_TINY, _HUGE = 1e-100, 1e100  # between them the squares of float64 neither vanish nor overflow


def clip_to_grid(vector: NDArray[np.float64], clip_norm: float, bound: int) -> NDArray[np.float64]:
    """`vector`, clipped to `clip_norm`, in whole steps of clip_norm/bound; its norm in steps is at most `bound`.

    Overwrites `vector`. A vector with a value that is not finite becomes zero: refusing it would tell
    the receiver something about the data, and passing it on would break every bound.
    """
    import numpy as np

    norm = euclidean_norm(vector)
    if not math.isfinite(norm):
        return np.zeros_like(vector)
    if norm > clip_norm:
        # Two factors, because bound/norm may underflow where neither of these does.
        vector *= clip_norm / norm
    vector *= bound / clip_norm
    return _within(vector, bound)


def euclidean_norm(vector: NDArray[np.float64]) -> float:
    """‖vector‖ without overflow or underflow; infinite where a value is not finite."""
    if not len(vector):
        return 0.0
    largest = max(float(vector.max()), -float(vector.min()))
    if not math.isfinite(largest):
        return math.inf
    if _TINY < largest < _HUGE:
        return math.sqrt(_squared_norm(vector))
    if largest == 0.0:
        return 0.0
    scaled = vector / largest
    return largest * math.sqrt(_squared_norm(scaled))


def _within(scaled: NDArray[np.float64], bound: int) -> NDArray[np.float64]:
    """Whole numbers near `scaled` with Σq² ≤ bound², checked exactly."""
    import numpy as np

    whole = np.empty_like(scaled)
    for _ in range(_TRIES):
        squared = _squared_norm(np.rint(scaled, out=whole))
        if squared <= bound * bound:
            return whole
        # Rounding to the nearest lengthened it; shrink by as much and round again.
        scaled *= bound / math.sqrt(squared) * (1 - 2.0**-30)
    # Rounding towards zero cannot lengthen, but for float error in `scaled` itself.
    while _squared_norm(np.trunc(scaled, out=whole)) > bound * bound:
        scaled *= 1 - 2.0**-30
    return whole


def _squared_norm(vector: NDArray[np.float64]) -> float:
    """Σv². Exact for whole numbers up to 2**53, in any order; beyond, far above every bound we compare with (2**48)."""
    import numpy as np

    # Not np.dot: its threads wait for each other, a thousand times longer where the cores are busy.
    return float(np.einsum("i,i->", vector, vector))
