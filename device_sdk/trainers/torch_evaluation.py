"""How a torch model does on records: the app's own loss, its mean or for each record, and the share it gets right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from device_sdk.trainers.errors import ModelMismatch
from device_sdk.trainers.protocol import NO_RECORDS, BetweenBatches, Evaluation
from privacy.errors import UnsupportedModel
from privacy.training.fixed_rows import in_rows, without_those_that_raise
from privacy.training.model_check import check_records_apart
from privacy.training.per_record_loss import PerRecordLoss
from privacy.training.per_sample_clipping import Batch
from privacy.training.row_trial import rows_for_losses

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from device_sdk.trainers.torch_records import Records
    from privacy.training.records import Records as RecordRows

_EVALUATED_AT_ONCE = 256
_ROWS_AT_ONCE = 64


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
    model: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor],
    records: RecordRows,
    between_batches: BetweenBatches,
    raised: Callable[[], None],
) -> NDArray[np.float32]:
    """The loss on each record, likewise, computed as if it were alone; `ModelMismatch` where it is not its own.

    A record that cannot be read, or makes the model raise, has an infinite loss: its vote, and no other, is lost.
    """
    each, place = PerRecordLoss(loss), next(model.parameters()).device
    with torch.no_grad(), torch.autocast(place.type, enabled=False):
        rows = _rows_apart(model, each, records.form)
        found = np.full(len(records), np.inf, np.float32)
        for numbers in in_rows(np.arange(len(records)), rows):
            between_batches()
            batch, present = records.rows(numbers)

            def losses(places: Sequence[int], batch: Batch = batch) -> Tensor:
                there = torch.zeros(rows, dtype=torch.bool)
                there[list(places)] = True
                some = records.hidden(batch, there).to(place)
                return each(model(some.inputs), some.targets).float().cpu()

            for places, values in without_those_that_raise(losses, present.nonzero().flatten().tolist()):
                if values is None:
                    raised()
                else:
                    found[numbers[list(places)]] = values[list(places)].numpy()
    return found


def _rows_apart(model: nn.Module, loss: PerRecordLoss, form: Batch) -> int:
    """How many rows to compute at once; `ModelMismatch` where a record's loss depends on others."""
    try:
        check_records_apart(model, loss, form)
        return rows_for_losses(model, loss, form, _ROWS_AT_ONCE)
    except UnsupportedModel as error:
        raise ModelMismatch(str(error)) from error


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
