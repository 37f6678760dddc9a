"""A selector of one's own: devices take turns, whoever waited longest first, ties at random.

    [[compare]]
    preset = "fedavg"
    overrides = { selector = { kind = "examples.own_selector:Turns", least_pause = 2 } }

A selector is any class with these two methods; what it must remember goes into `memory`, which the engine keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from server_kit.interfaces import DeviceId, DeviceView, Memory, RoundOutcome


@dataclass(frozen=True)
class Turns:
    """Nobody is asked again before `least_pause` rounds have passed, unless too few others wait."""

    least_pause: int = 0

    def select(
        self, waiting: Sequence[DeviceView], count: int, memory: Memory, rng: np.random.Generator
    ) -> list[DeviceId]:
        now = memory.get("round", 0)
        pause = {view.device: now - (-1 if view.last_round is None else view.last_round) for view in waiting}
        order = [waiting[place].device for place in rng.permutation(len(waiting))]
        order.sort(key=lambda device: (pause[device] <= self.least_pause, -pause[device]))
        return order[:count]

    def observe(self, outcome: RoundOutcome, memory: Memory) -> None:
        memory["round"] = outcome.round
