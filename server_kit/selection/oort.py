"""Oort: devices that still have much to teach, unless they are too slow, and some that nobody knows yet."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from server_kit.interfaces import DeviceId, DeviceView, Memory, RoundOutcome


@dataclass(frozen=True)
class Oort:
    """Utility with a speed penalty, uncertainty bonus, pacer and decaying exploration (Lai et al. 2021).

    U = samples·√(mean loss²) of the last participation, clipped at `clip_quantile`; score = U scaled to [0, 1]
    + √(0.1·ln t/t_last); beyond the preferred duration T the score is multiplied by (T/duration)². T is a
    percentile of the durations seen; every `pace_every` rounds it is raised where the utility gained stagnates
    and lowered where it leapt. Unknown devices are explored at a decaying rate, faster ones first.
    """

    exploration: float = 0.9
    exploration_decay: float = 0.95
    least_exploration: float = 0.2
    clip_quantile: float = 0.95
    cut_off: float = 0.7
    first_percentile: float = 30.0
    percentile_step: float = 5.0
    pace_every: int = 20
    penalty: float = 2.0

    def select(
        self, waiting: Sequence[DeviceView], count: int, memory: Memory, rng: np.random.Generator
    ) -> list[DeviceId]:
        if len(waiting) <= count:
            return [view.device for view in waiting]
        known = [view for view in waiting if view.loss is not None]
        unknown = [view for view in waiting if view.loss is None]
        rate = max(self.least_exploration, self.exploration * self.exploration_decay ** memory.get("rounds", 0))
        # Whoever is missing on one side is made up for by the other.
        explored = min(len(unknown), max(round(rate * count), count - len(known)))
        chosen = self._exploit(known, count - explored, memory, rng)
        return chosen + _weighted(unknown, [1 / _seconds(view) for view in unknown], explored, rng)

    def observe(self, outcome: RoundOutcome, memory: Memory) -> None:
        memory["rounds"] = memory.get("rounds", 0) + 1
        gained = sum(outcome.losses.get(device, 0.0) for device in outcome.arrived)
        memory["gains"] = [*memory.get("gains", []), gained][-2 * self.pace_every :]
        if memory["rounds"] % self.pace_every == 0 and len(memory["gains"]) == 2 * self.pace_every:
            before, lately = sum(memory["gains"][: self.pace_every]), sum(memory["gains"][self.pace_every :])
            percentile = memory.get("percentile", self.first_percentile)
            if abs(lately - before) <= 0.1 * before:
                percentile = min(100.0, percentile + self.percentile_step)
            elif abs(lately - before) >= 5 * before:
                percentile = max(self.percentile_step, percentile - self.percentile_step)
            memory["percentile"] = percentile

    def _exploit(
        self, known: Sequence[DeviceView], count: int, memory: Memory, rng: np.random.Generator
    ) -> list[DeviceId]:
        if count <= 0 or not known:
            return []
        scores = self.scores(known, memory)
        # All whose score comes near the last place that would make it, drawn by score.
        threshold = self.cut_off * sorted(scores, reverse=True)[min(count, len(scores)) - 1]
        good = [index for index, score in enumerate(scores) if score >= threshold]
        return _weighted([known[index] for index in good], [scores[index] for index in good], count, rng)

    def scores(self, known: Sequence[DeviceView], memory: Memory) -> list[float]:
        """The score of each device that has taken part."""
        now = memory.get("rounds", 0) + 1
        utility = np.array([(view.samples or 1) * abs(view.loss or 0.0) for view in known])
        utility = np.minimum(utility, np.quantile(utility, self.clip_quantile))
        spread = float(np.ptp(utility))
        scaled = (utility - utility.min()) / spread if spread > 0 else np.ones(len(utility))
        durations = np.array([_seconds(view) for view in known])
        preferred = float(np.percentile(durations, memory.get("percentile", self.first_percentile)))
        bonus = [math.sqrt(0.1 * math.log(now + 1) / max(1, view.last_round or 1)) for view in known]
        penalties = np.where(durations > preferred, (preferred / durations) ** self.penalty, 1.0)
        scores: list[float] = ((scaled + bonus) * penalties).tolist()
        return scores


def _seconds(view: DeviceView) -> float:
    return max(1e-6, 1.0 if view.latency_seconds is None else view.latency_seconds)


def _weighted(
    views: Sequence[DeviceView], weights: Sequence[float], count: int, rng: np.random.Generator
) -> list[DeviceId]:
    """`count` different devices, drawn in proportion to their weights."""
    count = min(count, len(views))
    if count == 0:
        return []
    positive = np.maximum(np.asarray(weights, dtype=np.float64), 1e-12)
    drawn = rng.choice(len(views), count, replace=False, p=positive / positive.sum())
    return [views[index].device for index in drawn]
