"""How good models are, where the server has no data of its own: devices that took part are asked.

Each tells the share of its records that the new model gets right, noised for itself alone, so one answer says little
and the mean of many something. So few are not asked at all: they would pay for nothing. Nobody waits for answers: what
has come by the cohort's next model is counted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from device_sdk.wire.messages import QuestionKind
from server_kit.daemon.questions import Asked, answers_to
from server_kit.store.protocol import Happening

if TYPE_CHECKING:
    from device_sdk.wire.messages import DeviceId, ModelReference, ServerMessage
    from server_kit.interfaces import CohortId
    from server_kit.store.protocol import Store

_FEWEST = 2
_WORST_ERROR = 0.2
"""A mean that is off by more, as a rule, tells nobody anything."""


def fewest_to_ask(epsilon: str) -> int:
    """How many answers, each with Laplace noise of scale 1/ε, make a mean that is of use."""
    return max(_FEWEST, math.ceil(2 / (float(epsilon) * _WORST_ERROR) ** 2))


@dataclass
class DeviceReports:
    """Asks after each `every`-th round of a cohort; `every` 0: never."""

    store: Store
    push: Callable[[DeviceId, ServerMessage], bool]
    epsilon: str
    every: int
    patience_seconds: float
    _asked: dict[CohortId, tuple[int, Asked, list[DeviceId]]] = field(default_factory=dict)

    def ask(self, cohort: CohortId, round_number: int, model: ModelReference, devices: Sequence[DeviceId]) -> None:
        """Ask these devices about the model of this round."""
        if self.every == 0 or round_number % self.every or len(devices) < fewest_to_ask(self.epsilon):
            return
        asked = Asked(QuestionKind.ACCURACY, (model,), self.epsilon, occasion=f"{cohort} {round_number}")
        reached = [device for device in devices if self.push(device, asked.to(device, self.patience_seconds))]
        self._asked[cohort] = (round_number, asked, reached)

    def collected(self, cohort: CohortId, now_seconds: float) -> list[Happening]:
        """What was answered about the cohort's last tested model."""
        if cohort not in self._asked:
            return []
        round_number, asked, devices = self._asked.pop(cohort)
        answers = list(answers_to(self.store, asked, devices).values())
        # Nobody will ask for them again.
        self.store.forget_answers(asked.mechanism, asked.name)
        if len(answers) < _FEWEST:
            return []
        error = statistics.stdev(answers) / math.sqrt(len(answers))
        facts = {
            "round": round_number,
            # Noise may carry the mean out of where a share can lie.
            "accuracy": round(min(1.0, max(0.0, statistics.fmean(answers))), 4),
            "error": round(error, 4),
            "answers": len(answers),
        }
        return [Happening("tested", now_seconds, cohort, facts)]
