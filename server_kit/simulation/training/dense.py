"""Dense layers of many devices at once: each device its own weights, one batched product for all.

Weights lie as [n, out, in], what flows as [n, batch, features]. Gradients are written by hand: the back-
propagated differences of each layer are kept until all are known, so that weights may be changed in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from server_kit.simulation.training.workspace import Workspace

# Into weights that lie apart torch multiplies device by device. For layers of so few weights the calls cost more than
# to write all products side by side and add them. Measured.
_SMALL = 1 << 12
_NARROW = 16  # classes: torch's softmax takes records one by one, and fills no vector register with fewer

Layer = tuple[Tensor, Tensor]
"""Weights [n, out, in] and bias [n, out]: views into the flat vectors of a chunk."""


class DenseLayers:
    """Dense layers with ReLU between them; the last one gives the logits."""

    def __init__(self, widths: Sequence[int], workspace: Workspace, name: str = "dense") -> None:
        self._widths = tuple(widths)
        self._workspace = workspace
        self._name = name

    def __len__(self) -> int:
        return len(self._widths) - 1

    @property
    def size(self) -> int:
        """How many parameters these layers have."""
        return sum((fan_in + 1) * fan_out for fan_in, fan_out in pairwise(self._widths))

    def bind(self, flat: Tensor) -> list[Layer]:
        """The layers inside `flat` [n, size] (or [size] as one device), in order."""
        flat = flat.view(-1, self.size) if flat.dim() == 1 else flat
        layers, start = [], 0
        for fan_in, fan_out in pairwise(self._widths):
            middle = start + fan_in * fan_out
            weight = flat[:, start:middle].view(len(flat), fan_out, fan_in)
            layers.append((weight, flat[:, middle : middle + fan_out]))
            start = middle + fan_out
        return layers

    def forward(self, layers: Sequence[Layer], inputs: Tensor) -> list[Tensor]:
        """What enters each layer, and last the logits."""
        n, batch = inputs.shape[:2]
        flow = [inputs]
        for number, (weight, bias) in enumerate(layers):
            outputs = self._workspace.take(f"{self._name}-out{number}", n, batch, weight.shape[1])
            torch.baddbmm(bias.unsqueeze(1), flow[-1], weight.transpose(1, 2), out=outputs)
            if number < len(layers) - 1:
                outputs.clamp_min_(0)
            flow.append(outputs)
        return flow

    def backward(
        self, layers: Sequence[Layer], flow: Sequence[Tensor], residual: Tensor, *, inward: bool
    ) -> list[Tensor]:
        """The loss's gradient by the outputs of each layer, from that of the logits.

        With `inward`, one more in front: by what entered the first layer, where that had passed a ReLU.
        """
        differences = [residual]
        for number in range(len(layers) - 1, -1 if inward else 0, -1):
            weight, _ = layers[number]
            back = self._workspace.take(f"{self._name}-back{number}", *residual.shape[:2], weight.shape[2])
            torch.bmm(differences[-1], weight, out=back)
            differences.append(relu_backward(back, flow[number]))
        return differences[::-1]

    def accumulate(
        self, into: Sequence[Layer], flow: Sequence[Tensor], differences: Sequence[Tensor], beta: float, alpha: float
    ) -> None:
        """`into` ← beta·`into` + alpha·gradient."""
        for (weight, bias), entered, difference in zip(into, flow, differences, strict=False):
            back = difference.transpose(1, 2)
            if weight[0].numel() <= _SMALL:
                gradient = self._workspace.take(f"{self._name}-gradient", *weight.shape)
                add_scaled(weight, torch.bmm(back, entered, out=gradient), beta, alpha)
            else:
                weight.baddbmm_(back, entered, beta=beta, alpha=alpha)
            add_scaled(bias, difference.sum(dim=1), beta, alpha)


def softmax_residual(logits: Tensor, labels: Tensor) -> Tensor:
    """`logits` [n, batch, classes] overwritten by softmax minus the one-hot of `labels` [n, batch, 1].

    That is the gradient of cross-entropy.
    """
    if logits.shape[2] < _NARROW:
        logits.sub_(logits.amax(dim=2, keepdim=True)).exp_()
        logits.div_(logits.sum(dim=2, keepdim=True))
    else:
        torch.softmax(logits, dim=2, out=logits)
    return logits.scatter_add_(2, labels, _minus_one(logits.device).expand(labels.shape))


@lru_cache
def _minus_one(where: torch.device) -> Tensor:
    return torch.tensor(-1.0, device=where)


def relu_backward(difference: Tensor, outputs: Tensor) -> Tensor:
    """`difference` set to zero where a ReLU gave zero, in place."""
    torch.ops.aten.threshold_backward(difference, outputs, 0, grad_input=difference)
    return difference


def add_scaled(into: Tensor, values: Tensor, beta: float, alpha: float) -> None:
    """`into` ← beta·`into` + alpha·`values`; with beta 0 whatever was there before is forgotten."""
    scale(into, beta)
    into.add_(values, alpha=alpha)


def scale(values: Tensor, beta: float) -> None:
    """`values` ← beta·`values`, where 0 also forgets what is not a number."""
    if beta == 0:
        values.zero_()
    elif beta != 1:
        values.mul_(beta)


def squared_norms(values: Tensor) -> Tensor:
    """[n, batch, features] to the squared length of each record's vector, [n, batch]."""
    lengths: Tensor = torch.linalg.vector_norm(values, dim=2)
    return lengths.square_()
