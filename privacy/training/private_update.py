"""Where the parts of DP-SGD are joined: what `privacy.mechanisms.dp_sgd` asks of torch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from privacy.errors import InvalidTerms
from privacy.key_stream import KeyStream
from privacy.training.clipping_choice import ghost_is_faster
from privacy.training.flat_model import FlatModel, trainable
from privacy.training.loop import Work, train
from privacy.training.model_check import check_behaviour, check_layers
from privacy.training.per_record_loss import PerRecordLoss
from privacy.training.per_sample_clipping import Batch, PerSampleClipper
from privacy.training.poisson_batches import PoissonBatches
from privacy.training.records import Records
from privacy.training.row_trial import rows_for_gradients
from privacy.training.step_noise import StepNoise

if TYPE_CHECKING:
    from fractions import Fraction

    import numpy as np
    from numpy.typing import NDArray

    from privacy.mechanisms.dp_sgd import TrainingData
    from privacy.randomness import NoiseSource
    from privacy.tensor_shapes import Shapes
    from privacy.training.step_rule import StepRule


def check_training(data: TrainingData, shapes: Shapes) -> None:
    """Refuse a model that differs from the declared one or cannot be clipped; looks at no record."""
    if not data.inputs.dim() or not data.targets.dim() or len(data.inputs) != len(data.targets):
        raise InvalidTerms("inputs and targets must have one row for each record; nothing was booked")
    if {name: tuple(parameter.shape) for name, parameter in trainable(data.model).items()} != dict(shapes):
        raise InvalidTerms(
            "the model's trainable parameters differ in name or shape from the declared ones; "
            "train the model that was handed out; nothing was booked"
        )
    check_layers(data.model)
    model = FlatModel(data.model)
    with _full_precision(model.weights.device):
        check_behaviour(model.module, PerRecordLoss(data.loss), Batch(data.inputs, data.targets))


def private_update(
    data: TrainingData,
    rule: StepRule,
    noise: NoiseSource,
    *,
    sampling_rate: Fraction,
    clip_norm: float,
    noise_multiplier: Fraction,
) -> NDArray[np.float64]:
    """Train a copy of the model; trained minus initial weights, parameters in the order of their names."""
    form, loss, model = Batch(data.inputs, data.targets), PerRecordLoss(data.loss), FlatModel(data.model)
    records = Records(form, form if data.items is None else data.items, unreadable=data.on_unreadable)
    batches = PoissonBatches(noise, sampling_rate, len(records))
    step_noise = StepNoise(noise, noise_multiplier)
    with _full_precision(model.weights.device):
        wanted = _usual_rows(rule.expected_batch_size, data.micro_batch_size)
        ghost = ghost_is_faster(model, loss, form, wanted) if data.clipping == "fastest" else data.clipping == "ghost"
        rows = rows_for_gradients(model.module, loss, form, wanted, ghost=ghost)
        if model.has_dropout:
            model.drop_out(KeyStream(noise.stream_key()))
        clipper = PerSampleClipper(model.module, loss, clip_norm, ghost=ghost)
        update = train(Work(model, clipper, records, rows, data.on_unreadable), rule, batches, step_noise)
    return update.double().cpu().numpy()


def _usual_rows(expected_batch_size: float, most: int) -> int:
    """So many that most batches, which differ by about the root of their size, need no second pass."""
    return max(1, math.ceil(min(most, expected_batch_size + math.sqrt(expected_batch_size))))


def _full_precision(device: torch.device) -> torch.autocast:
    """Norms of half the precision would not bound anything, whatever the caller's settings."""
    return torch.autocast(device.type, enabled=False)
