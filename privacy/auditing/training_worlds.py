"""Pairs of neighbouring records for DP-SGD: one dense layer, and records whose gradients are known to the last bit.

A layer's gradient by one record is an outer product of two vectors. We choose both with few binary digits, so that
floats of any width multiply them exactly: the sums without noise, which some statistics need, are then known. Models
are float32 by NumPy, and float32 and float64 by torch where it is installed.
"""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from privacy.auditing.worlds import World
from privacy.budget import NeighbouringRelation
from privacy.errors import InvalidTerms
from privacy.mechanisms.dp_sgd import DenseFactors, DenseTrainingData, TrainingData

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    Floats = NDArray[np.float64]

_LENGTH = 15 / 16  # of the clip norm: within it, however carefully a norm is rounded
_SIGNIFICANT_BITS = 10  # of each factor, so that float32 holds every product
_FAR = 100.0


@dataclass(frozen=True, eq=False)
class _Layer:
    """The layer under audit, and the gradient of a record that is not clipped."""

    name: str
    errors: Floats
    inputs: Floats
    has_bias: bool

    @classmethod
    def of(cls, terms: dict[str, int | str]) -> _Layer:
        import numpy as np

        shapes = {name: tuple(shape) for name, shape in json.loads(str(terms["shapes"])).items()}
        layer, has_bias = _only_dense_layer(shapes)
        out, into = shapes[f"{layer}.weight"]
        inputs = 1 + (np.arange(into) % 8) / 16
        length = math.sqrt(out * (float(inputs @ inputs) + has_bias))
        errors = float(Fraction(terms["clip_norm"])) * _LENGTH / length * (1 - (np.arange(out) % 8) / 32)
        mantissa, exponent = np.frexp(errors)
        shortened = np.ldexp(np.floor(np.ldexp(mantissa, _SIGNIFICANT_BITS)), exponent - _SIGNIFICANT_BITS)
        return cls(layer, shortened, inputs, has_bias)

    def gradient(self, times: float) -> Floats:
        """As one vector, tensors in the order of their names."""
        import numpy as np

        weight = np.outer(self.errors, self.inputs).ravel()
        return times * np.concatenate([self.errors, weight] if self.has_bias else [weight])

    def by_numpy(self, records: Sequence[float]) -> DenseTrainingData:
        """Each record's gradient is this many times the layer's own."""
        import numpy as np

        shape = len(self.errors), len(self.inputs)
        weights: dict[str, Any] = {f"{self.name}.weight": np.zeros(shape, dtype=np.float32)}
        if self.has_bias:
            weights[f"{self.name}.bias"] = np.zeros(shape[0], dtype=np.float32)
        errors = np.outer(np.array(records, dtype=np.float64), self.errors).astype(np.float32)
        inputs = np.repeat(self.inputs[None, :], len(records), axis=0).astype(np.float32)
        return DenseTrainingData(
            weights, len(records), lambda _, chosen: [DenseFactors(self.name, inputs[chosen], errors[chosen])]
        )

    def by_torch(self, records: Sequence[float], number: str) -> TrainingData:
        """The same with a model of torch, whose floats are `number`."""
        import numpy as np
        import torch
        from torch import nn

        layer = nn.Linear(len(self.inputs), len(self.errors), bias=self.has_bias, dtype=getattr(torch, number))
        model = nn.Sequential()
        model.add_module(self.name, layer)
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        inputs = torch.from_numpy(np.repeat(self.inputs[None, :], len(records), axis=0)).to(layer.weight.dtype)
        errors = torch.from_numpy(np.outer(np.array(records, dtype=np.float64), self.errors)).to(layer.weight.dtype)
        return TrainingData(model, _pulled, inputs, errors)


def dp_sgd_worlds(terms: dict[str, int | str], relation: NeighbouringRelation) -> list[World]:
    """Records that pull one way, the other way, not at all, too far, or are not numbers."""
    layer = _Layer.of(terms)
    pairs: dict[str, tuple[list[float], list[float]]] = {
        "a record or none": ([], [1.0]),
        "a record of 100 clip norms or none": ([], [_FAR]),
        "a record that is not a number or none": ([], [math.nan]),
    }
    if relation is NeighbouringRelation.REPLACE:
        pairs = {
            "opposite records": ([-1.0], [1.0]),
            "opposite records of 100 clip norms": ([-_FAR], [_FAR]),
            "a record or one that is not a number": ([1.0], [math.nan]),
        }
    worlds = []
    for name, pair in pairs.items():
        first, second = map(layer.by_numpy, pair)
        worlds.append(World(f"{name}, NumPy float32", first, second, _centres(layer, terms, pair)))
    name, pair = next(iter(pairs.items()))
    for number in ("float32", "float64") if _has_torch() else ():
        model, other = (layer.by_torch(records, number) for records in pair)
        worlds.append(World(f"{name}, torch {number}", model, other, _centres(layer, terms, pair)))
    return worlds


def dp_sgd_left_out() -> tuple[str, ...]:
    """What could not be tried here."""
    return () if _has_torch() else ("models of torch, float64 ones among them: torch is not installed",)


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _centres(
    layer: _Layer, terms: dict[str, int | str], pair: tuple[list[float], list[float]]
) -> tuple[Floats, Floats] | None:
    """What is released without noise, in grid steps; only one step on all records is simple enough to say."""
    one_step = Fraction(terms["sampling_rate"]) == 1 and int(terms["steps"]) == 1
    if not one_step or any(abs(times) > 1 or math.isnan(times) for records in pair for times in records):
        return None
    steps_per_unit = float((1 << int(terms["grid_bits"])) / Fraction(terms["clip_norm"]))
    first, second = (-layer.gradient(sum(records)) * steps_per_unit for records in pair)
    return first, second


def _only_dense_layer(shapes: dict[str, tuple[int, ...]]) -> tuple[str, bool]:
    """Its name, and whether it has a bias."""
    layers = [name.removesuffix(".weight") for name, shape in shapes.items() if name.endswith(".weight")]
    if len(layers) == 1 and set(shapes) <= {f"{layers[0]}.weight", f"{layers[0]}.bias"}:
        layer, shape = layers[0], shapes[f"{layers[0]}.weight"]
        if len(shape) == 2 and 0 not in shape:
            return layer, f"{layer}.bias" in shapes
    raise InvalidTerms(
        "the built-in worlds for dp_sgd are for one dense layer, name.weight and maybe name.bias; pass worlds of your "
        "own for another model; nothing was run"
    )


def _pulled(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss for each record whose gradient by the outputs is the record's target."""
    return (outputs * targets).sum(dim=1)
