"""A spec's layers for stacked weights: forward, backward, and the sum of gradients, plain or clipped by record."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from server_kit.simulation.training.convolution import ConvolutionLayer
from server_kit.simulation.training.dense import DenseLayers, Layer, squared_norms
from server_kit.simulation.training.specs import StackedSpec
from server_kit.simulation.training.workspace import Workspace

Bound = tuple[list[Layer], list[Layer]]
"""Convolutions and dense layers, as views into flat vectors."""


class Network:
    """Convolutions, then dense layers. `begin` for a chunk, then for each step `forward`, `backward` and a sum."""

    def __init__(self, spec: StackedSpec, workspace: Workspace) -> None:
        self._spec = spec
        self._convolutions = [
            ConvolutionLayer(shape, workspace, f"conv{number}")
            for number, shape in enumerate(spec.convolutions, start=1)
        ]
        self._dense = DenseLayers(spec.widths, workspace)
        self._workspace = workspace

    def begin(self, devices: int, batch: int) -> None:
        """Set memory aside for a chunk."""
        for layer in self._convolutions:
            layer.begin(devices, batch)

    def bind(self, flat: Tensor) -> Bound:
        """The layers inside `flat` [n, size]."""
        kernels: list[Layer] = []
        for number in range(1, len(self._convolutions) + 1):
            weight, bias = (self._spec.layout.places[f"conv{number}.{part}"] for part in ("weight", "bias"))
            kernels.append((flat[:, weight[0] : weight[1]].view(len(flat), *weight[2]), flat[:, bias[0] : bias[1]]))
        return kernels, self._dense.bind(flat[:, self._spec.layout.size - self._dense.size :])

    def forward(self, bound: Bound, inputs: Tensor) -> Tensor:
        """Logits [n, batch, classes] for `inputs` [n, batch, features]."""
        kernels, dense = bound
        if kernels:
            inputs = self._convolve(kernels, inputs)
        self._flow = self._dense.forward(dense, inputs)
        return self._flow[-1]

    def _convolve(self, kernels: list[Layer], inputs: Tensor) -> Tensor:
        n, batch = inputs.shape[:2]
        flowing = inputs.view(n, batch, *self._spec.input_shape).permute(0, 2, 3, 4, 1)
        for layer, weights in zip(self._convolutions, kernels, strict=True):
            flowing = layer.forward(weights, flowing)
        flat = self._workspace.take("flattened", n, batch, self._spec.widths[0])
        return flat.copy_(flowing.reshape(n, -1, batch).transpose(1, 2))

    def backward(self, bound: Bound, residual: Tensor) -> None:
        """Follow the gradient by the logits back through all layers."""
        _, dense = bound
        differences = self._dense.backward(dense, self._flow, residual, inward=bool(self._convolutions))
        if self._convolutions:
            inward, *differences = differences
            shape = self._convolutions[-1].outgoing(*inward.shape[:2])
            flowing = self._workspace.take("unflattened", *shape)
            flowing.view(len(inward), -1, inward.shape[1]).copy_(inward.transpose(1, 2))
            for number, layer in reversed(list(enumerate(self._convolutions))):
                flowing = layer.backward(flowing, inward=number > 0)
        self._differences = differences

    def accumulate(self, into: Bound, beta: float, alpha: float) -> None:
        """`into` ← beta·`into` + alpha·gradient."""
        kernels, dense = into
        for layer, target in zip(self._convolutions, kernels, strict=True):
            layer.accumulate(target, beta, alpha)
        self._dense.accumulate(dense, self._flow, self._differences, beta, alpha)

    def accumulate_clipped(self, into: Bound, shares: Tensor, clip_norm: float, beta: float, alpha: float) -> None:
        """The same with each record's gradient first clipped, then counted by its share [n, batch].

        `backward` must have been given the bare gradient of each record. No gradient of a dense layer is
        written down for a record: its norm is that of what entered times that of what came back.
        """
        kernels, dense = into
        own = [layer.record_gradients() for layer in self._convolutions]
        squares = torch.zeros_like(shares)
        add_dense_squares(squares, self._flow, self._differences)
        for gradients in own:
            for values in gradients:
                squares += squared_norms(values)
        shares = clipped_shares(squares, shares, clip_norm)
        for layer, target, gradients in zip(self._convolutions, kernels, own, strict=True):
            layer.accumulate_records(target, gradients, shares, beta, alpha)
        for difference in self._differences:
            difference.mul_(shares.unsqueeze(2))
        self._dense.accumulate(dense, self._flow, self._differences, beta, alpha)


def add_dense_squares(squares: Tensor, flow: Sequence[Tensor], differences: Sequence[Tensor]) -> None:
    """Add to `squares` [n, batch] the squared norm of each record's gradient of dense layers."""
    for entered, difference in zip(flow, differences, strict=False):
        squares += (squared_norms(entered) + 1) * squared_norms(difference)  # + 1: a bias sees a constant input


def clipped_shares(squares: Tensor, shares: Tensor, clip_norm: float) -> Tensor:
    """What each record counts for, with gradients longer than `clip_norm` scaled down to it."""
    return (clip_norm / squares.sqrt()).clamp_max_(1.0).mul_(shares)
