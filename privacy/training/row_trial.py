"""How many rows a torch model computes at once, tried out on made-up records and made-up weights.

Not on the task's weights: those of a server may be zero, and then every order of adding up finds the same.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from privacy.training.fixed_rows import rows_at_once
from privacy.training.flat_model import trainable
from privacy.training.layer_gradients import MaterialisedGradient
from privacy.training.made_up import made_up_batch, spread
from privacy.training.per_record_loss import PerRecordLoss
from privacy.training.per_sample_clipping import Batch, PerSampleClipper

_TRIALS = 3
_MOST_BYTES_OF_ROWS = 1 << 29
_known: dict[tuple[object, ...], int] = {}


def rows_for_gradients(module: nn.Module, loss: PerRecordLoss, form: Batch, wanted: int, *, ghost: bool) -> int:
    """So many rows that no record's gradient depends on its row, and that those written down fit into memory."""
    key = (*_kind(module, form), wanted, ghost)
    if key not in _known:
        most = min(wanted, _fitting(PerSampleClipper(module, loss, 1.0, ghost=ghost), form, _place(module)))
        clipper = PerSampleClipper(made_up_weights(module), loss, 1.0, ghost=ghost)

        def computed(batch: Batch) -> list[Tensor]:
            gradients = clipper.gradients(batch)
            return [part for each in gradients for part in (*each.rows_of, each.squared_norms())]

        _known[key] = rows_at_once(most, lambda rows: _alike(computed, _repeated(form, rows, _place(module))))
    return _known[key]


def rows_for_losses(module: nn.Module, loss: PerRecordLoss, form: Batch, wanted: int) -> int:
    """So many rows that no record's loss depends on its row, in the mode that the module is in."""
    key = (*_kind(module, form), wanted, "losses", module.training)
    if key not in _known:
        model = made_up_weights(module)

        @torch.no_grad()
        def computed(batch: Batch) -> list[Tensor]:
            return [loss(model(batch.inputs), batch.targets)]

        _known[key] = rows_at_once(wanted, lambda rows: _alike(computed, _repeated(form, rows, _place(module))))
    return _known[key]


def made_up_weights(module: nn.Module) -> nn.Module:
    """A copy whose trainable parameters are small numbers of either sign."""
    made_up = copy.deepcopy(module)
    with torch.no_grad():
        for number, parameter in enumerate(trainable(made_up).values()):
            inputs = max(1, parameter.numel() // max(1, len(parameter))) if parameter.dim() else 1
            values = spread(parameter.numel(), 1 + number).reshape(parameter.shape)
            parameter.copy_((values * 2 - 1) / math.sqrt(inputs))
    return made_up


def _alike(computed: Callable[[Batch], Sequence[Tensor]], batches: Sequence[Batch]) -> bool:
    try:
        return all(_equal_rows(computed(batch)) for batch in batches)
    except Exception:  # a model may refuse these weights; then its records pass one at a time
        return False


def _repeated(form: Batch, rows: int, place: torch.device) -> list[Batch]:
    """Batches of one made-up record each, in every row."""
    batch = made_up_batch(form, _TRIALS).to(place)
    return [
        Batch(batch.inputs[i : i + 1].repeat_interleave(rows, 0), batch.targets[i : i + 1].repeat_interleave(rows, 0))
        for i in range(_TRIALS)
    ]


def _equal_rows(parts: Sequence[Tensor]) -> bool:
    """Whether every row holds the bits of the first; what is no number equals itself."""
    bits = [part.contiguous().reshape(len(part), -1).view(torch.uint8) for part in parts if part.numel()]
    return all(torch.equal(part, part[:1].expand_as(part)) for part in bits)


def _fitting(clipper: PerSampleClipper, form: Batch, place: torch.device) -> int:
    try:
        one = clipper.gradients(made_up_batch(form, 1).to(place))
    except Exception:  # as above
        return 1
    rows = [each.rows for each in one if isinstance(each, MaterialisedGradient)]
    return max(1, _MOST_BYTES_OF_ROWS // max(1, sum(row.numel() * row.element_size() for row in rows)))


def _kind(module: nn.Module, form: Batch) -> tuple[object, ...]:
    shapes = tuple((name, tuple(parameter.shape)) for name, parameter in trainable(module).items())
    parameter = next(iter(trainable(module).values()))
    like = tuple((tuple(part.shape[1:]), part.dtype) for part in (form.inputs, form.targets))
    return type(module), str(module), shapes, like, parameter.dtype, parameter.device, torch.get_num_threads()


def _place(module: nn.Module) -> torch.device:
    return next(iter(trainable(module).values())).device
