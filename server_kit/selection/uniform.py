"""Uniform choice without replacement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from server_kit.interfaces import DeviceId, DeviceView, Memory, RoundOutcome


@dataclass(frozen=True)
class Uniform:
    """Every waiting device is as likely as any other; all of them if no more than `count` wait."""

    def select(
        self, waiting: Sequence[DeviceView], count: int, memory: Memory, rng: np.random.Generator
    ) -> list[DeviceId]:
        del memory
        if len(waiting) <= count:
            return [view.device for view in waiting]
        return [waiting[index].device for index in rng.choice(len(waiting), count, replace=False)]

    def observe(self, outcome: RoundOutcome, memory: Memory) -> None:
        del outcome, memory
