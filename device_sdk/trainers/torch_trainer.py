"""Training with torch: any model whose parameters the task names, on a CPU or a GPU.

    device.run(TorchTrainer(model, nn.CrossEntropyLoss(), dataset))

The app's model is a pattern and stays as it is: a copy trains. The task's weights replace the trainable parameters
of the copy; frozen parameters and buffers are the app's own, start every batch as they are now, and never leave.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from device_sdk.trainers.batch_order import StreamOfWords, Words, steps
from device_sdk.trainers.descent import Descent
from device_sdk.trainers.errors import InvalidSettings, ModelMismatch, TrainingFailed
from device_sdk.trainers.named_tensors import flat_mask, flat_weights
from device_sdk.trainers.protocol import BetweenBatches, Evaluation, LocalUpdate, TrainingSettings, go_on
from device_sdk.trainers.torch_evaluation import evaluated, record_losses
from device_sdk.trainers.torch_generators import GeneratorsAside
from device_sdk.trainers.torch_records import form_of_example, form_of_model, records_of
from privacy.key_stream import KeyStream
from privacy.mechanisms.dp_sgd import TrainingData
from privacy.tensor_shapes import Shapes, in_order, unflattened
from privacy.training.flat_model import FlatModel, trainable
from privacy.training.per_sample_clipping import Batch
from privacy.training.records import Records as RecordRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch.utils.data import Dataset

    from device_sdk.trainers.protocol import Weights

Loss = Callable[[Tensor, Tensor], Tensor]


class TorchTrainer:
    """Trains a copy of `model` on `dataset`, with `loss(outputs, targets)`.

    `dataset` is a pair of tensors or arrays, or a map-style dataset of (input, target). `device` is where to
    compute, by default where the model is. `micro_batch_size` bounds the memory of record-level training.
    The order of the records is secret, unless `order` is a stream with a seed.

    Record-level training and votes need the form of a record before they read one. A dataset that is read item by item
    declares it by `example`, an (input, target) with any values. An item of another form, or one that raises, counts as
    nothing there.
    """

    unreadable_records: bool
    """Whether a record could not be read, or made the model raise, so far: for the app, which may want to mend it."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        dataset: Dataset[Any] | Sequence[Any],
        *,
        example: Sequence[Any] | None = None,
        device: torch.device | str | None = None,
        micro_batch_size: int = 64,
        order: Words | None = None,
    ) -> None:
        self._model, self._loss = model, loss
        self._records = records_of(dataset, form_of_model(model, loss) if example is None else form_of_example(example))
        self.unreadable_records = False
        self._device = None if device is None else torch.device(device)
        self._micro_batch_size = micro_batch_size
        self._order = StreamOfWords() if order is None else order
        self._generators = GeneratorsAside()

    def train(
        self, weights: Weights, settings: TrainingSettings, between_batches: BetweenBatches = go_on
    ) -> LocalUpdate:
        """Train from `weights`, which are left alone, as is the app's model."""
        with torch.inference_mode(False):  # within which copies of a model cannot be trained
            return self._train(weights, settings, between_batches)

    def _train(self, weights: Weights, settings: TrainingSettings, between_batches: BetweenBatches) -> LocalUpdate:
        shapes = self._shapes(weights)
        model = FlatModel(self._model if self._device is None else _copy_of(self._model).to(self._device))
        place = model.weights.device
        model.drop_out(KeyStream(secrets.token_bytes(32)))
        model.weights.copy_(torch.from_numpy(flat_weights(weights, shapes)))
        mask = None if settings.mask is None else torch.from_numpy(flat_mask(settings.mask, shapes)).to(place)
        descent = Descent(settings, model.weights, model.weights.clone(), mask)
        with self._generators.while_training_on(place):
            for step in steps(len(self._records), settings, self._order):
                between_batches()
                descent.step(self._gradient(model, step.records), first_half=step.first_half)
        halves = descent.halves
        return LocalUpdate(
            _named(descent.update, shapes),
            None if halves is None else (_named(halves[0], shapes), _named(halves[1], shapes)),
        )

    def training_data(self, weights: Weights, between_batches: BetweenBatches = go_on) -> TrainingData:
        """The model at `weights` and all records, for record-level DP-SGD; nothing is trained yet."""
        model = self._at(weights)

        def pause(_model: nn.Module, _inputs: object) -> None:
            between_batches()

        # The loop of DP-SGD knows nothing of conditions, but it has the model compute once for every batch.
        model.register_forward_pre_hook(pause)
        form, items = self._form(), self._records.items()
        in_memory = items if isinstance(items, Batch) else form
        return TrainingData(
            model,
            self._loss,
            in_memory.inputs,
            in_memory.targets,
            micro_batch_size=self._micro_batch_size,
            items=None if isinstance(items, Batch) else items,
            on_unreadable=self._note_unreadable,
        )

    def evaluate(self, weights: Weights, between_batches: BetweenBatches = go_on) -> Evaluation:
        """How the model at `weights`, in evaluation mode, does on all records; right is the class of most weight."""
        model = self._at(weights)
        with self._generators.while_training_on(next(model.parameters()).device):
            return evaluated(model.eval(), self._loss, self._records, between_batches)

    def record_losses(self, weights: Weights, between_batches: BetweenBatches = go_on) -> NDArray[np.float32]:
        """The loss of the model at `weights`, in evaluation mode, on each record; it must not mix records."""
        model = self._at(weights)
        with self._generators.while_training_on(next(model.parameters()).device):
            records = RecordRows(self._form(), self._records.items(), unreadable=self._note_unreadable)
            return record_losses(model.eval(), self._loss, records, between_batches, self._note_unreadable)

    def check_model(self, shapes: Shapes) -> None:
        """Refuse tensors that are not the trainable parameters of the app's model."""
        shapes = in_order(shapes)
        parameters = trainable(self._model)
        if not shapes or {name: tuple(parameter.shape) for name, parameter in parameters.items()} != shapes:
            raise ModelMismatch(
                "the task's tensors differ in name or shape from the trainable parameters of this app's model; "
                "update the app, or freeze what is not trained with requires_grad_(False); nothing was trained"
            )
        kinds = {(parameter.dtype, parameter.device) for parameter in parameters.values()}
        if len(kinds) > 1 or not {dtype for dtype, _ in kinds} <= {torch.float32, torch.float64}:
            raise ModelMismatch(
                "the model's trainable parameters must all be float32 or all float64, and on one device; "
                "convert it with model.float().to(device); nothing was trained"
            )

    def _form(self) -> Batch:
        form = self._records.form()
        if form is None:
            raise InvalidSettings(
                "the form of a record has to be known before one is read; declare it with an (input, target) of any "
                "values, TorchTrainer(example=...); nothing was booked"
            )
        return form

    def _note_unreadable(self) -> None:
        self.unreadable_records = True

    def _at(self, weights: Weights) -> nn.Module:
        """A copy of the app's model at `weights`, where it is to compute."""
        shapes = self._shapes(weights)
        model = _copy_of(self._model)
        given = unflattened(flat_weights(weights, shapes), shapes)
        with torch.no_grad():
            for name, parameter in trainable(model).items():
                parameter.copy_(torch.from_numpy(given[name]))
        return model if self._device is None else model.to(self._device)

    def _shapes(self, weights: Weights) -> Shapes:
        shapes = in_order({name: tensor.shape for name, tensor in weights.items()})
        self.check_model(shapes)
        return shapes

    def _gradient(self, model: FlatModel, chosen: NDArray[np.int64]) -> Tensor:
        """The gradient of the loss over the chosen records, as one vector; buffers are left as they were."""
        place = model.weights.device
        buffers = [(buffer, buffer.clone()) for buffer in model.module.buffers()]
        try:
            inputs, targets = self._records.batch(chosen)
            # Whatever the app's settings are where this runs: gradients, and at full precision.
            with torch.enable_grad(), torch.autocast(place.type, enabled=False):
                loss = self._loss(model.module(inputs.to(place)), targets.to(place)).mean()
                found = torch.autograd.grad(loss, list(model.parameters.values()), materialize_grads=True)
        except Exception as error:
            raise TrainingFailed(
                f"the app's model, loss or dataset raised {type(error).__name__} on a batch; try them on a batch of "
                "the device's records; nothing was released"
            ) from error
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
            return torch.cat([part.reshape(-1) for part in found])


def _copy_of(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ModelMismatch(
            "the app's model cannot be copied, and the app's own is never trained; remove what rewrites its "
            "parameters, such as weight_norm; nothing was trained"
        ) from error


def _named(vector: Tensor, shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    values: NDArray[np.float32] = vector.to("cpu", torch.float32).numpy()
    return unflattened(values, shapes)
