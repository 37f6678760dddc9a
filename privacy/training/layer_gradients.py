"""The gradients of one layer for every record of a batch, in one of three forms.

Either as they are, one row a record (`MaterialisedGradient`); or, for a linear layer that each record uses once, by
what they are made of, from which norms and sums follow without ever writing down a single one (`GhostLinear`); or, for
an embedding, only where a record looked something up (`SparseEmbedding`). Each form can tell its rows in whole numbers
(`privacy.training.whole_gradients`). Formulas of single layers are Opacus's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeGuard

import torch
from torch import Tensor, nn

from privacy.training.opacus_layers import opacus_layers
from privacy.training.whole_gradients import OuterProducts, WholeProducts, rounded, squared_lengths

if TYPE_CHECKING:
    Sums = Mapping[Tensor, Tensor]

_EXACT = 2.0**52
_NUMBERS_AT_ONCE = 1 << 20
_FINE = 2.0**22  # steps to a record's whole length, for a norm of whole numbers


class LayerUse(NamedTuple):
    """What went into a layer, and the gradient of what came out; records come first in both."""

    inputs: tuple[Tensor, ...]
    output_gradient: Tensor


class WholeGradient(Protocol):
    """Every record's clipped gradient for some parameters, in whole grid steps."""

    @property
    def squares(self) -> Tensor:
        """The squared length of each record's part, exactly; not finite where it cannot be told."""

    def add_to(self, sums: Sums) -> None:
        """Add all of them to `sums`, float64."""


class LayerGradient(Protocol):
    """Every record's gradient for some parameters."""

    @property
    def rows_of(self) -> tuple[Tensor, ...]:
        """What was computed in floating point, a row for each record."""

    def squared_norms(self) -> Tensor:
        """One number a record, float64; not finite where the record's gradient is not."""

    def whole(self, scales: Tensor) -> WholeGradient:
        """Gradients times `scales`, rounded; a record whose scale is 0 is left out, whatever it holds."""


@dataclass(frozen=True)
class WholeRows:
    """The sum of rows, already taken, so that no more than one layer's rows are in memory in whole numbers."""

    parameter: nn.Parameter
    squares: Tensor
    total: Tensor

    def add_to(self, sums: Sums) -> None:
        sums[self.parameter].view(-1).add_(self.total)


@dataclass(frozen=True)
class MaterialisedGradient:
    """One row a record."""

    parameter: nn.Parameter
    rows: Tensor

    @property
    def rows_of(self) -> tuple[Tensor, ...]:
        return (self.rows,)

    def squared_norms(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self.rows.flatten(1), dim=1)
        return norms.double().square()

    def whole(self, scales: Tensor) -> WholeRows:
        rows = self.rows.flatten(1)
        total = rows.new_zeros(rows.shape[1], dtype=torch.float64)
        squares = []
        # Some at a time, in the same place: fresh memory for all of them would cost more than the work itself.
        some = max(1, _NUMBERS_AT_ONCE // rows.shape[1])
        room = rows.new_empty(min(some, len(rows)), rows.shape[1], dtype=torch.float64)
        for part, its_scales in zip(torch.split(rows, some), torch.split(scales, some), strict=True):
            whole = rounded(torch, part, its_scales, room[: len(part)])
            squares.append(squared_lengths(torch, whole))
            total += whole.sum(0)
        return WholeRows(self.parameter, torch.cat(squares), total)


@dataclass(frozen=True)
class WholeLinear:
    """Products of whole vectors."""

    layer: nn.Linear
    products: WholeProducts

    @property
    def squares(self) -> Tensor:
        squares: Tensor = self.products.squares()
        return squares

    def add_to(self, sums: Sums) -> None:
        errors, inputs = self.products.errors, self.products.inputs
        if self.layer.weight in sums:
            sums[self.layer.weight].addmm_(errors.T, inputs[:, : self.layer.in_features])
        if self.layer.bias in sums:
            sums[self.layer.bias].addmv_(errors.T, inputs[:, -1])


@dataclass(frozen=True)
class GhostLinear:
    """A linear layer that each record uses once: `inputs` and `output_gradients` are (n, ·)."""

    layer: nn.Linear
    inputs: Tensor
    output_gradients: Tensor

    @property
    def rows_of(self) -> tuple[Tensor, ...]:
        return self.inputs, self.output_gradients

    @cached_property
    def _products(self) -> OuterProducts:
        """A bias is a weight whose input is always 1."""
        parts = [self.inputs.double()] if self.layer.weight.requires_grad else []
        if any(own is self.layer.bias for own in trainable_parameters(self.layer)):
            parts.append(torch.ones_like(self.inputs[:, :1], dtype=torch.float64))
        return OuterProducts.of(torch, self.output_gradients.double(), torch.cat(parts, 1))

    def squared_norms(self) -> Tensor:
        norms: Tensor = self._products.squared_norms()
        return norms

    def whole(self, scales: Tensor) -> WholeLinear:
        return WholeLinear(self.layer, self._products.whole(scales))


@dataclass(frozen=True)
class WholeEmbedding:
    """Whole rows of an embedding's gradient, one for each token that a record looked up."""

    layer: nn.Embedding
    tokens: Tensor
    rows: Tensor
    squares: Tensor

    def add_to(self, sums: Sums) -> None:
        sums[self.layer.weight].index_add_(0, self.tokens, self.rows)


@dataclass(frozen=True)
class SparseEmbedding:
    """An embedding: `indices` are (n, places), `output_gradients` (n, places, ·).

    What a record looked up twice is added up in whole numbers only. So no sum depends on an order, which in these sums,
    one for each record and token, may follow from who else is in the batch.
    """

    layer: nn.Embedding
    indices: Tensor
    output_gradients: Tensor

    @property
    def rows_of(self) -> tuple[Tensor, ...]:
        return self.indices, self.output_gradients

    @cached_property
    def _looked_up(self) -> tuple[Tensor, Tensor]:
        """Every pair of a record and a token once, as one number; and for each place which of them it is."""
        records = torch.arange(len(self.indices), device=self.indices.device).unsqueeze(1)
        pairs = records * self.layer.num_embeddings + self.indices.long()
        numbers, places = torch.unique(pairs.flatten(), return_inverse=True)
        return numbers, places

    def squared_norms(self) -> Tensor:
        # At most as long as all its parts behind each other: of that length, whole parts are taken and added up.
        longest = torch.linalg.vector_norm(self.output_gradients.double(), dim=2).sum(1)
        steps = torch.where(longest > 0, _FINE / longest, 0.0)
        whole = self.whole(steps)
        norms: Tensor = whole.squares * (longest / _FINE).square() + (longest - longest)  # no number stays none
        return norms

    def whole(self, scales: Tensor) -> WholeEmbedding:
        numbers, places = self._looked_up
        gradients = rounded(torch, self.output_gradients.double().flatten(1), scales)
        farthest = gradients.abs().sum(1)
        gradients = gradients.view(self.output_gradients.shape).flatten(0, 1)
        rows = gradients.new_zeros(len(numbers), gradients.shape[1]).index_add_(0, places, gradients)
        records = numbers // self.layer.num_embeddings
        squares = gradients.new_zeros(len(scales)).index_add_(0, records, squared_lengths(torch, rows))
        squares = squares.masked_fill(~(farthest < _EXACT), torch.inf)  # where a sum may have been rounded
        return WholeEmbedding(self.layer, numbers % self.layer.num_embeddings, rows, squares)


def trainable_parameters(layer: nn.Module) -> list[nn.Parameter]:
    """The parameters that a layer itself owns and that are to be trained."""
    return [parameter for parameter in layer.parameters(recurse=False) if parameter.requires_grad]


def ghost_gradient(layer: nn.Module, uses: Sequence[LayerUse]) -> GhostLinear | None:
    """The gradient by what it is made of; None for layers that only have rows."""
    if not is_linear(layer):
        return None
    inputs, output_gradients = _joined(uses)
    # Of several places the products may cancel, and then whole factors say little about their sum.
    return GhostLinear(layer, inputs[:, 0], output_gradients[:, 0]) if inputs.shape[1] == 1 else None


def sparse_gradient(layer: nn.Module, uses: Sequence[LayerUse]) -> SparseEmbedding | None:
    """The gradient of an embedding where it is not zero; None for other kinds of layer."""
    return SparseEmbedding(layer, *_joined_indices(layer, uses)) if type(layer) is nn.Embedding else None


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
