"""A task as the app holds it: weights and settings in, an update out, or a polite no.

    for task in device.tasks():
        update = my_training(task.weights, task.settings)
        task.submit(update)

What is handed in is clipped, noised, booked, signed and sent. A record that makes the app's own code raise must not
be noticed from outside, where a missing answer would tell of it: such a device answers with zero, noised like any
other, and the app is told afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from device_sdk.trainers.errors import InvalidSettings, ModelMismatch, TrainerError, TrainingFailed
from device_sdk.trainers.protocol import BetweenBatches, LocalUpdate, RecordLevelTrainer, TrainingSettings
from device_sdk.wire.task_terms import HALVES, is_record_level, released_shapes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from device_sdk.policy import Reason
    from device_sdk.trainers.protocol import Mask, Trainer, Weights
    from device_sdk.wire.messages import LocalObjective, Task
    from privacy.tensor_shapes import Shapes


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
    ) -> None:
        self._task = task
        self.weights = weights
        """The model to start from; read-only."""
        self.settings = settings
        self.between_batches = between_batches
        """To be called before every batch of a training loop: waits, or raises `TrainingStopped`."""
        self._hand_in, self._give_back = hand_in, give_back
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
        """Clip, noise, book, sign and send; after a lost connection it is sent later, the same bytes."""
        self._check_open()
        local = update if isinstance(update, LocalUpdate) else LocalUpdate(update)
        if self.settings.halves and local.halves is None:
            raise InvalidSettings(
                "this task asks for what even and odd batches contributed; submit a LocalUpdate with halves; "
                "nothing was booked"
            )
        self._finish(released_tensors(local) if self.settings.halves else local.update)

    def decline(self, reason: Reason | None = None) -> None:
        """Do not do this task; what it may have spent stays spent. The reason stays on the device."""
        self._check_open()
        self.is_over = True
        self._give_back(reason)

    def train(self, trainer: Trainer) -> None:
        """Let a trainer do it. `TrainingFailed` comes when the answer, a noised zero, has been handed in."""
        self._check_open()
        if is_record_level(self._task):
            self._finish(self._records_of(trainer))
            return
        try:
            update = trainer.train(self.weights, self.settings, self.between_batches)
        except (ModelMismatch, InvalidSettings):
            raise  # follows from the task alone
        except Exception as error:
            self._finish(_nothing_learned(released_shapes(self._task)))
            raise _told(error) from error
        self.submit(update)

    def _records_of(self, trainer: Trainer) -> object:
        if not isinstance(trainer, RecordLevelTrainer):
            raise ModelMismatch("this task asks for record-level training, which this trainer does not do")
        try:
            return trainer.training_data(self.weights, self.between_batches)
        except TrainerError:
            raise
        except Exception as error:
            raise TrainingFailed(
                f"the app's records could not be read ({type(error).__name__}); mend the dataset; nothing was booked"
            ) from error

    def _finish(self, data: object) -> None:
        self._hand_in(data)
        self.is_over = True

    def _check_open(self) -> None:
        if self.is_over:
            raise TrainerError("this task is over; wait for the next; nothing was booked")


def _told(error: Exception) -> TrainingFailed:
    return TrainingFailed(
        f"training raised {type(error).__name__}; the server was answered with a noised update of zero, so that it "
        "cannot tell; mend the trainer before the next round, for every answer is paid for"
    )


def _nothing_learned(shapes: Shapes) -> dict[str, NDArray[Any]]:
    """The update of a device that could not train: zero, and noised like any other."""
    import numpy as np

    return {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()}
