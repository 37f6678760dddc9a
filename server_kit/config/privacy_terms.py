"""[privacy]: what a device is asked to do to what it sends, and what each answer costs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from device_sdk.wire.messages import ChoiceBy, DeviceLevelTerms, PrivacyTerms, RecordLevelTerms, Relation
from device_sdk.wire.question_terms import choice_mechanism
from privacy.budget import NeighbouringRelation, PrivacyCost, PrivacyUnit
from privacy.errors import InvalidTerms
from privacy.mechanisms.bounded_scalar import BoundedScalar
from privacy.mechanisms.clipped_update import ClippedUpdate
from privacy.mechanisms.dp_sgd import DpSgd
from privacy.mechanisms.label_histogram import LabelHistogram
from server_kit.config.checking import exact, require, within_unit
from server_kit.errors import InvalidSetting

if TYPE_CHECKING:
    from device_sdk.wire.question_terms import ChoiceMechanism
    from server_kit.config.tables import Training

_GRID_BITS = {"record": 8, "device": 17}
_ANY_SHAPE = {"tensor": (1,)}  # what a release costs does not depend on its size


@dataclass(frozen=True)
class HistogramTerms:
    """The one histogram of its labels that a device may be asked for."""

    labels: int = 10
    epsilon: str | float = "1"

    def __post_init__(self) -> None:
        require(self.labels >= 2, f"labels must be at least 2, got {self.labels}")
        object.__setattr__(self, "epsilon", exact(self.epsilon, "epsilon"))


_UNNAMED = HistogramTerms()


@dataclass(frozen=True)
class Privacy:
    """[privacy]: terms of every task. "record": DP-SGD on the device; "device": the update is noised as a whole."""

    level: Literal["record", "device"] = "record"
    clip_norm: str | float = "1"
    noise_multiplier: str | float = "2"
    sampling_rate: str | float = "0.05"
    """Level "record": the chance of a record to be in a batch."""
    expected_batch_size: str | float = "16"
    """Level "record": what a batch's sum is divided by, whatever it held."""
    relation: Relation = Relation.REPLACE
    grid_bits: int | None = None
    """How finely an update is rounded; by default 8 at level "record" and 17 at level "device"."""
    histogram: HistogramTerms = field(default_factory=lambda: _UNNAMED)
    """Where the preset asks for one. If the file names it, no other is taken."""
    choice_epsilon: str | float = "0.25"
    """What a choice between models costs a device, where the preset asks for one."""
    choice_by: Literal["response", "votes"] | None = None
    """How it is told: by randomised response, which hides the whole device, or by a vote of its records, which hides
    one record and is seldom wrong; by default votes at level "record" and response at level "device"."""
    evaluation_epsilon: str | float = "0.25"
    """What it costs a device to say how well a model does, where the server has no data of its own."""

    def __post_init__(self) -> None:
        for name in (
            "clip_norm",
            "noise_multiplier",
            "sampling_rate",
            "expected_batch_size",
            "choice_epsilon",
            "evaluation_epsilon",
        ):
            object.__setattr__(self, name, exact(getattr(self, name), name))
        within_unit(str(self.sampling_rate), "sampling_rate")
        if self.grid_bits is None:
            object.__setattr__(self, "grid_bits", _GRID_BITS[self.level])
        if self.choice_by is None:
            object.__setattr__(self, "choice_by", "votes" if self.level == "record" else "response")
        require(
            (self.choice_by, self.level) != ("votes", "device"),
            "votes hide records and not devices; use choice_by = 'response' at level 'device'",
        )
        require(8 <= self.grid <= 24, f"grid_bits must lie within 8 and 24, got {self.grid_bits}")

    @property
    def grid(self) -> int:
        """`grid_bits`, known."""
        return self.grid_bits or _GRID_BITS[self.level]

    @property
    def unit(self) -> PrivacyUnit:
        """Whom an update protects."""
        return PrivacyUnit(self.level)

    @property
    def names_histogram(self) -> bool:
        """Whether the file says what histogram devices are to send, though it may be the default."""
        return self.histogram is not _UNNAMED

    def terms(self) -> PrivacyTerms:
        """As they stand in a task."""
        clip_norm, noise = str(self.clip_norm), str(self.noise_multiplier)
        if self.level == "device":
            return DeviceLevelTerms(clip_norm, noise, self.relation, self.grid)
        rate, size = str(self.sampling_rate), str(self.expected_batch_size)
        return RecordLevelTerms(clip_norm, noise, rate, size, self.relation, self.grid)

    def round_cost(self, training: Training) -> PrivacyCost:
        """What one round costs a device: as its own ledger books it."""
        try:
            return self._update(training).cost
        except InvalidTerms as error:
            raise InvalidSetting(str(error)) from error

    def grid_step(self, training: Training) -> float:
        """The width of the grid that updates are rounded to."""
        return self._update(training).step

    def histogram_cost(self) -> PrivacyCost:
        """What the histogram costs a device."""
        return LabelHistogram(self.histogram.labels, self.histogram.epsilon, self._relation).cost

    def choice_cost(self) -> PrivacyCost:
        """What one choice between models costs."""
        return self.choice_mechanism(2).cost

    def choice_mechanism(self, num_choices: int) -> ChoiceMechanism:
        """How a choice among so many is told."""
        return choice_mechanism(self.chosen_by, num_choices, str(self.choice_epsilon), self._relation)

    @property
    def chosen_by(self) -> ChoiceBy:
        """How a choice is told, as questions say it."""
        return ChoiceBy.VOTES if self.choice_by == "votes" else ChoiceBy.RESPONSE

    def evaluation_cost(self) -> PrivacyCost:
        """What one noised score costs."""
        return BoundedScalar(0, 1, self.evaluation_epsilon, relation=self._relation).cost

    def _update(self, training: Training) -> ClippedUpdate | DpSgd:
        if self.level == "device":
            return ClippedUpdate(
                _ANY_SHAPE, self.clip_norm, self.noise_multiplier, relation=self._relation, grid_bits=self.grid
            )
        return DpSgd(
            _ANY_SHAPE,
            sampling_rate=self.sampling_rate,
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
            steps=training.steps or 0,
            expected_batch_size=self.expected_batch_size,
            learning_rate=training.learning_rate,
            momentum=training.momentum,
            relation=self._relation,
            grid_bits=self.grid,
        )

    @property
    def _relation(self) -> NeighbouringRelation:
        return NeighbouringRelation(self.relation.value)
