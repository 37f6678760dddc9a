"""A task as the app holds it: weights and settings in, an update out, or a polite no.

    for task in device.tasks():
        update = my_training(task.weights, task.settings)
        task.submit(update)

What is handed in is clipped, noised, booked, signed and sent. A record that makes the app's own code raise must not
be noticed from outside, where a missing answer would tell of it: such a device answers as if it had nothing to learn,
noised like any other, and the app is told in another way (`device_sdk.failures`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from device_sdk.failures import in_training, is_failure
from device_sdk.trainers.errors import InvalidSettings, ModelMismatch, TrainerError
from device_sdk.trainers.nothing_learned import nothing_learned
from device_sdk.trainers.protocol import BetweenBatches, LocalUpdate, RecordLevelTrainer, TrainingSettings
from device_sdk.wire.task_terms import HALVES, is_record_level, mechanism_of
from privacy.errors import MissingExtra, UnsupportedModel

if TYPE_CHECKING:
    from device_sdk.policy import Reason
    from device_sdk.trainers.errors import TrainingFailed
    from device_sdk.trainers.protocol import Mask, Trainer, Weights
    from device_sdk.wire.messages import LocalObjective, Task


def settings_of(objective: LocalObjective, mask: Mask | None = None) -> TrainingSettings:
    """The local objective as trainers take it."""
    return TrainingSettings(
        learning_rate=objective.learning_rate,
        batch_size=objective.batch_size,
        epochs=objective.epochs or 1,
        steps=objective.steps,
        momentum=objective.momentum,
        proximal=objective.proximal,
        mask=mask,
        halves=objective.halves,
    )


def released_tensors(update: LocalUpdate) -> Weights:
    """What is released of an update: itself, or its halves by name."""
    if update.halves is None:
        return update.update
    pairs = zip(HALVES, update.halves, strict=True)
    return {f"{half}{name}": part for half, own in pairs for name, part in own.items()}


class TaskInHand:
    """One task, from its acceptance to its end."""

    def __init__(
        self,
        task: Task,
        weights: Weights,
        settings: TrainingSettings,
        *,
        between_batches: BetweenBatches,
        hand_in: Callable[[Any], None],
        give_back: Callable[[Reason | None], None],
        failed: Callable[[TrainingFailed], None],
        is_stopped: Callable[[], bool] = lambda: True,
    ) -> None:
        self._task = task
        self.weights = weights
        """The model to start from; read-only."""
        self.settings = settings
        self.between_batches = between_batches
        """To be called before every batch of a training loop: waits, or raises `TrainingStopped`."""
        self._hand_in, self._give_back = hand_in, give_back
        self._failed, self._is_stopped = failed, is_stopped
        self.is_over = False

    @property
    def name(self) -> str:
        return self._task.task

    @property
    def cohort(self) -> str:
        return self._task.cohort

    @property
    def round(self) -> int:
        return self._task.round

    def submit(self, update: Weights | LocalUpdate) -> None:
        """Clip, noise, book, sign and send; after a lost connection it is sent later, the same bytes.

        It comes back when the update has left, which happens on a schedule (`device_sdk.answer_schedule`).
        """
        self._check_open()
        tensors: Any = self._released(update)
        mechanism_of(self._task).check(tensors)  # a form that is not the model's is a mistake in the app's code
        self._finish(tensors)

    def decline(self, reason: Reason | None = None) -> None:
        """Do not do this task; what it may have spent stays spent. The reason stays on the device."""
        self._check_open()
        self.is_over = True
        self._give_back(reason)

    def train(self, trainer: Trainer) -> None:
        """Let a trainer do it. What it raises, unless it follows from the task alone, goes to the app's failures."""
        self._check_open()
        try:
            learned = self._records_of(trainer) if is_record_level(self._task) else self._update_of(trainer)
        except (ModelMismatch, InvalidSettings, UnsupportedModel, MissingExtra):
            raise  # follows from the task alone
        except BaseException as error:
            if not is_failure(error, is_stopped=self._is_stopped()):
                raise
            self.give_nothing(error)
            return
        self._finish(learned)

    def give_nothing(self, error: BaseException) -> None:
        """Answer as a device that has nothing to learn, and tell the app why."""
        self._failed(in_training(error))
        self._finish(nothing_learned(self._task, self.weights))

    def _update_of(self, trainer: Trainer) -> Weights:
        return self._released(trainer.train(self.weights, self.settings, self.between_batches))

    def _released(self, update: Weights | LocalUpdate) -> Weights:
        local = update if isinstance(update, LocalUpdate) else LocalUpdate(update)
        if self.settings.halves and local.halves is None:
            raise InvalidSettings(
                "this task asks for what even and odd batches contributed; submit a LocalUpdate with halves; "
                "nothing was booked"
            )
        return released_tensors(local) if self.settings.halves else local.update

    def _records_of(self, trainer: Trainer) -> object:
        if not isinstance(trainer, RecordLevelTrainer):
            raise ModelMismatch("this task asks for record-level training, which this trainer does not do")
        return trainer.training_data(self.weights, self.between_batches)

    def _finish(self, data: object) -> None:
        self._hand_in(data)
        self.is_over = True

    def _check_open(self) -> None:
        if self.is_over:
            raise TrainerError("this task is over; wait for the next; nothing was booked")
