"""Dense layers with ReLU between them and softmax cross-entropy at the end, in plain NumPy.

The layers are read off the names and shapes of the tensors: `x.weight` [outputs, inputs] and maybe `x.bias`
[outputs], as torch writes them, in the order of the numbers in their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from device_sdk.trainers.errors import ModelMismatch
from privacy.mechanisms.dp_sgd import DenseFactors

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privacy.tensor_shapes import Shapes

    Floats = NDArray[np.float32]
    Tensors = Mapping[str, Floats]


@dataclass(frozen=True)
class DenseNetwork:
    """The layers by name, from the inputs to the logits."""

    layers: tuple[str, ...]
    num_features: int
    num_classes: int

    @classmethod
    def of(cls, shapes: Shapes, layers: Sequence[str] | None = None) -> DenseNetwork:
        """The network that these tensors make; `layers` names them in order where names do not tell."""
        found = sorted((name.removesuffix(".weight") for name in shapes if name.endswith(".weight")), key=_by_number)
        ordered = tuple(found if layers is None else layers)
        expected = {f"{layer}.{part}" for layer in ordered for part in ("weight", "bias")}
        if not ordered or sorted(ordered) != sorted(found) or not set(shapes) <= expected:
            raise ModelMismatch(
                "a NumpyTrainer knows dense layers only, each with 'name.weight' and maybe 'name.bias', and the task's "
                "model has other tensors; use a TorchTrainer for it; nothing was trained"
            )
        return cls(ordered, *_ends(shapes, ordered))

    def logits(self, tensors: Tensors, inputs: Floats) -> list[Floats]:
        """What enters each layer, and last the logits."""
        flow = [inputs]
        for number, layer in enumerate(self.layers, start=1):
            outputs = flow[-1] @ tensors[f"{layer}.weight"].T
            if f"{layer}.bias" in tensors:
                outputs += tensors[f"{layer}.bias"]
            flow.append(outputs if number == len(self.layers) else np.maximum(outputs, 0))
        return flow

    def gradient(self, tensors: Tensors, inputs: Floats, labels: NDArray[np.int64], into: Tensors) -> None:
        """Write the gradient of the mean cross-entropy over these records into `into`."""
        # A model that runs off to infinity is released as zero; a warning would only tell of it.
        with np.errstate(all="ignore"):
            for layer in self._backwards(tensors, inputs, labels, len(labels)):
                np.matmul(layer.errors.T, layer.inputs, out=into[f"{layer.name}.weight"])
                if f"{layer.name}.bias" in into:
                    np.sum(layer.errors, axis=0, out=into[f"{layer.name}.bias"])

    def factors(self, tensors: Tensors, inputs: Floats, labels: NDArray[np.int64]) -> list[DenseFactors]:
        """Of each layer, what the gradient of each record's own cross-entropy is made of."""
        with np.errstate(all="ignore"):  # as above
            return list(self._backwards(tensors, inputs, labels, 1))

    def evaluation(
        self, tensors: Tensors, inputs: Floats, labels: NDArray[np.int64]
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """Each record's cross-entropy, and whether it is right; an unknown label is wrong and costs nothing."""
        with np.errstate(all="ignore"):  # as above
            logits = self.logits(tensors, inputs)[-1]
            logits = logits - logits.max(axis=1, keepdims=True)
            known = (labels >= 0) & (labels < self.num_classes)
            named = np.where(known, labels, 0)
            losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(labels)), named]
        # All rows are computed, whatever their labels: how many there are may change how the others come out.
        return np.where(known, losses, np.float32(0)), known & (logits.argmax(axis=1) == labels)

    def _backwards(
        self, tensors: Tensors, inputs: Floats, labels: NDArray[np.int64], divisor: int
    ) -> Iterator[DenseFactors]:
        """From the last layer to the first: what went in, and the gradient by what came out, over `divisor`."""
        flow = self.logits(tensors, inputs)
        errors = self._residual(flow[-1], labels) / np.float32(divisor)
        for number in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[number]
            yield DenseFactors(layer, flow[number], errors)
            if number:
                errors = (errors @ tensors[f"{layer}.weight"]) * (flow[number] > 0)

    def _residual(self, logits: Floats, labels: NDArray[np.int64]) -> Floats:
        """Softmax minus the one-hot label: the gradient of each record's loss by its logits."""
        shares: Floats = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        known = (labels >= 0) & (labels < self.num_classes)
        rows = np.flatnonzero(known)
        shares[rows, labels[rows]] -= 1
        # A label that the model does not know teaches nothing; an error would tell that there is one.
        shares[~known] = 0
        return shares


def _ends(shapes: Shapes, layers: Sequence[str]) -> tuple[int, int]:
    """Inputs of the first and outputs of the last layer; refused where the layers do not follow each other."""
    weights = [shapes[f"{layer}.weight"] for layer in layers]
    biases = [shapes.get(f"{layer}.bias") for layer in layers]
    flat = all(len(shape) == 2 and min(shape) > 0 for shape in weights)
    if not flat or any(before[0] != after[1] for before, after in pairwise(weights)):
        raise ModelMismatch(
            "the layers of the task's model do not follow each other in the order of their names; "
            "name them in order with NumpyTrainer(layers=...); nothing was trained"
        )
    if any(bias not in {None, weight[:1]} for weight, bias in zip(weights, biases, strict=True)):
        raise ModelMismatch("a bias of the task's model does not fit its layer; nothing was trained")
    return weights[0][1], weights[-1][0]


def _by_number(name: str) -> list[tuple[int, str]]:
    """'dense10' after 'dense2'."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
