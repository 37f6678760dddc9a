"""A short vector, such as a sketch, with exact discrete Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from privacy.budget import NANO, NeighbouringRelation, PrivacyCost, PrivacyUnit, rounded_up
from privacy.clipping import clip_to_grid
from privacy.errors import InvalidTerms
from privacy.exact import Number, exact_multiplier, positive, whole
from privacy.packing import pack, unpack, width_for
from privacy.release import Answer, Guarantee

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from privacy.randomness import NoiseSource

LARGEST_SIZE = 4096
GRID_STEPS = 1 << 10
"""Of the clip norm."""
_SMALLEST_CLIP, _LARGEST_CLIP = Fraction(1, 10**12), Fraction(10**12)
_NOISE_RANGE = 6


@dataclass(frozen=True)
class DiscreteGaussian:
    """A vector of at most 4096 numbers, in L2 norm at most `clip_norm`; ρ-zCDP for the device.

    Clipped to whole grid steps of clip_norm/1024 and noised with the discrete Gaussian, whose Rényi
    divergences are at most those of the continuous one, so ρ = (changes/noise_multiplier)²/2. It is not
    exactly Gaussian DP and is therefore charged to a Rényi share. Longer vectors: `ClippedUpdate`.
    """

    size: int
    clip_norm: Number
    noise_multiplier: Number
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    name: ClassVar[str] = "discrete_gaussian"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", whole(self.size, "the size of a discrete Gaussian vector", 1, LARGEST_SIZE))
        clip_norm = positive(self.clip_norm, "clip_norm")
        if not _SMALLEST_CLIP <= clip_norm <= _LARGEST_CLIP:
            raise InvalidTerms("clip_norm must lie within 1e-12 and 1e12; nothing was booked")
        object.__setattr__(self, "clip_norm", clip_norm)
        object.__setattr__(self, "noise_multiplier", exact_multiplier(self.noise_multiplier))
        object.__setattr__(self, "relation", NeighbouringRelation(self.relation))
        _ = self.width_bytes  # refused now, not after booking, if no integer can hold the noise

    @property
    def terms(self) -> dict[str, int | str]:
        return {
            "size": self.size,
            "clip_norm": str(self.clip_norm),
            "noise_multiplier": str(self.noise_multiplier),
            "relation": self.relation.value,
        }

    @property
    def cost(self) -> PrivacyCost:
        mu = self.relation.changes / exact_multiplier(self.noise_multiplier)
        return PrivacyCost(PrivacyUnit.DEVICE, self.relation, rho_nano=rounded_up(mu * mu / 2, NANO))

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            sensitivity=f"L2 {self.relation.changes}·C, C the clip norm: the whole device, {self.relation}",
            noise="discrete Gaussian of standard deviation noise_multiplier·C on every coordinate",
            proof="Canonne, Kamath, Steinke 2020, theorem 4",
        )

    @property
    def width_bytes(self) -> int:
        reach = 1 + _NOISE_RANGE * exact_multiplier(self.noise_multiplier)
        return width_for(math.ceil(reach * GRID_STEPS))

    def check(self, data: NDArray[np.floating]) -> None:
        """One real vector of the declared size."""
        if data.shape != (self.size,) or data.dtype.kind not in "fiub":
            raise InvalidTerms(f"the vector must hold {self.size} real numbers, as declared; nothing was booked")

    def answer(self, data: NDArray[np.floating], noise: NoiseSource) -> Answer:
        import numpy as np

        bound = GRID_STEPS
        drawn = noise.discrete_gaussian_vector((exact_multiplier(self.noise_multiplier) * bound) ** 2, self.size)
        with np.errstate(all="ignore"):  # a warning would tell of a record
            steps = clip_to_grid(np.array(data, dtype=np.float64), float(positive(self.clip_norm, "clip_norm")), bound)
        return Answer(pack(map(int.__add__, map(int, steps.tolist()), drawn), self.width_bytes), noise.seeded)

    def decode(self, payload: bytes) -> list[float]:
        """The noised vector."""
        step = float(positive(self.clip_norm, "clip_norm") / GRID_STEPS)
        return [value * step for value in self.decode_steps(payload)]

    def decode_steps(self, payload: bytes) -> list[int]:
        """The noised vector in whole grid steps."""
        return unpack(payload, self.size, self.width_bytes)
