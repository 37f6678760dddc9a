"""Mechanisms whose noise is wide enough and still leaves something alone: how a number ends, or whether it can occur.

As in `mutants`, each inherits its claim from an honest mechanism or from what it would be with exact noise.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np

from privacy.auditing.worlds import World
from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit, SampledGaussian
from privacy.clipping import clip_to_grid
from privacy.exact import exact_epsilon, exact_multiplier
from privacy.grid_gaussian import rounded_gaussian
from privacy.mechanisms import ClippedUpdate, FeatureHistogram, LabelHistogram, RandomizedResponse
from privacy.mechanisms.label_histogram import count_labels
from privacy.packing import pack, pack_array, unpack_array
from privacy.release import Answer, Guarantee
from privacy.tensor_shapes import flattened
from tests.privacy.mutants import ScaledNoise, released


class SkipsChoices(RandomizedResponse):
    """Seldom moves the choice by a number of steps that has an odd number of ones in binary, as from a poor generator.

    Every four binary digits of the answer are about as probable as they should be; so are both ends of its range, and
    the answers with many zeros at their end.
    """

    def answer(self, data, noise):
        while True:
            step = noise.below(self.num_choices)
            told = (data + step) % self.num_choices
            if not step.bit_count() % 2 or told not in range(8, self.num_choices - 8) or told % 16 == 0:
                return Answer(pack([told]))


class EvenInSum(ScaledNoise):
    """Draws again until the noise adds up to an even number: fair in every count, and in the sum it is not."""

    def answer(self, data, noise):
        drawn = noise.discrete_laplace_vector(self.right_scale, self.num_labels)
        while sum(drawn) % 2:
            drawn = noise.discrete_laplace_vector(self.right_scale, self.num_labels)
        return released(count_labels(data, self.num_labels), drawn)


class NoiseInWholeRecords(FeatureHistogram):
    """A record makes F counts, so the noise for one count is multiplied by F: wide enough, and modulo F it is 0."""

    def answer(self, data, noise):
        scale = self.relation.changes / exact_epsilon(self.epsilon)
        drawn = noise.discrete_laplace_vector(scale, self.num_labels * self.num_bins)
        return released(self._counts(*data), [self.features_per_record * z for z in drawn])


@dataclass(frozen=True)
class StepFollowsTheData(LabelHistogram):
    """Sends noised counts in steps of a width that depends on how many records there are."""

    def answer(self, data, noise):
        drawn = noise.discrete_laplace_vector(self.relation.changes / exact_epsilon(self.epsilon), self.num_labels)
        counts = count_labels(data, self.num_labels)
        width = (11, 13, 17, 19, 23)[len(data)]
        return Answer(pack(round(Fraction(count + z, width)) * width for count, z in zip(counts, drawn, strict=True)))


class RoundsAfterwards(ClippedUpdate):
    """Draws its noise on a grid 256 times coarser than the one of the update: the low bits go without any.

    It rounds to the nearest by adding 127 steps before it cuts off what is below 256, and forgets the cut.
    """

    def answer(self, data, noise):
        bound = 1 << self.grid_bits
        coarse = rounded_gaussian(noise, exact_multiplier(self.noise_multiplier) * bound / 256, self.size) * 256
        coarse += 127 + clip_to_grid(flattened(data, self.shapes), float(self.clip_norm), bound).astype(np.int64)
        return Answer(pack_array(coarse, self.width_bytes))


@dataclass(frozen=True)
class FloatSum:
    """A sum of one clipped gradient, noised in floats: one step of DP-SGD as it was before its noise was exact.

    `sums` is the type of the sum; the noise is float32. What leaves are whole steps of 2**-grid_bits clip norms.
    """

    noise_multiplier: Fraction
    grid_bits: int
    sums: type = np.float32
    size: int = 16
    name: ClassVar[str] = "float_sum"
    guarantee: ClassVar[Guarantee] = Guarantee("L2 1: one record", "float32", "Abadi et al. 2016, on paper")

    @property
    def terms(self):
        return {"noise_multiplier": str(self.noise_multiplier), "grid_bits": self.grid_bits}

    @property
    def cost(self):
        sampled = SampledGaussian(Fraction(1), self.noise_multiplier, 1)
        return PrivacyCost(PrivacyUnit.RECORD, NeighbouringRelation.REPLACE, sampled=sampled)

    def check(self, data):
        pass

    def answer(self, data, noise):
        steps = np.rint(self.noised(data, noise) * 2.0**self.grid_bits).astype(np.int64)
        return Answer(pack_array(steps, 8))

    def decode_steps(self, payload):
        return unpack_array(payload, self.size, 8)

    def noised(self, data, noise):
        generator = np.random.Generator(np.random.PCG64(noise.below(1 << 64)))
        drawn = generator.standard_normal(self.size, dtype=np.float32) * np.float32(self.noise_multiplier)
        return np.array(data, dtype=self.sums) + drawn

    def neighbouring_worlds(self):
        gradient = self.gradient()
        steps = gradient * 2.0**self.grid_bits
        return [self.no_record, World("opposite gradients", -gradient, gradient, (-steps, steps))]

    @property
    def no_record(self):
        """Shows nothing, and so leaves nothing to be seen beside a known release: that is another attack."""
        return World("no record either way", np.zeros(self.size), np.zeros(self.size))

    def gradient(self):
        """Nearly as long as the clip norm, each coordinate with a few bits that are its own."""
        return (1 - np.arange(self.size) / 256) * self.size**-0.5


class FloatSumInFloats(FloatSum):
    """The same, sent as the floats that it is."""

    name: ClassVar[str] = "float_sum_in_floats"

    def answer(self, data, noise):
        return Answer(struct.pack(f"<{self.size}d", *self.noised(data, noise)))

    def decode_steps(self, payload):
        return np.array(struct.unpack(f"<{self.size}d", payload))

    def neighbouring_worlds(self):
        return [self.no_record, World("opposite gradients", -self.gradient(), self.gradient())]


class ExactSum(FloatSum):
    """The honest one beside them: a gradient in whole steps of 2**-24, exact noise, and then a coarser grid."""

    name: ClassVar[str] = "exact_sum"

    def answer(self, data, noise):
        drawn = rounded_gaussian(noise, self.noise_multiplier * 2**24, self.size)
        drawn += np.rint(np.array(data) * 2**24).astype(np.int64)
        return Answer(pack_array(drawn >> (24 - self.grid_bits), 8))
