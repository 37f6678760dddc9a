"""One loss for each record, from whatever loss function the caller trains with.

A mean over a batch cannot be taken apart again, and a weighted one mixes its records. So a loss is asked
for its values record by record: torch's own are told `reduction="none"`, any other must return one value,
or one row of values, for each record.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from torch import Tensor, nn, where
from torch.nn import functional

from privacy.errors import UnsupportedModel

if TYPE_CHECKING:
    Loss = Callable[[Tensor, Tensor], Tensor]


class PerRecordLoss:
    """Calls a loss and returns one number a record; labels that do not exist count as labels to ignore."""

    def __init__(self, loss: Loss) -> None:
        reduction = getattr(loss, "reduction", "mean")
        self._loss = _unreduced(loss)
        # Within a record, values are averaged or added as the loss would have done over a batch.
        self._averages = reduction in {"mean", "none"}
        self._ignored = _ignored_label(loss)

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self._ignored is not None and not targets.is_floating_point():
            # torch raises for such a label, and on a GPU it aborts: an event that tells of one record.
            known = (targets >= 0) & (targets < outputs.shape[1])
            targets = where(known, targets, self._ignored)
        losses = self._loss(outputs, targets)
        if losses.dim() == 0 or len(losses) != len(outputs):
            raise UnsupportedModel(
                "the loss returns one value for a whole batch, so no record can be clipped by itself; "
                "return one value a record, as torch's losses do with reduction='none'; nothing was booked"
            )
        rows = losses.flatten(1) if losses.dim() > 1 else losses.unsqueeze(1)
        return rows.mean(1) if self._averages else rows.sum(1)


def _ignored_label(loss: Loss) -> int | None:
    """The label that a loss over classes leaves out; None for other losses."""
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return loss.ignore_index
    return -100 if loss in {functional.cross_entropy, functional.nll_loss} else None


def _unreduced(loss: Loss) -> Loss:
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        unreduced = copy.copy(loss)
        setattr(unreduced, "reduction", "none")  # noqa: B010 - a module's attributes are typed as tensors
        return unreduced
    if "reduction" in inspect.signature(loss).parameters:
        return functools.partial(cast("Callable[..., Tensor]", loss), reduction="none")
    return loss
