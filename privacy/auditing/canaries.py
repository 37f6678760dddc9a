"""The audit of a single release: many canaries, each in or out by its own coin (Steinke, Nasr, Jagielski 2023).

A histogram of m bins hides m coins at once, so one answer gives as many guesses as it has bins. It
takes milliseconds and is blunter than `privacy.auditing.audit`: a smoke test.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from privacy.auditing.bounds import guessing_bound, scipy_special
from privacy.auditing.claims import Claim
from privacy.auditing.observations import numbers_of
from privacy.auditing.power import detectable_epsilon
from privacy.auditing.report import AuditReport, Verdict
from privacy.auditing.rules import Promise
from privacy.auditing.runs import noise_sources
from privacy.budget import NeighbouringRelation
from privacy.errors import InvalidTerms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from privacy.release import Mechanism

# The shares of all canaries that are guessed, surest first; each costs its part of the confidence.
_SHARES_GUESSED = (1.0, 0.5)


@dataclass(frozen=True)
class _Histogram:
    """A table of `cells` counts in which one record weighs `weight` and falls into one cell."""

    cells: int
    weight: int
    relation: NeighbouringRelation

    @property
    def canaries(self) -> int:
        """Add or remove: a record for each cell, there or not. Replace: a record for two cells, in either."""
        return self.cells // self.relation.changes

    def occupied(self, coins: NDArray[np.int64]) -> list[int]:
        """The cell of each record that the coins put into the data."""
        import numpy as np

        if self.relation is NeighbouringRelation.ADD_REMOVE:
            occupied: list[int] = np.flatnonzero(coins).tolist()
        else:
            occupied = (2 * np.arange(len(coins)) + coins).tolist()
        return occupied

    def leaning(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each canary, how much nearer the counts are to its coin having shown 1."""
        import numpy as np

        nearer = np.abs(counts) - np.abs(counts - self.weight)
        if self.relation is NeighbouringRelation.ADD_REMOVE:
            return nearer
        pairs = nearer[: 2 * self.canaries].reshape(-1, 2)
        leaning: NDArray[np.float64] = pairs[:, 1] - pairs[:, 0]
        return leaning


def smoke(mechanism: Mechanism[Any], *, confidence: float = 0.95, seed: int | str | None = None) -> AuditReport:
    """The ε that one release of this histogram needs at least, from as many guesses as it has bins."""
    import numpy as np

    started = time.monotonic()
    scipy_special()
    claim = Claim.of(mechanism, delta=1e-6)
    histogram = _histogram_of(mechanism, claim)
    noise, coin_source = noise_sources(seed)
    coins = np.array([coin_source.below(2) for _ in range(histogram.canaries)], dtype=np.int64)
    data = _data_of(mechanism, histogram.occupied(coins))
    try:
        mechanism.check(data)
        payload = mechanism.answer(data, noise).payload
    except Exception as error:
        raise InvalidTerms(
            f"{mechanism.name} raised an error instead of answering, so no canary could be guessed; there is no verdict"
        ) from error
    counts = np.zeros(histogram.cells)
    numbers = numbers_of(payload, getattr(mechanism, "decode", None))[: histogram.cells]
    counts[: len(numbers)] = numbers
    alpha = (1 - confidence) / len(_SHARES_GUESSED)
    bound, right, guesses = _best_guesses(histogram.leaning(counts), coins, alpha)
    needed = detectable_epsilon(claim.strength, guesses, alpha)
    shown = min(claim.strength, math.log((right + 0.5) / (guesses - right + 0.5)))
    return AuditReport(
        mechanism=mechanism.name,
        claimed_epsilon=claim.epsilon,
        delta=0.0,
        lower_bound=bound,
        world=f"{histogram.canaries} canaries in one release",
        statistic=f"the {guesses} surest guesses",
        trials=1,
        seconds=time.monotonic() - started,
        confidence=confidence,
        verdict=Verdict.EXCEEDS_CLAIM if bound > claim.strength else Verdict.NO_EVIDENCE_OF_MORE,
        detectable_shortfall=None if math.isinf(needed) or shown <= 0 else 1 - shown / needed,
    )


def _best_guesses(leaning: NDArray[np.float64], coins: NDArray[np.int64], alpha: float) -> tuple[float, int, int]:
    """The highest bound among the shares guessed, with its right guesses and its guesses."""
    import numpy as np

    surest = np.argsort(-np.abs(leaning), kind="stable")
    is_right = ((leaning > 0) == (coins == 1))[surest]
    results = []
    for share in _SHARES_GUESSED:
        guesses = math.ceil(share * len(coins))
        right = int(np.count_nonzero(is_right[:guesses]))
        results.append((guessing_bound(right, guesses, alpha), right, guesses))
    return max(results)


def _histogram_of(mechanism: Mechanism[Any], claim: Claim) -> _Histogram:
    terms, relation = mechanism.terms, mechanism.cost.relation
    if mechanism.name == "label_histogram":
        histogram = _Histogram(int(terms["num_labels"]), 1, relation)
    elif mechanism.name == "feature_histogram":
        cells = int(terms["num_labels"]) * int(terms["num_bins"])
        histogram = _Histogram(cells, int(terms["features_per_record"]), relation)
    else:
        raise InvalidTerms(
            f"canaries fit into histograms only, not into {mechanism.name}; use `audit`; nothing was run"
        )
    if claim.promise is not Promise.PURE or not histogram.canaries:
        raise InvalidTerms("canaries need a pure claim and room for one record to move; use `audit`; nothing was run")
    return histogram


def _data_of(mechanism: Mechanism[Any], cells: list[int]) -> Any:
    """Records that fall into these cells, one each."""
    import numpy as np

    if mechanism.name == "label_histogram":
        return cells
    terms = mechanism.terms
    bins, low, high = int(terms["num_bins"]), float(terms["low"]), float(terms["high"])
    where = np.array(cells, dtype=np.int64)
    middles = low + (where % bins + 0.5) * (high - low) / bins
    return np.repeat(middles[:, None], int(terms["features_per_record"]), axis=1), where // bins
