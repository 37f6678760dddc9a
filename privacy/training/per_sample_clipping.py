"""The sum of a batch's gradients, each record's clipped by itself, at the price of one backward pass.

Hooks note what goes into each trainable layer and one backward pass finds the gradient of what comes out;
from the two follow the norm of every record's gradient, then its clip factor, then the clipped sum. There
is no second backward pass, as there is in plain ghost clipping, and no gradient of the parameters is taken
by autograd at all: a use of a parameter that no hook has seen cannot enter the sum unclipped.

Clipped gradients are whole numbers (`whole_gradients`), so the sum is exact and its order does not matter. A record
whose gradient is not finite counts as zero. Left in, it would turn the whole model into NaN, and everybody could tell
that it was there.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from privacy.errors import UnsupportedModel
from privacy.training.layer_gradients import (
    LayerGradient,
    LayerUse,
    MaterialisedGradient,
    WholeGradient,
    ghost_gradient,
    gradient_rows,
    sparse_gradient,
    trainable_parameters,
)
from privacy.training.whole_gradients import root, scales_for, within_bound

if TYPE_CHECKING:
    from privacy.training.layer_gradients import Sums
    from privacy.training.per_record_loss import PerRecordLoss


@dataclass(frozen=True)
class Batch:
    """Some records, as the model takes them."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device) -> Batch:
        """The same records on `device`."""
        return Batch(self.inputs.to(device), self.targets.to(device))

    def select(self, chosen: Tensor) -> Batch:
        """The records with these indices."""
        return Batch(*(part.index_select(0, chosen.to(part.device)) for part in (self.inputs, self.targets)))


class _Noted(NamedTuple):
    """A layer in a forward pass: what went in, and where its output stands in the graph."""

    layer: nn.Module
    inputs: tuple[Tensor, ...]
    # An edge rather than the output itself, which an in-place activation would overwrite.
    output: GradientEdge


@dataclass(frozen=True)
class ClippedBatch:
    """A batch that is clipped and checked; adding it up can no longer fail."""

    gradients: tuple[WholeGradient, ...]

    def add_to(self, sums: Sums) -> None:
        """Add the clipped gradients of all records, in whole grid steps, to `sums`."""
        for gradient in self.gradients:
            gradient.add_to(sums)


class PerSampleClipper:
    """Clips gradients of `model` to `clip_norm` record by record; with `ghost` without writing them down."""

    def __init__(self, model: nn.Module, loss: PerRecordLoss, clip_norm: float, *, ghost: bool) -> None:
        self._model = model
        self._layers = tuple(trainable_layers(model).values())
        self._loss = loss
        self.clip_norm = clip_norm
        self._ghost = ghost

    @torch.no_grad()
    def clipped(self, batch: Batch, present: Tensor | None = None) -> ClippedBatch:
        """The batch's gradients in whole grid steps, none longer than the clip norm; who is not `present` is zero."""
        gradients = self.gradients(batch)
        norms = root(torch, torch.stack([gradient.squared_norms() for gradient in gradients]).sum(0))
        scales = scales_for(torch, norms, self.clip_norm)
        if present is not None:
            scales[~present.to(scales.device)] = 0

        def whole(scales: Tensor) -> tuple[Tensor, tuple[WholeGradient, ...]]:
            found = tuple(gradient.whole(scales) for gradient in gradients)
            return torch.stack([each.squares for each in found]).sum(0), found

        return ClippedBatch(within_bound(torch, scales, whole))

    @torch.no_grad()
    def gradients(self, batch: Batch) -> tuple[LayerGradient, ...]:
        """Every record's gradient, unclipped, layer by layer, in the form that suits the layer."""
        uses_of = self._uses(batch)
        owners = Counter(parameter for layer in uses_of for parameter in trainable_parameters(layer))
        found: list[LayerGradient] = []
        written: dict[nn.Module, list[LayerUse]] = {}
        for layer, uses in uses_of.items():
            # A parameter that several layers share needs the sum of their rows before its norm can be taken.
            alone = all(owners[parameter] == 1 for parameter in trainable_parameters(layer))
            form = (sparse_gradient(layer, uses) or (self._ghost and ghost_gradient(layer, uses))) if alone else None
            if form:
                found.append(form)
            else:
                written[layer] = uses
        rows = _rows(written)
        return (*found, *(MaterialisedGradient(parameter, row) for parameter, row in rows.items()))

    @torch.no_grad()
    def rows(self, batch: Batch) -> dict[nn.Parameter, Tensor]:
        """Every record's gradient for every parameter that has one, written down."""
        return _rows(self._uses(batch))

    def _uses(self, batch: Batch) -> dict[nn.Module, list[LayerUse]]:
        noted, output_gradients = self._passed(batch)
        uses_of: dict[nn.Module, list[LayerUse]] = {}
        for (layer, inputs, _), gradient in zip(noted, output_gradients, strict=True):
            if gradient is not None:
                uses_of.setdefault(layer, []).append(LayerUse(inputs, gradient))
        return uses_of

    def _passed(self, batch: Batch) -> tuple[list[_Noted], tuple[Tensor | None, ...]]:
        """One forward and one backward pass: every use of a layer, and the gradient of its output."""
        with self._noting(len(batch)) as noted, torch.enable_grad():
            total = self._loss(self._model(batch.inputs), batch.targets).sum()
        outputs = [layer.output for layer in noted]
        return noted, cast("tuple[Tensor | None, ...]", torch.autograd.grad(total, outputs, allow_unused=True))

    @contextlib.contextmanager
    def _noting(self, num_records: int) -> Iterator[list[_Noted]]:
        noted: list[_Noted] = []

        def note(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if len(output) != num_records or any(len(tensor) != num_records for tensor in inputs):
                raise UnsupportedModel(
                    f"{type(layer).__name__} does not see one row for each record, so records cannot be told apart; "
                    "keep the records in the first dimension of everything that enters a trainable layer; "
                    "nothing was booked"
                )
            noted.append(_Noted(layer, tuple(tensor.detach() for tensor in inputs), get_gradient_edge(output)))

        hooks = [layer.register_forward_hook(note) for layer in self._layers]
        try:
            yield noted
        finally:
            for hook in hooks:
                hook.remove()


def _rows(uses_of: dict[nn.Module, list[LayerUse]]) -> dict[nn.Parameter, Tensor]:
    """One row a record for each parameter, over all layers that use it."""
    rows: dict[nn.Parameter, Tensor] = {}
    for layer, uses in uses_of.items():
        for parameter, of_layer in gradient_rows(layer, uses).items():
            rows[parameter] = rows[parameter] + of_layer if parameter in rows else of_layer
    return rows


def trainable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that own a trainable parameter, by name; not those that only rename what lies deeper in them."""

    def owns(module: nn.Module) -> bool:
        deeper = {parameter for child in module.children() for parameter in child.parameters()}
        return not deeper.issuperset(trainable_parameters(module))

    return {name: module for name, module in model.named_modules() if owns(module)}
