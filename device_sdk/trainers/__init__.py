"""What trains on a device: a protocol, a trainer without torch, and one with it. Names are loaded when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from device_sdk.trainers.batch_order import StreamOfWords
    from device_sdk.trainers.errors import (
        EvaluationFailed,
        InvalidSettings,
        ModelMismatch,
        SharingFailed,
        TrainerError,
        TrainingFailed,
        TrainingStopped,
        UnreadableRecords,
    )
    from device_sdk.trainers.numpy_trainer import NumpyTrainer
    from device_sdk.trainers.protocol import (
        Evaluation,
        Evaluator,
        LocalUpdate,
        RecordEvaluator,
        RecordLevelTrainer,
        Trainer,
        TrainingSettings,
    )
    from device_sdk.trainers.torch_trainer import TorchTrainer

_HOMES = {
    "Evaluation": "protocol",
    "EvaluationFailed": "errors",
    "Evaluator": "protocol",
    "InvalidSettings": "errors",
    "LocalUpdate": "protocol",
    "ModelMismatch": "errors",
    "NumpyTrainer": "numpy_trainer",
    "RecordEvaluator": "protocol",
    "RecordLevelTrainer": "protocol",
    "SharingFailed": "errors",
    "StreamOfWords": "batch_order",
    "TorchTrainer": "torch_trainer",
    "Trainer": "protocol",
    "TrainerError": "errors",
    "TrainingFailed": "errors",
    "TrainingSettings": "protocol",
    "TrainingStopped": "errors",
    "UnreadableRecords": "errors",
}

__all__ = [
    "Evaluation",
    "EvaluationFailed",
    "Evaluator",
    "InvalidSettings",
    "LocalUpdate",
    "ModelMismatch",
    "NumpyTrainer",
    "RecordEvaluator",
    "RecordLevelTrainer",
    "SharingFailed",
    "StreamOfWords",
    "TorchTrainer",
    "Trainer",
    "TrainerError",
    "TrainingFailed",
    "TrainingSettings",
    "TrainingStopped",
    "UnreadableRecords",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'device_sdk.trainers' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"device_sdk.trainers.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from privacy.errors import MissingExtra

        raise MissingExtra(
            f"{name} needs torch, which is not installed; run: pip install 'covey[torch]', or use NumpyTrainer"
        ) from error
