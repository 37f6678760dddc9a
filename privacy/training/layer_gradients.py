"""The gradients of one layer for every record of a batch, in one of two forms.

Either as they are, one row a record (`MaterialisedGradient`), or by what they are made of: the layer's
inputs and the gradient of its outputs, from which both the norm of each record's gradient and any
weighted sum of them follow without ever writing down a single one (`GhostLinear`, `GhostEmbedding`). The
second needs no memory for the rows and wins on wide layers. Formulas of single layers are Opacus's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from privacy.training.opacus_layers import opacus_layers

if TYPE_CHECKING:
    Sums = Mapping[Tensor, Tensor]

_ROUNDING = 2.0**-18


class LayerUse(NamedTuple):
    """What went into a layer, and the gradient of what came out; records come first in both."""

    inputs: tuple[Tensor, ...]
    output_gradient: Tensor


class LayerGradient(Protocol):
    """Every record's gradient for some parameters."""

    def squared_norms(self) -> Tensor:
        """One number a record, float64; not finite where the record's gradient is not."""

    def add_weighted(self, weights: Tensor, poisoned: Tensor | None, sums: Sums) -> None:
        """Add Σ weights·gradient to `sums`; `poisoned` records are left out altogether, for 0·NaN is NaN."""


@dataclass(frozen=True)
class MaterialisedGradient:
    """One row a record."""

    parameter: nn.Parameter
    rows: Tensor

    def squared_norms(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self.rows.flatten(1), dim=1)
        return norms.double().square()

    def add_weighted(self, weights: Tensor, poisoned: Tensor | None, sums: Sums) -> None:
        rows = _without(self.rows.flatten(1), poisoned)
        sums[self.parameter].view(-1).addmv_(rows.T, weights.to(rows.dtype))


@dataclass(frozen=True)
class GhostLinear:
    """A linear layer, used at one or more places of each record: `inputs` and `output_gradients` are (n, places, ·)."""

    layer: nn.Linear
    inputs: Tensor
    output_gradients: Tensor

    def squared_norms(self) -> Tensor:
        # A norm that comes out too small is a record that counts too much. In float32 it might: a square of a small
        # gradient vanishes although the input beside it is huge, and terms of several places may cancel down to
        # rounding errors. What the sum itself, being float32, may be off by is added.
        inputs, gradients = self.inputs.double(), self.output_gradients.double()
        lengths: Tensor = inputs.norm(dim=2) * gradients.norm(dim=2)
        if inputs.shape[1] == 1:  # for a single place there is a cheaper formula
            inputs, gradients = inputs.squeeze(1), gradients.squeeze(1)
        norms = opacus_layers().norms[nn.Linear](self.layer, [inputs], gradients)
        return (_sum_of_squares(norms).sqrt() + lengths.sum(1) * _ROUNDING).square()

    def add_weighted(self, weights: Tensor, poisoned: Tensor | None, sums: Sums) -> None:
        inputs = _without(self.inputs, poisoned).flatten(0, 1)
        gradients = _weighted(self.output_gradients, weights, poisoned).flatten(0, 1)
        if self.layer.weight in sums:
            sums[self.layer.weight].addmm_(gradients.T, inputs)
        if self.layer.bias in sums:
            sums[self.layer.bias].add_(gradients.sum(0))


@dataclass(frozen=True)
class GhostEmbedding:
    """An embedding: `indices` are (n, places), `output_gradients` (n, places, ·)."""

    layer: nn.Embedding
    indices: Tensor
    output_gradients: Tensor

    def squared_norms(self) -> Tensor:
        return _sum_of_squares(opacus_layers().norms[nn.Embedding](self.layer, [self.indices], self.output_gradients))

    def add_weighted(self, weights: Tensor, poisoned: Tensor | None, sums: Sums) -> None:
        gradients = _weighted(self.output_gradients, weights, poisoned)
        sums[self.layer.weight].index_add_(0, self.indices.flatten(), gradients.flatten(0, 1))


def trainable_parameters(layer: nn.Module) -> list[nn.Parameter]:
    """The parameters that a layer itself owns and that are to be trained."""
    return [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]


def has_ghost_form(layer: nn.Module) -> bool:
    """Whether `ghost_gradient` knows this kind of layer."""
    return is_linear(layer) or type(layer) is nn.Embedding


def ghost_gradient(layer: nn.Module, uses: Sequence[LayerUse]) -> LayerGradient | None:
    """The gradient by what it is made of; None for kinds of layer that only have rows."""
    if is_linear(layer):
        return GhostLinear(layer, *_joined(uses))
    if type(layer) is nn.Embedding:
        return GhostEmbedding(layer, *_joined_indices(layer, uses))
    return None


def gradient_rows(layer: nn.Module, uses: Sequence[LayerUse]) -> Mapping[nn.Parameter, Tensor]:
    """For each trainable parameter of the layer one row a record, over all uses of the layer."""
    rows_of = opacus_layers().gradients[type(layer)]
    if is_linear(layer):
        uses = [_one_use(*_joined(uses))]
    elif type(layer) is nn.Embedding:
        uses = [_one_use(*_joined_indices(layer, uses))]
    each = [rows_of(layer, list(use.inputs), use.output_gradient) for use in uses]
    return {parameter: _added([rows[parameter] for rows in each]) for parameter in each[0] if parameter.requires_grad}


def is_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a layer is torch's linear one or that of Opacus's recurrent layers."""
    return type(layer) in {nn.Linear, opacus_layers().recurrent}


def _joined(uses: Sequence[LayerUse]) -> tuple[Tensor, Tensor]:
    """Inputs and output gradients of a linear layer at all places of all uses: (n, places, ·) each."""
    return _side_by_side([use.inputs[0] for use in uses]), _side_by_side([use.output_gradient for use in uses])


def _joined_indices(layer: nn.Embedding, uses: Sequence[LayerUse]) -> tuple[Tensor, Tensor]:
    """Indices (n, places) and output gradients (n, places, ·) of an embedding; none at the place that pads."""
    indices = torch.cat([use.inputs[0].reshape(len(use.inputs[0]), -1) for use in uses], 1)
    gradients = _side_by_side([use.output_gradient for use in uses])
    if layer.padding_idx is not None:
        gradients = gradients.masked_fill((indices == layer.padding_idx).unsqueeze(2), 0)
    return indices, gradients


def _side_by_side(tensors: Sequence[Tensor]) -> Tensor:
    rows = [tensor.reshape(len(tensor), -1, tensor.shape[-1]) for tensor in tensors]
    return rows[0] if len(rows) == 1 else torch.cat(rows, 1)


def _one_use(inputs: Tensor, output_gradient: Tensor) -> LayerUse:
    return LayerUse((inputs,), output_gradient)


def _added(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.stack(list(rows)).sum(0)


def _sum_of_squares(norms: Mapping[nn.Parameter, Tensor]) -> Tensor:
    return torch.stack([norm.double().square() for norm in norms.values()]).sum(0)


def _weighted(rows: Tensor, weights: Tensor, poisoned: Tensor | None) -> Tensor:
    return _without(rows, poisoned) * _beside(weights.to(rows.dtype), rows)


def _without(rows: Tensor, poisoned: Tensor | None) -> Tensor:
    return rows if poisoned is None else rows.masked_fill(_beside(poisoned, rows), 0)


def _beside(per_record: Tensor, rows: Tensor) -> Tensor:
    """One number a record in a form that multiplies rows."""
    return per_record.reshape(-1, *[1] * (rows.dim() - 1))
