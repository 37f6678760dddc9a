"""Why a device could not train; each message says what to change, and that nothing left the device.

TrainerError
├── ModelMismatch       the task's model is not the one this trainer has
├── InvalidSettings     settings that cannot be followed
├── TrainingFailed      the app's model, loss or data raised; the cause is attached and stays on the device
├── EvaluationFailed    the same while a question about a model was answered
├── SharingFailed       the same while records were counted for a summary
└── UnreadableRecords   some records could not be read, or made the model raise, and counted as nothing
TrainingStopped         the app, a deadline or a condition said stop; no error, hence no `Exception`
"""

from __future__ import annotations


class TrainerError(Exception):
    """Base of what trainers raise."""


class ModelMismatch(TrainerError):
    """Tensors of other names, shapes or kinds than the trainer can treat; nothing was trained."""


class InvalidSettings(TrainerError, ValueError):
    """Settings that make no sense, or that this trainer cannot follow; nothing was trained."""


class TrainingFailed(TrainerError):
    """The model, the loss or the data raised while training; what was trained so far is dropped."""


class EvaluationFailed(TrainerError):
    """The app's evaluation raised; the server was answered as if the model were useless, noised like any answer."""


class SharingFailed(TrainerError):
    """The data of a summary could not be counted; the server was sent one of no records, noised like any other."""


class UnreadableRecords(TrainerError):
    """Some records could not be read, or made the model raise; they counted as nothing, and the others as ever."""


class TrainingStopped(BaseException):
    """Training was told to stop; what was trained so far is dropped.

    Like a cancelled coroutine it passes every `except Exception`, of which models and training loops have many.
    """
