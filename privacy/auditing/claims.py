"""What a mechanism says that it costs, in the form that a bound can be compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privacy.accounting import epsilon_spent
from privacy.accounting.closed_form import epsilon_of
from privacy.auditing.rules import Promise
from privacy.budget import MICRO, NANO
from privacy.errors import InvalidTerms

if TYPE_CHECKING:
    from privacy.release import Mechanism

# Charged by its ρ, yet with a grid of 1024 steps so close to a Gaussian that no audit can see the difference.
_AS_GOOD_AS_GAUSSIAN = {"discrete_gaussian"}
# Charged by Rényi divergences; where every record is in every batch it is a sequence of Gaussians and nothing else.
_STEPS_OF_GAUSSIANS = {"dp_sgd"}
_LARGER_DELTAS = (1e-3, 1e-2, 0.05, 0.1)


@dataclass(frozen=True)
class Claim:
    """ε at δ; `strength` is μ for a Gaussian claim and ε for the others."""

    promise: Promise
    strength: float
    delta: float

    @classmethod
    def all_of(cls, mechanism: Mechanism[Any], delta: float) -> list[Claim]:
        """What the cost claims, most important first.

        A cost that is neither pure nor Gaussian claims an ε at every δ. Few runs show nothing at a δ of
        one in a million, so a few larger ones are tested beside it.
        """
        claim = cls.of(mechanism, delta)
        if claim.promise is not Promise.APPROXIMATE:
            return [claim]
        return [claim, *(cls.of(mechanism, larger) for larger in _LARGER_DELTAS if larger > delta)]

    @classmethod
    def of(cls, mechanism: Mechanism[Any], delta: float) -> Claim:
        """The claim that follows from the cost, at `delta` where it has one."""
        cost = mechanism.cost
        if not 0 < delta < 1:
            raise InvalidTerms(f"δ lies between 0 and 1, got {delta!r}; nothing was run")
        pure = sum(cost.pure_micro_epsilon) / MICRO
        others = (cost.mu_squared_nano, cost.rho_nano, cost.sampled)
        if not any(others):
            return cls(Promise.PURE, pure, 0.0)
        if not any((pure, cost.rho_nano, cost.sampled)):
            return cls(Promise.GAUSSIAN, math.sqrt(cost.mu_squared_nano / NANO), delta)
        if mechanism.name in _AS_GOOD_AS_GAUSSIAN and not any((pure, cost.mu_squared_nano, cost.sampled)):
            return cls(Promise.GAUSSIAN, math.sqrt(2 * cost.rho_nano / NANO), delta)
        if mechanism.name in _STEPS_OF_GAUSSIANS and not any((pure, cost.mu_squared_nano, cost.rho_nano)):
            steps = cost.sampled
            if steps is not None and steps.sampling_rate == 1:
                mu = cost.relation.changes * math.sqrt(steps.steps) / float(steps.noise_multiplier)
                return cls(Promise.GAUSSIAN, mu, delta)
        return cls(Promise.APPROXIMATE, epsilon_spent([cost], delta), delta)

    @property
    def epsilon(self) -> float:
        return self.epsilon_of(self.strength)

    def epsilon_of(self, strength: float) -> float:
        """The ε, at this claim's δ, that a strength of this kind stands for."""
        return epsilon_of(self.delta, (), strength**2) if self.promise is Promise.GAUSSIAN else strength
