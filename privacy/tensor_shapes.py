"""Named tensors as one vector and back, in the order of their names."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from privacy.errors import InvalidTerms

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tensors = Mapping[str, NDArray[np.floating]]
    Number = TypeVar("Number", bound=np.generic)

Shapes = Mapping[str, tuple[int, ...]]


def in_order(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """The declared shapes, sorted by name; refused where one makes no sense."""
    ordered = {name: tuple(int(side) for side in shape) for name, shape in sorted(shapes.items())}
    if any(side < 0 for shape in ordered.values() for side in shape):
        raise InvalidTerms("an update's shapes cannot have a negative side; nothing was booked")
    return ordered


def described(shapes: Shapes) -> str:
    """The shapes as text, for the terms of a mechanism."""
    return json.dumps({name: list(shape) for name, shape in shapes.items()}, sort_keys=True)


def size_of(shapes: Shapes) -> int:
    """How many numbers the tensors hold together."""
    return sum(math.prod(shape) for shape in shapes.values())


def flattened(tensors: Tensors, shapes: Shapes) -> NDArray[np.float64]:
    """The tensors behind each other, as a new vector."""
    import numpy as np

    vector = np.empty(size_of(shapes), dtype=np.float64)
    start = 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        vector[start:end] = np.asarray(tensors[name]).reshape(-1)
        start = end
    return vector


def unflattened(vector: NDArray[Number], shapes: Shapes) -> dict[str, NDArray[Number]]:
    """The inverse of `flattened`; the tensors are views of `vector`."""
    tensors, start = {}, 0
    for name, shape in shapes.items():
        end = start + math.prod(shape)
        tensors[name] = vector[start:end].reshape(shape)
        start = end
    return tensors
