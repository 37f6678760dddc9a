"""How a device trains: named arrays in, named arrays out, and a word in between batches.

A trainer holds the device's records and its own way of computing. What it returns is private: the runtime
clips, noises and books it as a whole (device level). A trainer that can also train in noised steps (record
level) is a `RecordLevelTrainer` and hands its records to `privacy.mechanisms.dp_sgd`, which books the steps
before it reads a single record. One that can tell how well a model does is an `Evaluator`, and for each record a
`RecordEvaluator`; that is private too.

The settings mean exactly what they mean in simulation (`server_kit.local_task`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from device_sdk.trainers.errors import InvalidSettings
from privacy.budget import PrivacyUnit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from privacy.mechanisms.dp_sgd import DenseTrainingData, TrainingData
    from privacy.tensor_shapes import Shapes

    Weights = Mapping[str, NDArray[np.floating[Any]]]
    Mask = Mapping[str, NDArray[np.bool_]]

BetweenBatches = Callable[[], None]
"""Called before every batch: returns when training may go on, which may take a while; raises `TrainingStopped`."""


Evaluate = Callable[["Weights", BetweenBatches], "Evaluation"]
"""`Evaluator.evaluate`, or a function of the app's own."""
RecordLosses = Callable[["Weights", BetweenBatches], "NDArray[np.floating[Any]]"]
"""`RecordEvaluator.record_losses`, or a function of the app's own."""


def go_on() -> None:
    """Neither pause nor stop."""


@dataclass(frozen=True, eq=False)
class TrainingSettings:
    """The local objective: SGD on the device's own records.

    An epoch shuffles the records and cuts them into batches, the last one maybe shorter. A step follows the
    mean gradient of its batch, plus `proximal`·(w − start) (FedProx), through `momentum`.
    """

    learning_rate: float
    batch_size: int = 10
    epochs: int = 1
    steps: int | None = None
    """Instead of whole epochs: stop after this many steps, starting another epoch when one is used up."""
    momentum: float = 0.0
    proximal: float = 0.0
    mask: Mask | None = None
    """True where a coordinate trains (CASA+); the others keep their value. Named and shaped as the weights."""
    halves: bool = False
    """Also tell what even and odd batches contributed; no record is ever in both."""

    def __post_init__(self) -> None:
        _require(math.isfinite(self.learning_rate), "learning_rate must be a finite number")
        _require(_whole(self.batch_size, 1) and _whole(self.epochs, 1), "batch_size and epochs are whole and above 0")
        _require(self.steps is None or _whole(self.steps, 0), "steps are whole and not negative")
        _require(0 <= self.momentum < 1, "momentum must be at least 0 and below 1")
        _require(0 <= self.proximal < math.inf, "proximal must be finite and at least 0")

    def steps_for(self, num_records: int) -> int:
        """How many steps a device with so many records takes."""
        if num_records == 0:
            return 0
        return self.epochs * math.ceil(num_records / self.batch_size) if self.steps is None else self.steps


@dataclass(frozen=True, eq=False)
class LocalUpdate:
    """Trained minus given weights. Private as it stands."""

    update: Weights
    halves: tuple[Weights, Weights] | None = None
    """If asked for: what the batches of either half contributed; they add up to `update`."""


@dataclass(frozen=True)
class Evaluation:
    """How a model does on the device's records. Private as it stands."""

    loss: float
    """The mean over the records; infinite where there are none."""
    correct_share: float
    """How many of the records the model gets right, from 0 to 1; 0 where there are none, or nothing to get right."""


NO_RECORDS = Evaluation(math.inf, 0.0)


class Trainer(Protocol):
    """Trains a model that the server handed out, on records that only the trainer sees."""

    def train(self, weights: Weights, settings: TrainingSettings, between_batches: BetweenBatches) -> LocalUpdate:
        """Train from `weights`, which are left alone; the update has their names and shapes."""


@runtime_checkable
class RecordLevelTrainer(Protocol):
    """Can train in steps that are noised one by one."""

    def training_data(self, weights: Weights, between_batches: BetweenBatches) -> TrainingData | DenseTrainingData:
        """The model at `weights` and the device's records, for `privacy.mechanisms.dp_sgd.DpSgd`.

        Nothing is trained here, and no record is read: what is wrong with one must not show before it is paid for.
        `TrainingStopped` comes out of the mechanism's answer; what was booked stays booked.
        """


@runtime_checkable
class Evaluator(Protocol):
    """Can also say how well a model does, so that a device can answer questions about models."""

    def evaluate(self, weights: Weights, between_batches: BetweenBatches) -> Evaluation:
        """Evaluate the model at `weights`, which are left alone, on all records; nothing is trained."""


@runtime_checkable
class RecordEvaluator(Protocol):
    """Can also say how a model does on each record, so that records can vote for models."""

    def record_losses(self, weights: Weights, between_batches: BetweenBatches) -> NDArray[np.floating[Any]]:
        """The loss of the model at `weights` on each record, in the same order for every model; nothing is trained.

        A record's loss must depend on no other record, not even in its last bits and not on how many there are, or its
        vote would not be its own: then the privacy of a choice by votes would not hold. A record that cannot be read or
        computed has an infinite loss; raising because of it would drop the votes of all.
        """


@runtime_checkable
class ModelChecker(Protocol):
    """A trainer that can tell beforehand which models it trains, so that no other is even downloaded."""

    def check_model(self, shapes: Shapes) -> None:
        """Raise `ModelMismatch` for a model of tensors that this trainer cannot train."""


@runtime_checkable
class RecordReader(Protocol):
    """A trainer that goes on without records that it cannot read, and says that there are some."""

    unreadable_records: bool


def units_of(trainer: object) -> frozenset[PrivacyUnit]:
    """Whom the updates of a trainer can protect: every update the whole device, some each of its records."""
    if isinstance(trainer, RecordLevelTrainer):
        return frozenset({PrivacyUnit.DEVICE, PrivacyUnit.RECORD})
    return frozenset({PrivacyUnit.DEVICE})


def _whole(number: object, least: int) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= least


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise InvalidSettings(f"{what}; nothing was trained")
