"""Outputs that no float noise can have made of a given sum (Mironov 2012; Haney et al. 2022).

Floats get coarser beyond each power of two. If a sum and its noise are float32, then just below a power of two some
outputs can only come from noise above it, which lies on a coarser grid: of two records one may be unable to lead to
them. The test needs the sums of both worlds to the last bit, which a world states as its `centres`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from privacy.auditing.observations import Observations, Statistic

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_COARSE = 2.0**24  # from here on float32 is not finer than whole numbers


def float_supports(centres: tuple[Any, Any] | None, columns: int) -> list[Statistic]:
    """For either world, how many numbers are impossible in it if the noise was float32; none without centres."""
    import numpy as np

    if centres is None or len(centres[0]) != columns:
        return []
    return [
        _impossible(np.array(centre, dtype=np.float64), f"values that float noise cannot give in the {which} world")
        for which, centre in zip(("first", "second"), centres, strict=True)
    ]


def _impossible(centre: Floats, name: str) -> Statistic:
    import numpy as np

    def of(seen: Observations) -> Floats:
        values = seen.values.astype(np.float64)
        released, start = values.astype(np.float32), centre.astype(np.float32)
        nearest = (values - centre).astype(np.float32)
        upwards = np.nextafter(nearest, np.float32(np.inf))
        downwards = np.nextafter(nearest, np.float32(-np.inf))
        is_possible = np.any([noise + start == released for noise in (nearest, upwards, downwards)], axis=0)
        # On a grid of whole numbers only what is coarser than the grid can be told.
        is_shown = np.isfinite(values) & ((seen.values.dtype.kind == "f") | (np.abs(values) >= _COARSE))
        counted: Floats = np.count_nonzero(is_shown & ~is_possible, axis=1).astype(np.float64)
        return counted

    return Statistic(name, of)
