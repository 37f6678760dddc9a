"""Training without torch: softmax regression and small ReLU networks in plain NumPy.

device.run(NumpyTrainer(inputs, labels))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from device_sdk.trainers.batch_order import StreamOfWords, Words, steps
from device_sdk.trainers.dense_network import DenseNetwork
from device_sdk.trainers.dense_rows import RowsApart
from device_sdk.trainers.descent import Descent
from device_sdk.trainers.errors import InvalidSettings, ModelMismatch
from device_sdk.trainers.named_tensors import flat_mask, flat_weights
from device_sdk.trainers.protocol import (
    NO_RECORDS,
    BetweenBatches,
    Evaluation,
    LocalUpdate,
    TrainingSettings,
    go_on,
)
from privacy.mechanisms.dp_sgd import DenseTrainingData
from privacy.tensor_shapes import in_order, unflattened

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from device_sdk.trainers.protocol import Weights
    from privacy.mechanisms.dp_sgd import DenseFactors
    from privacy.tensor_shapes import Shapes

_EVALUATED_AT_ONCE = 1024


class NumpyTrainer:
    """Trains dense layers with ReLU between them on cross-entropy; the layers follow from the task's tensors.

    `inputs` [records, ...] are taken as rows of float32, `labels` [records] are whole numbers; a label that the
    model does not know teaches nothing. `num_features` is how many numbers a record has, by default as many as
    `inputs` say, which an array without a record does too. `layers` names the layers in order where their names do
    not tell. The order of the records is secret, unless `order` is a stream with a seed.

    At record level and for votes, every record is computed as if it were alone (`dense_rows`).
    """

    unreadable_records = False
    """Numbers in memory can always be read; see `TorchTrainer`."""

    def __init__(
        self,
        inputs: ArrayLike,
        labels: ArrayLike,
        *,
        num_features: int | None = None,
        layers: Sequence[str] | None = None,
        order: Words | None = None,
    ) -> None:
        self._inputs = _rows(inputs, num_features)
        self._labels = _whole_numbers(labels)
        if len(self._inputs) != len(self._labels):
            raise InvalidSettings("inputs and labels must have one row for each record; nothing was kept")
        self._layers = layers
        self._order = StreamOfWords() if order is None else order

    def train(
        self, weights: Weights, settings: TrainingSettings, between_batches: BetweenBatches = go_on
    ) -> LocalUpdate:
        """Train from `weights`, which are left alone."""
        shapes = in_order({name: tensor.shape for name, tensor in weights.items()})
        network = self._network(shapes)
        moving = flat_weights(weights, shapes)
        tensors = unflattened(moving, shapes)
        gradient = np.empty_like(moving)
        gradients = unflattened(gradient, shapes)
        mask = None if settings.mask is None else flat_mask(settings.mask, shapes)
        descent = Descent(settings, moving, moving.copy(), mask)
        with np.errstate(all="ignore"):  # as in the network
            for step in steps(len(self._labels), settings, self._order):
                between_batches()
                inputs = self._inputs[step.records].astype(np.float32, copy=False)
                network.gradient(tensors, inputs, self._labels[step.records], gradients)
                descent.step(gradient, first_half=step.first_half)
            update, halves = descent.update, descent.halves
        return LocalUpdate(
            unflattened(update, shapes),
            None if halves is None else (unflattened(halves[0], shapes), unflattened(halves[1], shapes)),
        )

    def training_data(self, weights: Weights, between_batches: BetweenBatches = go_on) -> DenseTrainingData:
        """The layers at `weights` and all records, for record-level DP-SGD; nothing is trained yet."""
        shapes = in_order({name: tensor.shape for name, tensor in weights.items()})
        apart = RowsApart.of(self._network(shapes), shapes)

        def factors(tensors: Weights, chosen: NDArray[np.int64]) -> list[DenseFactors]:
            between_batches()
            inputs = self._inputs[chosen].astype(np.float32, copy=False)
            return apart.factors(tensors, inputs, self._labels[chosen])

        return DenseTrainingData(weights, len(self._labels), factors)

    def evaluate(self, weights: Weights, between_batches: BetweenBatches = go_on) -> Evaluation:
        """How the model at `weights` does on all records."""
        loss, right = 0.0, 0
        for losses, are_right in self._evaluated(weights, between_batches):
            loss, right = loss + float(losses.sum(dtype=np.float64)), right + int(are_right.sum())
        records = len(self._labels)
        return Evaluation(loss / records, right / records) if records else NO_RECORDS

    def record_losses(self, weights: Weights, between_batches: BetweenBatches = go_on) -> NDArray[np.float32]:
        """The cross-entropy of the model at `weights` on each record."""
        found = [losses for losses, _ in self._evaluated(weights, between_batches)]
        return np.concatenate([np.empty(0, np.float32), *found])

    def check_model(self, shapes: Shapes) -> None:
        """Refuse a model that is no stack of dense layers for these records."""
        self._network(in_order(shapes))

    def _evaluated(
        self, weights: Weights, between_batches: BetweenBatches
    ) -> Iterator[tuple[NDArray[np.float32], NDArray[np.bool_]]]:
        """Of some records at a time the losses, and whether they are right."""
        shapes = in_order({name: tensor.shape for name, tensor in weights.items()})
        apart = RowsApart.of(self._network(shapes), shapes)
        tensors = unflattened(flat_weights(weights, shapes), shapes)
        for start in range(0, len(self._labels), _EVALUATED_AT_ONCE):
            between_batches()
            some = slice(start, start + _EVALUATED_AT_ONCE)
            inputs = self._inputs[some].astype(np.float32, copy=False)
            yield apart.evaluation(tensors, inputs, self._labels[some])

    def _network(self, shapes: Shapes) -> DenseNetwork:
        network = DenseNetwork.of(shapes, self._layers)
        # Also without a record: whether there is one must not decide which models are taken.
        if self._inputs.shape[1] != network.num_features:
            raise ModelMismatch(
                f"the task's model takes {network.num_features} numbers a record, this device's records have "
                f"{self._inputs.shape[1]}; nothing was trained"
            )
        return network


def _rows(inputs: ArrayLike, num_features: int | None) -> NDArray[Any]:
    found: NDArray[Any] = np.asarray(inputs)
    if found.ndim < 1 or (found.size and found.dtype.kind not in "fiub"):
        raise InvalidSettings("inputs must be real numbers with one row for each record; nothing was kept")
    if num_features is None and found.shape == (0,):
        raise InvalidSettings(
            "an empty list does not tell how many numbers a record has; give an array of shape (0, numbers) or "
            "NumpyTrainer(num_features=...); nothing was kept"
        )
    width = math.prod(found.shape[1:]) if num_features is None or found.shape != (0,) else num_features
    if num_features not in {None, width}:
        raise InvalidSettings(f"records have {width} numbers, not num_features={num_features}; nothing was kept")
    return found.reshape(len(found), width)


def _whole_numbers(labels: ArrayLike) -> NDArray[np.int64]:
    found: NDArray[Any] = np.asarray(labels)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iub"):
        raise InvalidSettings("labels must be whole numbers, one for each record; nothing was kept")
    return found.astype(np.int64)
