"""The simplified Oort that HACCS compared itself with: loss times a penalty for slow devices, no exploration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from server_kit.interfaces import DeviceId, DeviceView, Memory, RoundOutcome


@dataclass(frozen=True)
class OortLite:
    """Takes the `count` devices of highest loss·(limit/latency)², the penalty only beyond the limit.

    A device never heard of counts as the best. Ties fall at random.
    """

    limit_seconds: float = 10.0

    def select(
        self, waiting: Sequence[DeviceView], count: int, memory: Memory, rng: np.random.Generator
    ) -> list[DeviceId]:
        del memory
        order = rng.permutation(len(waiting))
        ranked = sorted(order, key=lambda index: -self._utility(waiting[index]))
        return [waiting[index].device for index in ranked[:count]]

    def observe(self, outcome: RoundOutcome, memory: Memory) -> None:
        del outcome, memory

    def _utility(self, view: DeviceView) -> float:
        if view.loss is None:
            return float("inf")
        slow = view.latency_seconds is not None and view.latency_seconds > self.limit_seconds
        return view.loss * ((self.limit_seconds / view.latency_seconds) ** 2 if slow and view.latency_seconds else 1.0)
