"""DP-SGD of dense layers without torch: secret batch, clipped sum, noise, step; the same as in `loop`.

A record's gradient in a dense layer is the outer product of what went in and of the gradient by what came out. So its
norm is the product of theirs, and a sum of clipped gradients is one product of matrices: no record's gradient is ever
written down. A record whose gradient is not finite counts as zero, as in `per_sample_clipping`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from privacy.errors import InvalidTerms
from privacy.tensor_shapes import unflattened
from privacy.training.poisson_batches import PoissonBatches
from privacy.training.step_noise import StepNoise
from privacy.training.step_rule import SLACK, StepRule

if TYPE_CHECKING:
    from fractions import Fraction

    from numpy.typing import NDArray

    from privacy.mechanisms.dp_sgd import DenseFactors, DenseTrainingData
    from privacy.randomness import NoiseSource
    from privacy.tensor_shapes import Shapes

    Floats = NDArray[np.float32]

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
    noise_deviation: float,
) -> NDArray[np.float64]:
    """Train a copy of the weights; trained minus initial ones, tensors in the order of their names."""
    start: Floats = np.concatenate([np.asarray(data.weights[name], dtype=np.float32).reshape(-1) for name in shapes])
    weights, sums = start.copy(), np.empty_like(start)
    tensors, summed = unflattened(weights, shapes), unflattened(sums, shapes)
    velocity = np.zeros_like(start)
    batches = PoissonBatches(noise, sampling_rate, data.num_records)
    step_noise = StepNoise(noise.stream_key(), noise_deviation)
    with np.errstate(all="ignore"):  # a warning would tell of a record
        for _ in range(rule.steps):
            chosen = batches.draw()
            sums[:] = 0
            for part in range(0, len(chosen), _AT_ONCE):
                add_clipped_sum(data.factors(tensors, chosen[part : part + _AT_ONCE]), clip_norm, summed)
            step_noise.add_to_array(sums)
            if rule.proximal:
                sums += (weights - start) * np.float32(rule.proximal * rule.expected_batch_size)
            velocity = velocity * np.float32(rule.momentum) + sums
            weights -= velocity * np.float32(rule.learning_rate / rule.expected_batch_size)
        return (weights - start).astype(np.float64)


def add_clipped_sum(layers: Sequence[DenseFactors], clip_norm: float, into: Mapping[str, Floats]) -> None:
    """Add the gradients of a batch to the named sums, each record's clipped to `clip_norm` by itself."""
    norms = np.sqrt(sum(_squared_norms(layer, into) for layer in layers))
    finite = np.isfinite(norms)
    factors = np.minimum(1, clip_norm / (norms[finite] * SLACK))
    for layer in layers:
        # In float64: a factor below 1e-38 has few digits in float32, and may be rounded up by more than the slack.
        errors = (layer.errors[finite] * factors[:, None]).astype(np.float32)
        into[f"{layer.name}.weight"][...] += errors.T @ layer.inputs[finite]
        if f"{layer.name}.bias" in into:
            into[f"{layer.name}.bias"][...] += errors.sum(axis=0)


def _squared_norms(layer: DenseFactors, tensors: Mapping[str, Floats]) -> NDArray[np.float64]:
    """Of each record's gradient in this layer; a bias is a weight whose input is always 1."""
    inputs = np.square(layer.inputs, dtype=np.float64).sum(axis=1) + (f"{layer.name}.bias" in tensors)
    squared: NDArray[np.float64] = np.square(layer.errors, dtype=np.float64).sum(axis=1) * inputs
    return squared
