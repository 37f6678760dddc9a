"""What a device hands in that could not train: data of the task's public form that say nothing.

At device level an update of zero, at record level a training without records. Both are noised like any other, and
no trainer or model of the app's is needed for them: what they are noised to depends on the shapes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from device_sdk.wire.task_terms import is_record_level, released_shapes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from device_sdk.trainers.protocol import Weights
    from device_sdk.wire.messages import Task
    from privacy.mechanisms.dp_sgd import DenseFactors, DenseTrainingData


def nothing_learned(task: Task, weights: Weights) -> dict[str, NDArray[Any]] | DenseTrainingData:
    """What the mechanism of `task` takes for data where there are none."""
    return _no_records(weights) if is_record_level(task) else _zeros(task)


def _zeros(task: Task) -> dict[str, NDArray[Any]]:
    import numpy as np

    return {name: np.zeros(shape, dtype=np.float32) for name, shape in released_shapes(task).items()}


def _no_records(weights: Weights) -> DenseTrainingData:
    from privacy.mechanisms.dp_sgd import DenseTrainingData

    def factors(_weights: object, _chosen: object) -> list[DenseFactors]:
        return []  # no record can be chosen

    return DenseTrainingData(weights, 0, factors)
