"""DP-SGD of dense layers without torch: secret batch, clipped sum, noise, step; the same as in `loop`.

Gradients are clipped, noised and added up as in `whole_gradients`; none is ever written down. A record whose gradient
is not finite, or that makes `factors` raise, counts as zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from privacy.errors import InvalidTerms
from privacy.tensor_shapes import unflattened
from privacy.training.fixed_rows import without_those_that_raise
from privacy.training.poisson_batches import PoissonBatches
from privacy.training.step_noise import StepNoise
from privacy.training.step_rule import StepRule
from privacy.training.whole_gradients import OuterProducts, WholeProducts, grid_step, scales_for, within_bound

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

    from privacy.mechanisms.dp_sgd import DenseFactors, DenseTrainingData
    from privacy.randomness import NoiseSource
    from privacy.tensor_shapes import Shapes

    Floats = NDArray[np.float32]
    Sums = Mapping[str, NDArray[np.float64]]

_AT_ONCE = 1024  # records; bounds the memory and changes nothing else


def check_training(data: DenseTrainingData, shapes: Shapes) -> None:
    """Refuse a model that differs from the declared one; looks at no record."""
    if {name: np.shape(tensor) for name, tensor in data.weights.items()} != dict(shapes):
        raise InvalidTerms(
            "the model's tensors differ in name or shape from the declared ones; train the model that was handed out; "
            "nothing was booked"
        )


def private_update(
    data: DenseTrainingData,
    shapes: Shapes,
    rule: StepRule,
    noise: NoiseSource,
    *,
    sampling_rate: Fraction,
    clip_norm: float,
    noise_multiplier: Fraction,
) -> NDArray[np.float64]:
    """Train a copy of the weights; trained minus initial ones, tensors in the order of their names."""
    start: Floats = np.concatenate([np.asarray(data.weights[name], dtype=np.float32).reshape(-1) for name in shapes])
    weights, sums = start.copy(), np.empty(len(start))
    tensors, summed = unflattened(weights, shapes), unflattened(sums, shapes)
    velocity = np.zeros_like(start)
    batches = PoissonBatches(noise, sampling_rate, data.num_records)
    step_noise = StepNoise(noise, noise_multiplier)
    with np.errstate(all="ignore"):  # a warning would tell of a record
        for _ in range(rule.steps):
            sums[:] = 0
            add_whole_sum(data, tensors, batches.draw(), clip_norm, summed)
            step_noise.add_to(sums)
            gradient = (sums * grid_step(clip_norm)).astype(np.float32)
            if rule.proximal:
                gradient += (weights - start) * np.float32(rule.proximal * rule.expected_batch_size)
            velocity = velocity * np.float32(rule.momentum) + gradient
            weights -= velocity * np.float32(rule.learning_rate / rule.expected_batch_size)
        return (weights - start).astype(np.float64)


def add_whole_sum(
    data: DenseTrainingData, tensors: Mapping[str, Floats], chosen: NDArray[np.int64], clip_norm: float, into: Sums
) -> None:
    """Add the clipped gradients of the chosen records, in whole grid steps, to the named sums."""

    def factors(places: Sequence[int]) -> Sequence[DenseFactors]:
        return data.factors(tensors, np.asarray(places, dtype=np.int64))

    for part in range(0, len(chosen), _AT_ONCE):
        for _, layers in without_those_that_raise(factors, chosen[part : part + _AT_ONCE].tolist()):
            if layers is not None:
                add_whole_gradients(layers, clip_norm, into)


def add_whole_gradients(layers: Sequence[DenseFactors], clip_norm: float, into: Sums) -> None:
    """Add the gradients of some records to the named sums, each clipped by itself, in whole grid steps."""
    products = [_products(layer, f"{layer.name}.bias" in into) for layer in layers]

    def whole(scales: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[WholeProducts]]:
        found = [each.whole(scales) for each in products]
        return sum(each.squares() for each in found), found

    with np.errstate(all="ignore"):
        norms = np.sqrt(sum(each.squared_norms() for each in products))
        found = within_bound(np, scales_for(np, norms, clip_norm), whole)
    for layer, each in zip(layers, found, strict=True):
        width = layer.inputs.shape[1]
        total = each.total()
        into[f"{layer.name}.weight"][...] += total[:, :width]
        if f"{layer.name}.bias" in into:
            into[f"{layer.name}.bias"][...] += total[:, width]


def add_clipped_sum(layers: Sequence[DenseFactors], clip_norm: float, into: Mapping[str, NDArray[np.floating]]) -> None:
    """The same in the units of a gradient: what someone who knows the records can work out before the noise."""
    whole = {name: np.zeros(np.shape(tensor)) for name, tensor in into.items()}
    add_whole_gradients(layers, clip_norm, whole)
    for name, tensor in into.items():
        tensor[...] += whole[name] * grid_step(clip_norm)


def _products(layer: DenseFactors, has_bias: bool) -> OuterProducts:
    """Of each record's gradient in this layer; a bias is a weight whose input is always 1."""
    inputs = layer.inputs.astype(np.float64)
    if has_bias:
        inputs = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
    with np.errstate(all="ignore"):
        return OuterProducts.of(np, layer.errors.astype(np.float64), inputs)
