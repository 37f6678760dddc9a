"""TiFL: devices in tiers of similar speed; each round trains within one tier, the weak tiers more often."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from server_kit.interfaces import DeviceId, DeviceView, Memory, RoundOutcome


@dataclass(frozen=True)
class TiFL:
    """Adaptive tiers (Chai et al. 2020): equal tiers by latency, credits, probabilities by how badly a tier does.

    A tier has ⌈rounds/tiers⌉·`credit_factor` credits; a round takes one. Every `interval` rounds, if the tier
    chosen last has not improved, tiers are ordered by the mean loss of their devices, the worst first, and the
    j-th of n gets probability (n−j)/(n(n+1)/2). A tier smaller than the round is taken whole.
    """

    tiers: int = 5
    rounds: int = 200
    credit_factor: float = 2.0
    interval: int = 10

    def select(
        self, waiting: Sequence[DeviceView], count: int, memory: Memory, rng: np.random.Generator
    ) -> list[DeviceId]:
        if len(waiting) <= count:
            return [view.device for view in waiting]
        tiers = self.tiers_of(waiting)
        credit = memory.setdefault("credits", [self._first_credit()] * self.tiers)
        allowed = [tier for tier in range(len(tiers)) if credit[tier] > 0] or list(range(len(tiers)))
        weights = memory.get("weights", [1.0] * self.tiers)
        total = sum(weights[tier] for tier in allowed)
        chosen = allowed[int(rng.choice(len(allowed), p=[weights[tier] / total for tier in allowed]))]
        credit[chosen] -= 1
        self._review(tiers, chosen, memory)
        members = tiers[chosen]
        if len(members) <= count:
            return [view.device for view in members]
        return [members[index].device for index in rng.choice(len(members), count, replace=False)]

    def observe(self, outcome: RoundOutcome, memory: Memory) -> None:
        del outcome
        memory["round"] = memory.get("round", 0) + 1

    def tiers_of(self, waiting: Sequence[DeviceView]) -> list[list[DeviceView]]:
        """The devices in equal tiers, the fastest first; unknown latency counts as the slowest."""
        ordered = sorted(waiting, key=lambda view: math.inf if view.latency_seconds is None else view.latency_seconds)
        size = math.ceil(len(ordered) / self.tiers)
        return [ordered[start : start + size] for start in range(0, len(ordered), size)]

    def _first_credit(self) -> int:
        return math.ceil(self.credit_factor * math.ceil(self.rounds / self.tiers))

    def _review(self, tiers: Sequence[Sequence[DeviceView]], chosen: int, memory: Memory) -> None:
        losses = [_mean_loss(tier) for tier in tiers]
        reviewed = memory.get("reviewed", 0)
        if memory.get("round", 0) - reviewed < self.interval:
            return
        before = memory.get("losses", [math.inf] * len(tiers))
        memory["reviewed"], memory["losses"] = memory.get("round", 0), losses
        if losses[chosen] < before[min(chosen, len(before) - 1)]:
            return
        weights = [0.0] * self.tiers
        for place, tier in enumerate(sorted(range(len(tiers)), key=lambda tier: -losses[tier])):
            weights[tier] = float(len(tiers) - place)
        memory["weights"] = weights


def _mean_loss(tier: Sequence[DeviceView]) -> float:
    known = [view.loss for view in tier if view.loss is not None]
    return sum(known) / len(known) if known else math.inf
