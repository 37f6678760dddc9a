"""Choosing the guess that promises most, on runs that take no part in the verdict.

Thousands of rules are tried: every statistic, many pairs of cuts, both ways round. Each is worth what its
success shows after several standard errors are taken off, so that the luckiest does not win over the best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from privacy.auditing.bounds import scipy_special
from privacy.auditing.rules import Promise, Rule, Tally

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from privacy.auditing.observations import Observations, Statistic

    Floats = NDArray[np.float64]

_CAUTION = 5.0  # standard errors taken off
_TAILS = (0.001, 0.003, 0.01, 0.03)
_STEPS = 29


@dataclass(frozen=True)
class Prospect:
    """A rule that scouting speaks for: the strength it is worth with caution, and the caution that was taken off."""

    rule: Rule
    score: float
    caution: float

    def beyond(self, claimed: float) -> Prospect:
        """With its score counted from what was claimed."""
        return replace(self, score=self.score - claimed)

    def beats(self, other: Prospect) -> bool:
        """Whether it is better by two standard errors; by less, the one that was thought of first stays."""
        return self.score > other.score + 2 * min(self.caution, other.caution) / _CAUTION


@dataclass(frozen=True)
class Scouted:
    """How the runs of both worlds fall below and above each cut that a rule on one statistic may make."""

    statistic: Statistic
    cuts: Floats
    below: Floats
    """Worlds by cuts. The first cut is −∞ and the last +∞, so that a rule may use one side only."""
    above: Floats
    runs: Floats

    @classmethod
    def of(cls, statistic: Statistic, seen: Observations) -> Scouted | None:
        """None where the statistic never changes and so can tell nothing."""
        import numpy as np

        number = statistic.of_each(seen)
        shown = ~np.isnan(number)
        if np.all(number == number[0]) or not shown.any():
            return None
        cuts = _cuts(number[shown])
        sides = [np.sort(number[shown & (seen.second == second)]) for second in (False, True)]
        below = np.array([np.searchsorted(side, cuts, side="left") for side in sides], dtype=np.float64)
        above = np.array([[len(side)] for side in sides]) - below
        second_runs = np.count_nonzero(seen.second)
        return cls(statistic, cuts, below, above, np.array([len(number) - second_runs, second_runs], dtype=np.float64))

    def best_rule(self, promise: Promise, delta: float) -> Prospect:
        """The pair of cuts that the runs speak for most."""
        return max((self._best(promise, delta, turned) for turned in (False, True)), key=lambda each: each.score)

    def _best(self, promise: Promise, delta: float, turned: bool) -> Prospect:
        import numpy as np

        order = slice(None, None, -1 if turned else 1)
        below, above, runs = self.below[order], self.above[order], self.runs[order]
        scores = _SCORES[promise](below, above, runs, delta)
        low, high = np.unravel_index(int(np.argmax(scores)), scores.shape)
        rule = Rule(self.statistic, float(self.cuts[low]), float(self.cuts[high]), turned)
        # Which world is called first does not matter for the estimate.
        counts = (below[0][low], above[0][high], runs[0], above[1][high], below[1][low], runs[1])
        score = float(scores[low, high])
        return Prospect(rule, score, Tally(*map(int, counts)).estimate(promise) - score)


def _cuts(numbers: Floats) -> Floats:
    """Where a rule may cut: −∞, every value if there are few, else quantiles with both tails, +∞."""
    import numpy as np

    values = np.unique(numbers)
    if len(values) > _STEPS + 2 * len(_TAILS):
        levels = np.concatenate([_TAILS, np.linspace(0.05, 0.95, _STEPS), 1 - np.array(_TAILS)])
        values = np.unique(np.quantile(numbers, levels, method="higher"))
    return np.concatenate([[-np.inf], values, [np.inf]])


def _pure_score(below: Floats, above: Floats, runs: Floats, delta: float) -> Floats:  # noqa: ARG001
    """ε for each pair of cuts; a guess `below` says the first row's world, `above` the second's."""
    import numpy as np

    right = below[0][:, None] + above[1][None, :]
    guesses = below.sum(axis=0)[:, None] + above.sum(axis=0)[None, :]
    rate = _cautious(right, guesses, -1)
    score: Floats = np.log(rate) - np.log1p(-rate)
    # The lower cut must not lie above the upper one.
    return np.where(np.tri(len(score), dtype=bool).T, score, -np.inf)


def _gaussian_score(below: Floats, above: Floats, runs: Floats, delta: float) -> Floats:  # noqa: ARG001
    inverse = scipy_special().ndtri
    alarms, misses = _cautious(runs[0] - below[0], runs[0], +1), _cautious(runs[1] - above[1], runs[1], +1)
    return _one_cut(-inverse(alarms) - inverse(misses))


def _approximate_score(below: Floats, above: Floats, runs: Floats, delta: float) -> Floats:
    import numpy as np

    hits_low, alarms_high = _cautious(above[1], runs[1], -1), _cautious(above[0], runs[0], +1)
    misses_high, kept_low = _cautious(below[1], runs[1], +1), _cautious(below[0], runs[0], -1)
    ratios = [(hits_low - delta) / alarms_high, (kept_low - delta) / misses_high]
    return _one_cut(np.log(np.maximum(np.maximum(*ratios), 1e-300)))


def _one_cut(scores: Floats) -> Floats:
    """Scores of rules that never abstain: both cuts are one."""
    import numpy as np

    table = np.full((len(scores), len(scores)), -np.inf)
    np.fill_diagonal(table, scores)
    return table


def _cautious(hits: Floats, runs: Floats | float, side: int) -> Floats:
    """Wilson's limit of a rate, `_CAUTION` standard errors below (-1) or above (+1), strictly inside (0, 1)."""
    import numpy as np

    total = np.maximum(runs, 1e-9) + _CAUTION**2
    middle = (hits + _CAUTION**2 / 2) / total
    spread = _CAUTION * np.sqrt(hits * np.maximum(runs - hits, 0.0) / np.maximum(runs, 1e-9) + _CAUTION**2 / 4) / total
    limits: Floats = np.clip(middle + side * spread, 1e-12, 1 - 1e-12)
    return limits


_SCORES: dict[Promise, Callable[[Floats, Floats, Floats, float], Floats]] = {
    Promise.PURE: _pure_score,
    Promise.GAUSSIAN: _gaussian_score,
    Promise.APPROXIMATE: _approximate_score,
}
