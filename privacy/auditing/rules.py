"""How a guess is made from a statistic, and what the guesses add up to.

A rule looks at one number: at or above `high` it guesses one world, below `low` the other, between
them it abstains. What its success proves depends on what the mechanism promised.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from privacy.auditing.bounds import gaussian_mu_bound, guessing_bound, scipy_special, two_world_bound

if TYPE_CHECKING:
    from privacy.auditing.observations import Observations, Statistic


class Promise(StrEnum):
    """What a mechanism claims, which decides how guesses are counted."""

    PURE = "pure"
    GAUSSIAN = "gaussian"
    APPROXIMATE = "approximate"


@dataclass(frozen=True)
class Tally:
    """Guesses against the coin: of the runs in either world, how many were guessed to be first or second."""

    first_right: int = 0
    first_wrong: int = 0
    first_runs: int = 0
    second_right: int = 0
    second_wrong: int = 0
    second_runs: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(mine + its for mine, its in zip(vars(self).values(), vars(other).values(), strict=True)))

    @property
    def right(self) -> int:
        return self.first_right + self.second_right

    @property
    def guesses(self) -> int:
        return self.right + self.first_wrong + self.second_wrong

    def estimate(self, promise: Promise) -> float:
        """ε, or μ for a Gaussian promise, as the rates stand: no confidence is attached."""
        # Half a count more on either side keeps the logarithms finite.
        if promise is Promise.PURE:
            return math.log((self.right + 0.5) / (self.guesses - self.right + 0.5))
        kept = (self.first_right + 0.5) / (self.first_runs + 1)
        hit = (self.second_right + 0.5) / (self.second_runs + 1)
        if promise is Promise.GAUSSIAN:
            return float(scipy_special().ndtri(kept) + scipy_special().ndtri(hit))
        return max(math.log(hit / (1 - kept)), math.log(kept / (1 - hit)))

    def bound(self, promise: Promise, alpha: float, delta: float) -> float:
        """ε at least, or μ at least for a Gaussian promise."""
        if promise is Promise.PURE:
            return guessing_bound(self.right, self.guesses, alpha)
        if promise is Promise.GAUSSIAN:
            # A run that shows nothing counts as an error of the test.
            alarms, misses = self.first_runs - self.first_right, self.second_runs - self.second_right
            return gaussian_mu_bound(alarms, self.first_runs, misses, self.second_runs, alpha=alpha)
        return two_world_bound(
            self.second_right, self.second_runs, self.first_wrong, self.first_runs, alpha=alpha, delta=delta
        )


@dataclass(frozen=True)
class Rule:
    """Guess the second world at or above `high` and the first below `low`; the other way round if `turned`."""

    statistic: Statistic
    low: float
    high: float
    turned: bool

    def tally(self, seen: Observations) -> Tally:
        import numpy as np

        number = self.statistic.of_each(seen)
        above, below = number >= self.high, number < self.low
        says_second, says_first = (below, above) if self.turned else (above, below)
        second = seen.second
        counts = (
            says_first & ~second,
            says_second & ~second,
            ~second,
            says_second & second,
            says_first & second,
            second,
        )
        return Tally(*(int(np.count_nonzero(flags)) for flags in counts))
