"""Which way of clipping is faster for a model: timed once for each model and batch size, on made-up records."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from privacy.training.layer_gradients import is_linear
from privacy.training.made_up import made_up_batch
from privacy.training.per_sample_clipping import Batch, PerSampleClipper, trainable_layers

if TYPE_CHECKING:
    from privacy.training.flat_model import FlatModel
    from privacy.training.per_record_loss import PerRecordLoss

_RUNS = 3
_MOST_BYTES_OF_ROWS = 1 << 30  # beyond it, writing every gradient down is not even tried
_chosen: dict[tuple[object, ...], bool] = {}


def ghost_is_faster(model: FlatModel, loss: PerRecordLoss, like: Batch, batch_size: int) -> bool:
    """Whether to clip without writing gradients down; remembered while the process lives."""
    layers = trainable_layers(model.module)
    if not any(is_linear(layer) for layer in layers.values()):
        return False
    if batch_size * model.weights.numel() * model.weights.element_size() > _MOST_BYTES_OF_ROWS:
        return True
    shapes = tuple((name, type(layer), str(layer)) for name, layer in layers.items())
    form = (tuple(like.inputs.shape[1:]), like.inputs.dtype, model.weights.dtype, model.weights.device)
    key = (shapes, form, batch_size, torch.get_num_threads())
    if key not in _chosen:
        batch = made_up_batch(like, batch_size).to(model.weights.device)
        _chosen[key] = _seconds(model, loss, batch, ghost=True) <= _seconds(model, loss, batch, ghost=False)
    return _chosen[key]


def _seconds(model: FlatModel, loss: PerRecordLoss, batch: Batch, *, ghost: bool) -> float:
    """The best of a few runs, after one that warms up."""
    clipper = PerSampleClipper(model.module, loss, 1.0, ghost=ghost)
    best = float("inf")
    for _ in range(1 + _RUNS):
        started = time.perf_counter()
        clipper.clipped(batch).add_to(model.sums)
        model.whole[0].item()  # waits for a GPU to finish
        best = min(best, time.perf_counter() - started)
    model.whole.zero_()
    return best
