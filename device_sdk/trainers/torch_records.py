"""The device's records as torch takes them: two tensors, or a dataset that is asked item by item.

The form of a record, its shape and type, is public and has to be known before a record is read. Tensors have one. Of a
dataset it is what the app declares by an example, or what a model whose first layer is dense, and whose loss is over
classes, tells by itself. It is never taken from an item: one odd record would then change what all others count for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from device_sdk.trainers.errors import InvalidSettings
from privacy.training.per_sample_clipping import Batch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Pair = tuple[Tensor, Tensor]


class Records(Protocol):
    """Inputs and targets, record by record in the first dimension."""

    def __len__(self) -> int: ...

    def batch(self, chosen: NDArray[np.int64]) -> Pair:
        """The records with these numbers."""

    def form(self) -> Batch | None:
        """The declared form of a record, a batch without rows; None where nobody has declared one."""

    def items(self) -> Any:
        """What is read record by record: a batch of all, or whatever has a length and items by number."""


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

    def form(self) -> Batch:
        return Batch(self._inputs[:0], self._targets[:0])

    def items(self) -> Batch:
        return Batch(self._inputs, self._targets)


class ItemRecords:
    """A dataset that is read as it is needed; each item is a pair of input and target."""

    def __init__(self, items: Any, form: Batch | None) -> None:
        self._items, self._form = items, form

    def __len__(self) -> int:
        return len(self._items)

    def batch(self, chosen: Sequence[int] | NDArray[np.int64]) -> Pair:
        inputs, targets = default_collate([self._items[int(number)] for number in chosen])
        return inputs, targets

    def form(self) -> Batch | None:
        return self._form

    def items(self) -> Any:
        return self._items


def records_of(dataset: Dataset[Any] | Sequence[Any], form: Batch | None = None) -> Records:
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
    return ItemRecords(dataset, form)


def form_of_example(example: Sequence[Any]) -> Batch:
    """The form of an example (input, target); its values do not matter."""
    inputs, targets = (torch.as_tensor(part) for part in example)
    return Batch(inputs.unsqueeze(0)[:0], targets.unsqueeze(0)[:0])


def form_of_model(model: nn.Module, loss: object) -> Batch | None:
    """The form that a dense first layer and a loss over classes ask for; None where they do not tell."""
    first = next(iter(model.children()), None) if isinstance(model, nn.Sequential) else model
    if type(first) is not nn.Linear or not isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return None
    return Batch(torch.empty(0, first.in_features, dtype=first.weight.dtype), torch.empty(0, dtype=torch.int64))
