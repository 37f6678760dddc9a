"""What a device may release in its life, what one release costs, and whom the promise protects.

Costs are integers: pure ε in micro-ε, μ² of a Gaussian and ρ of a zCDP release in units of 1e-9.
They are rounded up when spent and down when they limit, so that adding many of them never
understates the total. A cost is known before any data are read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from privacy.errors import InvalidTerms

MICRO = 10**6
NANO = 10**9


class PrivacyUnit(StrEnum):
    """Whose presence is hidden: one record of the device, or everything the device holds."""

    RECORD = "record"
    DEVICE = "device"


class NeighbouringRelation(StrEnum):
    """Which two worlds must look alike. One relation holds for a whole ledger.

    For the record unit the relation is about one record; for the device unit, ADD_REMOVE compares
    a device's contribution with none (zero-out) and REPLACE with any other contribution.
    """

    ADD_REMOVE = "add_remove"
    REPLACE = "replace"

    @property
    def changes(self) -> int:
        """How many single additions or removals separate two neighbours."""
        return 1 if self is NeighbouringRelation.ADD_REMOVE else 2


def rounded_up(value: Fraction | float, unit: int) -> int:
    """The least whole number of `1/unit` that is not below `value`."""
    return math.ceil(Fraction(value) * unit)


def rounded_down(value: Fraction | float, unit: int) -> int:
    """The greatest whole number of `1/unit` that is not above `value`."""
    return math.floor(Fraction(value) * unit)


@dataclass(frozen=True)
class SampledGaussian:
    """`steps` steps of DP-SGD: Poisson batches at rate `sampling_rate`, noise `noise_multiplier` x clip norm.

    The rate is claimed only where the device itself draws the batch and keeps it secret.
    """

    sampling_rate: Fraction
    noise_multiplier: Fraction
    steps: int

    def __post_init__(self) -> None:
        if not 0 < self.sampling_rate <= 1:
            raise InvalidTerms(f"a sampling rate lies in (0, 1], got {float(self.sampling_rate):g}; nothing was booked")
        if self.noise_multiplier <= 0:
            raise InvalidTerms(
                f"DP-SGD needs a positive noise multiplier, got {float(self.noise_multiplier):g}; nothing was booked"
            )
        if self.steps < 1:
            raise InvalidTerms(f"DP-SGD needs at least one step, got {self.steps}; nothing was booked")


@dataclass(frozen=True)
class PrivacyCost:
    """What one release costs, stated before it sees data.

    `pure_micro_epsilon` lists the pure-ε parts (each is dominated by randomised response at that ε),
    `mu_squared_nano` is μ² of a Gaussian release, `rho_nano` the ρ of a zCDP release that is not
    exactly Gaussian, `sampled` a run of DP-SGD.
    """

    unit: PrivacyUnit
    relation: NeighbouringRelation
    pure_micro_epsilon: tuple[int, ...] = ()
    mu_squared_nano: int = 0
    rho_nano: int = 0
    sampled: SampledGaussian | None = None

    def __post_init__(self) -> None:
        integers = (*self.pure_micro_epsilon, self.mu_squared_nano, self.rho_nano)
        if any(part < 0 for part in integers):
            raise InvalidTerms("a privacy cost cannot be negative; nothing was booked")
        if not any(integers) and self.sampled is None:
            raise InvalidTerms("a release that costs nothing is not private; nothing was booked")

    @classmethod
    def pure(
        cls, epsilon: Fraction | float, unit: PrivacyUnit, relation: NeighbouringRelation, parts: int = 1
    ) -> PrivacyCost:
        """ε-DP in all, made of `parts` equal releases on disjoint coordinates."""
        each = rounded_up(Fraction(epsilon) / parts, MICRO)
        return cls(unit, relation, pure_micro_epsilon=(each,) * parts)

    @classmethod
    def gaussian(cls, mu: Fraction | float, unit: PrivacyUnit, relation: NeighbouringRelation) -> PrivacyCost:
        """μ-Gaussian DP: `mu` is sensitivity over the noise's standard deviation."""
        return cls(unit, relation, mu_squared_nano=rounded_up(Fraction(mu) ** 2, NANO))


@dataclass(frozen=True)
class PrivacyBudget:
    """What a device may spend in its life: (ε, δ) over all servers, tasks and purposes together.

    ε is divided once, when the ledger is created, because only fixed limits stay valid when a server
    chooses its next question after seeing the last answer (docs/privacy_guarantees.md, "Adaptive
    questions"). `pure_epsilon` (a quarter if not given) pays for histograms, randomised response and
    scalars; the rest pays for training noised at device level (Gaussians, by Σμ²) or at record level
    (DP-SGD, by a Rényi bound), as `training` says. `renyi_epsilon` sets a Rényi share beside Σμ².
    """

    epsilon: float
    delta: float
    training: PrivacyUnit = PrivacyUnit.DEVICE
    relation: NeighbouringRelation = NeighbouringRelation.REPLACE
    pure_epsilon: float | None = None
    renyi_epsilon: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "training", PrivacyUnit(self.training))
        object.__setattr__(self, "relation", NeighbouringRelation(self.relation))
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise InvalidTerms(f"a budget needs a finite ε above 0, got {self.epsilon!r}; no ledger was made")
        if not 0 < self.delta < 1:
            raise InvalidTerms(f"a budget needs δ between 0 and 1, got {self.delta!r}; no ledger was made")
        for name, share in (("pure_epsilon", self.pure_epsilon), ("renyi_epsilon", self.renyi_epsilon)):
            if share is not None and not 0 <= share <= self.epsilon:
                raise InvalidTerms(
                    f"{name}={share!r} is no share of ε={self.epsilon:g}; give a value from 0 to ε; no ledger was made"
                )
        # Shares are decimals held as floats: 0.1 + 0.2 may not exceed 0.3. Limits are rounded down afterwards.
        if self.pure_share + self.renyi_share > self.epsilon * (1 + 1e-12):
            raise InvalidTerms(
                f"pure_epsilon and renyi_epsilon together exceed ε={self.epsilon:g}; lower one; no ledger was made"
            )

    @property
    def pure_share(self) -> float:
        return self.epsilon / 4 if self.pure_epsilon is None else self.pure_epsilon

    @property
    def renyi_share(self) -> float:
        if self.renyi_epsilon is not None:
            return self.renyi_epsilon
        return self.epsilon - self.pure_share if self.training is PrivacyUnit.RECORD else 0.0
