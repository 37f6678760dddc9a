"""A model update, clipped as a whole and noised once: protects everything the device holds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.clipping import clip_to_grid
from privacy.errors import InvalidTerms
from privacy.exact import Number, exact_multiplier, positive
from privacy.grid_gaussian import check_deviation, rounded_gaussian
from privacy.packing import pack_array, unpack_array, width_for
from privacy.release import Answer, Guarantee
from privacy.tensor_shapes import Shapes, described, flattened, in_order, size_of, unflattened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from privacy.randomness import NoiseSource
    from privacy.tensor_shapes import Tensors

_SMALLEST_CLIP, _LARGEST_CLIP = Fraction(1, 10**12), Fraction(10**12)
_NOISE_RANGE = 6  # standard deviations that the packed width must hold; what lies beyond is clamped


@dataclass(frozen=True)
class ClippedUpdate:
    """The whole update in L2 norm at most `clip_norm`, plus Gaussian noise; μ-GDP for the device.

    The update is clipped in float64, rounded to a grid of clip_norm/2**grid_bits, and its integer norm
    is checked exactly. Two devices' updates then differ by at most `changes`·2**grid_bits steps, the
    noise is noise_multiplier·2**grid_bits steps, so μ = changes/noise_multiplier: the noise follows
    from the clip norm and from nothing else. Zero updates are noised like all others, and one that is
    not finite is released as zero.
    """

    shapes: Shapes
    clip_norm: Number
    noise_multiplier: Number
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    grid_bits: int = 17
    name: ClassVar[str] = "clipped_update"

    def __post_init__(self) -> None:
        clip_norm = positive(self.clip_norm, "clip_norm")
        if not _SMALLEST_CLIP <= clip_norm <= _LARGEST_CLIP:
            raise InvalidTerms(f"clip_norm must lie within 1e-12 and 1e12, got {self.clip_norm}; nothing was booked")
        if not 8 <= self.grid_bits <= 24:
            raise InvalidTerms(f"grid_bits must lie within 8 and 24, got {self.grid_bits}; nothing was booked")
        object.__setattr__(self, "shapes", in_order(self.shapes))
        object.__setattr__(self, "clip_norm", clip_norm)
        object.__setattr__(self, "noise_multiplier", exact_multiplier(self.noise_multiplier))
        object.__setattr__(self, "relation", NeighbouringRelation(self.relation))
        # Refused now, not after booking: noise that no integer can hold, or that the sampler does not draw.
        _ = self.width_bytes
        check_deviation(self.deviation)

    @property
    def terms(self) -> dict[str, int | str]:
        return dict(self._terms)

    @cached_property
    def _terms(self) -> dict[str, int | str]:
        return {
            "shapes": described(self.shapes),
            "clip_norm": str(self.clip_norm),
            "noise_multiplier": str(self.noise_multiplier),
            "relation": self.relation.value,
            "grid_bits": self.grid_bits,
        }

    @cached_property
    def cost(self) -> PrivacyCost:
        mu = self.relation.changes / exact_multiplier(self.noise_multiplier)
        return PrivacyCost.gaussian(mu, PrivacyUnit.DEVICE, self.relation)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            sensitivity=f"L2 {self.relation.changes}·C, C the clip norm: the whole device, {self.relation}",
            noise="Gaussian of standard deviation noise_multiplier·C, rounded to the grid, on every coordinate",
            proof="Dong, Roth, Su 2022 (Gaussian DP); rounding is post-processing because the update is on the grid",
        )

    @cached_property
    def size(self) -> int:
        """How many coordinates the update has."""
        return size_of(self.shapes)

    @property
    def deviation(self) -> Fraction:
        """The noise's standard deviation, in steps of the grid."""
        return exact_multiplier(self.noise_multiplier) * (1 << self.grid_bits)

    @cached_property
    def step(self) -> float:
        """The width of the grid."""
        return float(Fraction(positive(self.clip_norm, "clip_norm"), 1 << self.grid_bits))

    @cached_property
    def width_bytes(self) -> int:
        """Bytes for each coordinate, from the terms alone."""
        reach = 1 + _NOISE_RANGE * exact_multiplier(self.noise_multiplier)
        return width_for(math.ceil(reach * (1 << self.grid_bits)))

    def check(self, data: Tensors) -> None:
        """Names, shapes and number types are public and must be the declared ones."""
        found = {name: tuple(tensor.shape) for name, tensor in sorted(data.items())}
        if found != dict(self.shapes):
            raise InvalidTerms(
                "the update's tensors differ in name or shape from the declared ones; "
                "send an update of the model that was handed out; nothing was booked"
            )
        if any(tensor.dtype.kind not in "fiub" for tensor in data.values()):
            raise InvalidTerms("an update must hold real numbers; nothing was booked")

    def answer(self, data: Tensors, noise: NoiseSource) -> Answer:
        import numpy as np

        bound = 1 << self.grid_bits
        drawn = rounded_gaussian(noise, self.deviation, self.size)
        steps = clip_to_grid(flattened(data, self.shapes), float(positive(self.clip_norm, "clip_norm")), bound)
        # The steps are whole numbers in float64, so the cast loses nothing.
        np.add(drawn, steps, out=drawn, casting="unsafe")
        return Answer(pack_array(drawn, self.width_bytes), noise.seeded)

    def decode_steps(self, payload: bytes) -> NDArray[np.int64]:
        """The noised update as one vector of whole grid steps."""
        return unpack_array(payload, self.size, self.width_bytes)

    def decode(self, payload: bytes) -> dict[str, NDArray[np.float32]]:
        """The noised update as tensors."""
        import numpy as np

        return unflattened((self.decode_steps(payload) * self.step).astype(np.float32), self.shapes)
