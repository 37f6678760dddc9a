"""A way to train a federation: one choice for each part. A published system is nothing but such a choice."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from server_kit.aggregation import FedAvg
from server_kit.errors import InvalidSetting
from server_kit.formation.never import Never
from server_kit.interfaces import Aggregator, Formation, Matcher, Mixing, Objective, Selector
from server_kit.matching import ByRequest
from server_kit.objectives import Plain
from server_kit.round import Pace
from server_kit.selection import Uniform


@dataclass(frozen=True)
class Strategy:
    """The parts, and how devices are shared out among cohorts.

    `budget` "each": every leaf chooses its own ⌊P/M⌋ of the P places. "shared": the places go to devices of
    any cohort, and all cohorts move on together; asynchronous strategies always share.
    """

    name: str
    selector: Selector = field(default_factory=Uniform)
    aggregator: Aggregator = field(default_factory=FedAvg)
    objective: Objective = field(default_factory=Plain)
    formation: Formation = field(default_factory=Never)
    matcher: Matcher = field(default_factory=ByRequest)
    mixing: Mixing | None = None
    budget: Literal["each", "shared"] = "each"
    over_commit: float = 1.0
    hurried_rounds: int | None = None
    """How many rounds of a cohort ask more devices than they wait for; later ones wait for all. None: every round."""
    buffer: int | None = None
    """Asynchronous: how many arrivals make the next model. None: rounds."""
    deadline_seconds: float = math.inf
    fold_late: bool = False
    reports_loss: bool = False
    """Whether devices tell how well the model they were handed does on their data."""
    fine_tune_epochs: int = 0
    """FTFA: before it is used, each device trains its cohort's model on its own data."""
    alone: bool = False
    """Every device trains by itself, without a server, as often as it would have been asked."""

    def __post_init__(self) -> None:
        if self.over_commit < 1:
            raise InvalidSetting(f"over_commit is 1 or more, got {self.over_commit}; nothing was started")
        if self.hurried_rounds is not None and self.hurried_rounds < 0:
            raise InvalidSetting(f"hurried_rounds is 0 or more, got {self.hurried_rounds}; nothing was started")
        if self.buffer is not None and self.buffer < 1:
            raise InvalidSetting(f"buffer is 1 arrival or more, got {self.buffer}; nothing was started")

    @property
    def is_asynchronous(self) -> bool:
        return self.buffer is not None

    @property
    def shares_places(self) -> bool:
        return self.is_asynchronous or self.budget == "shared"

    def over_commit_in(self, round_number: int) -> float:
        """How many times the answers that are needed a cohort asks for in its round of this number."""
        hurries = self.hurried_rounds is None or round_number < self.hurried_rounds
        return self.over_commit if hurries else 1.0

    def pace(self, participants: int, leaves: int, begin_with: int = 1, round_number: int = 0) -> Pace:
        """The pace of one of so many leaves in its round of this number, when all together have so many places."""
        if self.buffer is not None:
            return Pace(arrivals=self.buffer, in_flight=participants, begin_with=begin_with, fold_late=True)
        return Pace(
            arrivals=participants if self.shares_places else max(1, participants // leaves),
            over_commit=self.over_commit_in(round_number),
            deadline_seconds=self.deadline_seconds,
            begin_with=begin_with,
            fold_late=self.fold_late,
        )
