"""How a torch model does on records: the app's own loss, its mean or for each record, and the share it gets right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from device_sdk.trainers.errors import ModelMismatch
from device_sdk.trainers.protocol import NO_RECORDS, BetweenBatches, Evaluation
from privacy.errors import UnsupportedModel
from privacy.training.model_check import check_records_apart
from privacy.training.per_record_loss import PerRecordLoss
from privacy.training.per_sample_clipping import Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from device_sdk.trainers.torch_records import Records

_EVALUATED_AT_ONCE = 256


def evaluated(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], records: Records, between_batches: BetweenBatches
) -> Evaluation:
    """Evaluate `model` where it is, without gradients and at full precision, whatever the app's settings are."""
    if not len(records):
        return NO_RECORDS
    total = right = 0.0
    for outputs, targets in _outputs(model, records, between_batches):
        total += float(loss(outputs, targets).mean()) * len(targets)
        right += _right(outputs, targets)
    return Evaluation(total / len(records), right / len(records))


def record_losses(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], records: Records, between_batches: BetweenBatches
) -> NDArray[np.float32]:
    """The loss on each record, likewise; `ModelMismatch` where a record's loss is not its own."""
    each = PerRecordLoss(loss)
    try:
        if len(records):
            check_records_apart(model, each, Batch(*records.batch(np.arange(1))))
        found = [each(outputs, targets).float().cpu() for outputs, targets in _outputs(model, records, between_batches)]
    except UnsupportedModel as error:
        raise ModelMismatch(str(error)) from error
    losses: NDArray[np.float32] = torch.cat([torch.empty(0), *found]).numpy()
    return losses


def _outputs(model: nn.Module, records: Records, between_batches: BetweenBatches) -> Iterator[tuple[Tensor, Tensor]]:
    """Of some records at a time what the model makes of them, and their targets."""
    place = next(model.parameters()).device
    with torch.no_grad(), torch.autocast(place.type, enabled=False):
        for start in range(0, len(records), _EVALUATED_AT_ONCE):
            between_batches()
            some = np.arange(start, min(start + _EVALUATED_AT_ONCE, len(records)))
            inputs, targets = (part.to(place) for part in records.batch(some))
            yield model(inputs), targets


def _right(outputs: Tensor, targets: Tensor) -> float:
    """How many records are right: of one that has several targets, their share; 0 where targets are no classes."""
    if targets.is_floating_point() or outputs.dim() != targets.dim() + 1:
        return 0.0
    return float((outputs.argmax(dim=1) == targets).reshape(len(targets), -1).double().mean(dim=1).sum())
