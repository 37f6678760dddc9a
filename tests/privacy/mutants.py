"""Mechanisms and paths that break their promise in one way each, and the honest step of DP-SGD beside two of them.

A mutant inherits everything from the mechanism it betrays, the claimed cost above all; what it overrides
is its fault.
"""

from __future__ import annotations

import dataclasses
import math
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
from privacy.mechanisms import ClippedUpdate, FeatureHistogram, LabelHistogram, VotedChoice
from privacy.mechanisms.label_histogram import count_labels
from privacy.packing import pack, pack_array
from privacy.randomness import NoiseSource, SeededSource
from privacy.release import Answer, Guarantee
from privacy.tensor_shapes import flattened


def released(counts, drawn) -> Answer:
    return Answer(pack(map(int.__add__, counts, drawn)))


# Histograms


@dataclass(frozen=True)
class ScaledNoise(LabelHistogram):
    """Noise times `factor`."""

    factor: Fraction = Fraction(1)

    def answer(self, data, noise):
        drawn = noise.discrete_laplace_vector(self.right_scale * self.factor, self.num_labels)
        return released(count_labels(data, self.num_labels), drawn)

    @property
    def right_scale(self) -> Fraction:
        return self.relation.changes / exact_epsilon(self.epsilon)


class ForgetsReplacement(LabelHistogram):
    """Replacing a record changes two counts; the noise is for one."""

    def answer(self, data, noise):
        drawn = noise.discrete_laplace_vector(1 / exact_epsilon(self.epsilon), self.num_labels)
        return released(count_labels(data, self.num_labels), drawn)


class ForgetsFeatures(FeatureHistogram):
    """A record makes F counts; the noise is for one (as in HACCS)."""

    def answer(self, data, noise):
        scale = self.relation.changes / exact_epsilon(self.epsilon)
        return released(self._counts(*data), noise.discrete_laplace_vector(scale, self.num_labels * self.num_bins))


class NoiseOnFullBinsOnly(ScaledNoise):
    def answer(self, data, noise):
        drawn = noise.discrete_laplace_vector(self.right_scale, self.num_labels)
        counts = count_labels(data, self.num_labels)
        return Answer(pack(count + z if count else 0 for count, z in zip(counts, drawn, strict=True)))


class OmitsAbsentLabels(ScaledNoise):
    """Sends the labels that the device has, noised, and so tells exactly which they are."""

    def answer(self, data, noise):
        drawn = noise.discrete_laplace_vector(self.right_scale, self.num_labels)
        counts = count_labels(data, self.num_labels)
        pairs = [(label, counts[label] + drawn[label]) for label in range(self.num_labels) if counts[label]]
        return Answer(pack(number for pair in pairs for number in pair))


class FixedSeed(LabelHistogram):
    def answer(self, data, noise):
        return super().answer(data, NoiseSource(SeededSource(7)))


class SeedIsTheRound(LabelHistogram):
    """Every round has other noise, and everybody can compute it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "round_number", 0)

    def answer(self, data, noise):
        object.__setattr__(self, "round_number", vars(self)["round_number"] + 1)
        return super().answer(data, NoiseSource(SeededSource(vars(self)["round_number"])))


class SameNoiseForTwoReleases(ScaledNoise):
    """Draws noise for every other release, and the next one gets the same."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "kept", None)

    def answer(self, data, noise):
        kept = vars(self)["kept"]
        drawn = kept or noise.discrete_laplace_vector(self.right_scale, self.num_labels)
        object.__setattr__(self, "kept", None if kept else drawn)
        return released(count_labels(data, self.num_labels), drawn)


class FloatNoise(ScaledNoise):
    """Textbook Laplace noise, drawn and added in floats: the low bits show what it was added to."""

    def answer(self, data, noise):
        counts = count_labels(data, self.num_labels)
        return Answer(struct.pack(f"<{self.num_labels}d", *(count + self.laplace(noise) for count in counts)))

    def laplace(self, noise) -> float:
        uniform = (noise.below(1 << 53) + 1) / (1 << 53)
        return (1 if noise.below(2) else -1) * float(self.right_scale) * -math.log(uniform)

    def decode(self, payload):
        return list(struct.unpack(f"<{self.num_labels}d", payload))


class RaisesOnUnknownLabels(LabelHistogram):
    """An error that depends on the data is an answer that nobody noised."""

    def answer(self, data, noise):
        if any(label not in range(self.num_labels) for label in data):
            raise ValueError("unknown label")
        return super().answer(data, noise)


@dataclass(frozen=True)
class AnsweredAgain(LabelHistogram):
    """A device without memory, asked `times` times for the same thing; the onlooker has all answers."""

    times: int = 5

    def answer(self, data, noise):
        payloads = [LabelHistogram.answer(self, data, noise).payload for _ in range(self.times)]
        return Answer(b"".join(payloads))


# Choices


class ForgetsReplacedVotes(VotedChoice):
    """A record in the place of another moves two counts of votes; the throw of dice is for one."""

    def _drawn(self, noise):
        return VotedChoice(self.num_choices, self.epsilon, NeighbouringRelation.ADD_REMOVE)._drawn(noise)


class TellsTheWinner(VotedChoice):
    """The choice with the most votes, whatever ε says."""

    def answer(self, data, noise):
        return Answer(pack([max(range(self.num_choices), key=list(data).count)]))


# Updates


class NoClip(ClippedUpdate):
    def answer(self, data, noise):
        return self.noised(flattened(data, self.shapes), noise)

    def noised(self, vector, noise) -> Answer:
        drawn = rounded_gaussian(noise, exact_multiplier(self.noise_multiplier) * (1 << self.grid_bits), self.size)
        return Answer(pack_array(drawn + np.rint(vector / self.step).astype(np.int64), self.width_bytes))


class NanPasses(NoClip):
    """Clips by min(1, C/‖v‖), which is 1 for a norm that is not a number (as in Flower 1.42)."""

    def answer(self, data, noise):
        vector = flattened(data, self.shapes)
        norm = float(np.linalg.norm(vector)) or 1.0
        return self.noised(vector * min(1.0, float(self.clip_norm) / norm), noise)


class ClipsEachCoordinate(NoClip):
    """Bounds the largest coordinate where the whole norm was meant."""

    def answer(self, data, noise):
        bound = float(self.clip_norm)
        return self.noised(np.clip(np.nan_to_num(flattened(data, self.shapes)), -bound, bound), noise)


@dataclass(frozen=True)
class ScaledGaussian(ClippedUpdate):
    """Noise times `factor`."""

    factor: Fraction = Fraction(1)

    def answer(self, data, noise):
        bound = 1 << self.grid_bits
        drawn = rounded_gaussian(noise, exact_multiplier(self.noise_multiplier) * bound * self.factor, self.size)
        drawn += clip_to_grid(flattened(data, self.shapes), float(self.clip_norm), bound).astype(np.int64)
        return Answer(pack_array(drawn, self.width_bytes))


class ClaimsAmplification(ClippedUpdate):
    """Counts on a server that selects one device in a hundred, as if the server did not know which."""

    @property
    def cost(self):
        sampled = SampledGaussian(Fraction(1, 100), exact_multiplier(self.noise_multiplier) / 2, 1)
        return PrivacyCost(PrivacyUnit.DEVICE, self.relation, sampled=sampled)


# Steps of DP-SGD on one weight


@dataclass(frozen=True)
class SmallDpSgd:
    """DP-SGD on one weight, honestly: Poisson batches, each gradient clipped to 1, noise on every sum."""

    steps: int = 20
    noise_multiplier: Fraction = Fraction(1)
    grid: int = 1 << 10
    name: ClassVar[str] = "small_dp_sgd"
    guarantee: ClassVar[Guarantee] = Guarantee("L2 1: one record", "Gaussian on every sum", "Abadi et al. 2016")

    @property
    def terms(self):
        return {"steps": self.steps, "noise_multiplier": str(self.noise_multiplier)}

    @property
    def cost(self):
        sampled = SampledGaussian(Fraction(1, self.steps), self.noise_multiplier, self.steps)
        return PrivacyCost(PrivacyUnit.RECORD, NeighbouringRelation.ADD_REMOVE, sampled=sampled)

    def check(self, data):
        pass

    def answer(self, data, noise):
        drawn = rounded_gaussian(noise, self.noise_multiplier * self.grid, self.steps)
        sums = [self.clipped_sum(batch) for batch in self.batches(data, noise)]
        return Answer(pack_array(drawn + np.rint(np.array(sums) * self.grid).astype(np.int64), 8))

    def batches(self, gradients, noise):
        # A record is in a batch with probability 1/steps, whatever else is.
        return [[gradient for gradient in gradients if noise.below(self.steps) == 0] for _ in range(self.steps)]

    def clipped_sum(self, gradients) -> float:
        return sum(max(-1.0, min(1.0, gradient)) for gradient in gradients)

    def neighbouring_worlds(self):
        return [World("a gradient of 100 clip norms", [0.0], [0.0, 100.0])]


class TakesBatchesInOrder(SmallDpSgd):
    """Goes through the records once, in order, and is accounted as if it had drawn them at random."""

    def batches(self, gradients, noise):
        return [gradients[step :: self.steps] for step in range(self.steps)]


@dataclass(frozen=True)
class ClipsTheAverage(SmallDpSgd):
    """Averages a batch of ten before clipping, so that one record may move the sum by ten clip norms."""

    batch_size: int = 10

    def clipped_sum(self, gradients):
        average = sum(gradients) / self.batch_size
        return max(-1.0, min(1.0, average)) * self.batch_size


# Paths from data to release


def forgets_its_answers(ledger, mechanism, data, request, noise):
    """Books an equal request once, and noises it anew each time."""
    reservation = ledger.reserve(mechanism.name, mechanism.terms, mechanism.cost, request)
    release = ledger.settle(reservation, mechanism.answer(data, noise))
    return dataclasses.replace(release, payload=mechanism.answer(data, noise).payload)


def books_each_retry(ledger, mechanism, data, request, noise):
    """Pays for every retry: no secret leaks, but the budget does."""
    retry = dataclasses.replace(request, subject=f"{request.subject} {ledger.status().sequence}")
    reservation = ledger.reserve(mechanism.name, mechanism.terms, mechanism.cost, retry)
    return ledger.settle(reservation, mechanism.answer(data, noise))


def books_afterwards(ledger, mechanism, data, request, noise):
    """Computes first and books then: a crash between the two is a release that nobody paid for."""
    answer = mechanism.answer(data, noise)
    reservation = ledger.reserve(mechanism.name, mechanism.terms, mechanism.cost, request)
    return ledger.settle(reservation, answer)
