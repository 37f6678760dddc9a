"""A dense network that computes every record as if it were alone, to the last bit.

NumPy's matrix products add up in another order for other numbers of rows, so that one record more would change what
all others contribute. Here they always see the same number of rows; see `privacy.training.fixed_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from device_sdk.trainers.dense_network import DenseNetwork
from privacy.mechanisms.dp_sgd import DenseFactors
from privacy.tensor_shapes import unflattened
from privacy.training.fixed_rows import rows_at_once

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from device_sdk.trainers.dense_network import Floats, Tensors
    from privacy.tensor_shapes import Shapes

    Some = tuple[Floats, NDArray[np.int64]]

_WANTED_ROWS = 32
_TRIALS = 3
_NO_LABEL = -1
_GOLDEN = 0.6180339887498949  # as in `privacy.training.made_up`, which needs torch

Found = TypeVar("Found")


@dataclass(frozen=True)
class RowsApart:
    """A network, and how many rows it computes at once."""

    network: DenseNetwork
    rows: int

    @classmethod
    def of(cls, network: DenseNetwork, shapes: Shapes) -> RowsApart:
        return cls(network, _rows_for(network, tuple(shapes.items()), _WANTED_ROWS))

    def factors(self, tensors: Tensors, inputs: Floats, labels: NDArray[np.int64]) -> list[DenseFactors]:
        """`DenseNetwork.factors` of any number of records."""
        parts = [
            [DenseFactors(layer.name, layer.inputs[:count], layer.errors[:count]) for layer in layers]
            for count, layers in self._each(inputs, labels, lambda some: self.network.factors(tensors, *some))
        ]
        return [
            DenseFactors(
                same[0].name,
                np.concatenate([layer.inputs for layer in same]),
                np.concatenate([layer.errors for layer in same]),
            )
            for same in zip(*parts, strict=True)
        ] or self.network.factors(tensors, inputs, labels)

    def evaluation(
        self, tensors: Tensors, inputs: Floats, labels: NDArray[np.int64]
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """`DenseNetwork.evaluation` of any number of records."""
        losses, right = [np.empty(0, np.float32)], [np.empty(0, np.bool_)]
        for count, found in self._each(inputs, labels, lambda some: self.network.evaluation(tensors, *some)):
            losses.append(found[0][:count])
            right.append(found[1][:count])
        return np.concatenate(losses), np.concatenate(right)

    def _each(
        self, inputs: Floats, labels: NDArray[np.int64], compute: Callable[[Some], Found]
    ) -> Iterator[tuple[int, Found]]:
        """What is found for a fixed number of rows at a time, and how many of them are records."""
        for start in range(0, len(labels), self.rows):
            some = slice(start, start + self.rows)
            count = len(labels[some])
            rows = np.zeros((self.rows, inputs.shape[1]), np.float32)
            rows[:count] = inputs[some]
            names = np.full(self.rows, _NO_LABEL, dtype=np.int64)
            names[:count] = labels[some]
            yield count, compute((rows, names))


@lru_cache(maxsize=64)
def _rows_for(network: DenseNetwork, shapes: tuple[tuple[str, tuple[int, ...]], ...], wanted: int) -> int:
    """Tried on made-up weights: those of a task may be zero, and then every order of adding up finds the same."""
    tensors = unflattened(_made_up(sum(int(np.prod(shape)) for _, shape in shapes)), dict(shapes))
    records = _made_up(_TRIALS * network.num_features).reshape(_TRIALS, -1)

    def alike(rows: int) -> bool:
        return all(
            _equal_rows(_computed(network, tensors, np.repeat(record[None], rows, axis=0), np.zeros(rows, np.int64)))
            for record in records
        )

    return rows_at_once(wanted, alike)


def _computed(network: DenseNetwork, tensors: Tensors, inputs: Floats, labels: NDArray[np.int64]) -> list[Floats]:
    layers = network.factors(tensors, inputs, labels)
    losses, _ = network.evaluation(tensors, inputs, labels)
    return [losses, *(part for layer in layers for part in (layer.inputs, layer.errors))]


def _equal_rows(parts: Sequence[Floats]) -> bool:
    """Whether every row holds the bits of the first."""
    return all(
        np.array_equal(part.view(np.uint32), np.broadcast_to(part[:1], part.shape).view(np.uint32)) for part in parts
    )


def _made_up(count: int) -> Floats:
    """Numbers from -1 to 1, all of them different."""
    spread = np.arange(1, count + 1) * _GOLDEN
    made_up: Floats = ((spread - np.floor(spread)) * 2 - 1).astype(np.float32)
    return made_up
