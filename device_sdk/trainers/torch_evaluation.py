"""How a torch model does on records: the mean of the app's own loss, and the share it gets right."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from device_sdk.trainers.protocol import NO_RECORDS, BetweenBatches, Evaluation

if TYPE_CHECKING:
    from device_sdk.trainers.torch_records import Records

_EVALUATED_AT_ONCE = 256


def evaluated(
    model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], records: Records, between_batches: BetweenBatches
) -> Evaluation:
    """Evaluate `model` where it is, without gradients and at full precision, whatever the app's settings are."""
    if not len(records):
        return NO_RECORDS
    place = next(model.parameters()).device
    total = right = 0.0
    with torch.no_grad(), torch.autocast(place.type, enabled=False):
        for start in range(0, len(records), _EVALUATED_AT_ONCE):
            between_batches()
            some = np.arange(start, min(start + _EVALUATED_AT_ONCE, len(records)))
            inputs, targets = (part.to(place) for part in records.batch(some))
            outputs = model(inputs)
            total += float(loss(outputs, targets).mean()) * len(some)
            right += _right(outputs, targets)
    return Evaluation(total / len(records), right / len(records))


def _right(outputs: Tensor, targets: Tensor) -> float:
    """How many records are right: of one that has several targets, their share; 0 where targets are no classes."""
    if targets.is_floating_point() or outputs.dim() != targets.dim() + 1:
        return 0.0
    return float((outputs.argmax(dim=1) == targets).reshape(len(targets), -1).double().mean(dim=1).sum())
