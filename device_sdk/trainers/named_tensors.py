"""Between the named arrays that a task speaks of and the one flat vector that is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from device_sdk.trainers.errors import InvalidSettings, ModelMismatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from device_sdk.trainers.protocol import Mask, Weights
    from privacy.tensor_shapes import Shapes


def flat_weights(weights: Weights, shapes: Shapes) -> NDArray[np.float32]:
    """The weights behind each other in the order of `shapes`, as a new vector."""
    if any(np.asarray(tensor).dtype.kind != "f" for tensor in weights.values()):
        raise ModelMismatch("the weights of a model must be floating point; nothing was trained")
    return np.concatenate([np.asarray(weights[name], dtype=np.float32).reshape(-1) for name in shapes])


def flat_mask(mask: Mask, shapes: Shapes) -> NDArray[np.bool_]:
    """The mask in the same order; it must speak of exactly these tensors."""
    found = {name: np.asarray(part) for name, part in mask.items()}
    fits = {name: part.shape for name, part in found.items()} == dict(shapes)
    if not fits or any(part.dtype != np.bool_ for part in found.values()):
        raise InvalidSettings("a mask must hold booleans, named and shaped as the weights; nothing was trained")
    return np.concatenate([found[name].reshape(-1) for name in shapes])
