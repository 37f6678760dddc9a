"""The device's records as torch takes them: two tensors, or a dataset that is asked item by item."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from device_sdk.trainers.errors import InvalidSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pair = tuple[Tensor, Tensor]


class Records(Protocol):
    """Inputs and targets, record by record in the first dimension."""

    def __len__(self) -> int: ...

    def batch(self, chosen: NDArray[np.int64]) -> Pair:
        """The records with these numbers."""

    def everything(self) -> Pair:
        """All records."""


class TensorRecords:
    """Two tensors in memory."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        if not inputs.dim() or not targets.dim() or len(inputs) != len(targets):
            raise InvalidSettings("inputs and targets must have one row for each record; nothing was kept")
        self._inputs, self._targets = inputs, targets

    def __len__(self) -> int:
        return len(self._targets)

    def batch(self, chosen: NDArray[np.int64]) -> Pair:
        rows = torch.from_numpy(chosen)
        return self._inputs[rows.to(self._inputs.device)], self._targets[rows.to(self._targets.device)]

    def everything(self) -> Pair:
        return self._inputs, self._targets


class ItemRecords:
    """A dataset that is read as it is needed; each item is a pair of input and target."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def batch(self, chosen: Sequence[int] | NDArray[np.int64]) -> Pair:
        inputs, targets = default_collate([self._items[int(number)] for number in chosen])
        return inputs, targets

    def everything(self) -> Pair:
        return self.batch(range(len(self)))


def records_of(dataset: Dataset[Any] | Sequence[Any]) -> Records:
    """`dataset` is a pair (inputs, targets) of tensors or arrays, a TensorDataset, or any dataset with a length."""
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return TensorRecords(*dataset.tensors)
    if isinstance(dataset, tuple) and len(dataset) == 2:
        return TensorRecords(*(torch.as_tensor(part) for part in dataset))
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InvalidSettings(
            "records are visited in a secret order, so the dataset needs a length and items by number; "
            "give (inputs, targets) or a map-style dataset; nothing was kept"
        )
    return ItemRecords(dataset)
