"""Three mechanisms that claim more privacy than they give, for trying the auditor on.

    covey privacy audit --mechanism examples.dishonest_mechanisms:half_the_noise

Each one looks right in a code review of its cost and wrong under `covey privacy audit`, which exits
with 1. They are copies of faults found in real systems; never release data through them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privacy.exact import exact_epsilon, exact_multiplier
from privacy.grid_gaussian import rounded_gaussian
from privacy.mechanisms import ClippedUpdate, LabelHistogram
from privacy.mechanisms.label_histogram import count_labels
from privacy.packing import pack, pack_array
from privacy.release import Answer
from privacy.tensor_shapes import flattened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from privacy.randomness import NoiseSource


class HalfTheNoise(LabelHistogram):
    """A histogram whose noise is scaled for twice the ε that it books."""

    def answer(self, data: Sequence[int], noise: NoiseSource) -> Answer:
        scale = self.relation.changes / (2 * exact_epsilon(self.epsilon))
        drawn = noise.discrete_laplace_vector(scale, self.num_labels)
        return Answer(pack(map(int.__add__, count_labels(data, self.num_labels), drawn)), noise.seeded)


class NoiseOnFullBinsOnly(LabelHistogram):
    """A histogram that noises "what there is to hide", so that every 0 says for certain that a label is absent."""

    def answer(self, data: Sequence[int], noise: NoiseSource) -> Answer:
        drawn = noise.discrete_laplace_vector(self.relation.changes / exact_epsilon(self.epsilon), self.num_labels)
        counts = count_labels(data, self.num_labels)
        return Answer(pack(count + z if count else 0 for count, z in zip(counts, drawn, strict=True)), noise.seeded)


class NoClipping(ClippedUpdate):
    """An update with all its noise and no bound on what the noise has to hide."""

    def answer(self, data: Mapping[str, NDArray[np.floating]], noise: NoiseSource) -> Answer:
        drawn = rounded_gaussian(noise, exact_multiplier(self.noise_multiplier) * (1 << self.grid_bits), self.size)
        steps = (flattened(data, self.shapes) / self.step).round().astype("int64")
        return Answer(pack_array(drawn + steps, self.width_bytes), noise.seeded)


def half_the_noise() -> HalfTheNoise:
    return HalfTheNoise(num_labels=2, epsilon=1)


def noise_on_full_bins_only() -> NoiseOnFullBinsOnly:
    return NoiseOnFullBinsOnly(num_labels=2, epsilon=1)


def no_clipping() -> NoClipping:
    return NoClipping({"weights": (4,)}, clip_norm=1, noise_multiplier=2)
