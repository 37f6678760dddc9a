"""The records of a training as the model takes them, a fixed number of rows at a time.

Records are read when they are needed, inside the mechanism: everything about one that cannot be read, because its
dataset raises or it has another shape or type, is private. It counts as zero, and nobody outside can tell. The form of
a record is public; it is declared, and never taken from a record.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from privacy.training.fixed_rows import NOBODY
from privacy.training.made_up import made_up_batch
from privacy.training.per_sample_clipping import Batch

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Items(Protocol):
    """Records by number; each is a pair of input and target."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any: ...


class Unreadable(Exception):
    """An item is not of the declared form."""


class Records:
    """Some rows at a time, filled up with a made-up record; `form` has no rows, only their shape and type."""

    def __init__(self, form: Batch, items: Batch | Items, *, unreadable: Callable[[], None]) -> None:
        self.form = Batch(form.inputs[:0], form.targets[:0])
        self._items = items
        self._unreadable = unreadable
        self._nobody = made_up_batch(self.form, 1)

    def __len__(self) -> int:
        return len(self._items)

    def rows(self, numbers: NDArray[np.int64]) -> tuple[Batch, Tensor]:
        """The records with these numbers, and which of them are there: nobody is not, nor what cannot be read."""
        if isinstance(self._items, Batch):
            present = torch.from_numpy(numbers != NOBODY)
            found = self._items.select(torch.from_numpy(np.maximum(numbers, 0))) if len(self) else None
            return (self.hidden(found, present) if found else self._filled(len(numbers))), present
        read = [None if number == NOBODY else self._read(number) for number in numbers.tolist()]
        return self._stacked(read), torch.tensor([item is not None for item in read])

    def hidden(self, batch: Batch, present: Tensor) -> Batch:
        """The batch with a made-up record in every row that is not present."""
        if present.all():
            return batch
        return Batch(
            _where(present, batch.inputs, self._nobody.inputs), _where(present, batch.targets, self._nobody.targets)
        )

    def _filled(self, rows: int) -> Batch:
        return Batch(self._nobody.inputs.repeat_interleave(rows, 0), self._nobody.targets.repeat_interleave(rows, 0))

    def _read(self, number: int) -> tuple[Tensor, Tensor] | None:
        try:
            return of_form(self._items[number], self.form)  # type: ignore[index]
        except MemoryError:
            raise
        except Exception:  # what a dataset may raise is not ours to list
            self._unreadable()
            return None

    def _stacked(self, read: list[tuple[Tensor, Tensor] | None]) -> Batch:
        nobody = (self._nobody.inputs[0], self._nobody.targets[0])
        inputs, targets = zip(*(nobody if item is None else item for item in read), strict=True)
        return Batch(torch.stack(inputs), torch.stack(targets))


def of_form(item: Any, form: Batch) -> tuple[Tensor, Tensor]:
    """An item as the two tensors that the form declares; `Unreadable` where it is something else."""
    given, wanted = tuple(item), (form.inputs, form.targets)
    if len(given) != len(wanted):
        raise Unreadable
    first, second = (_as_declared(part, like) for part, like in zip(given, wanted, strict=True))
    return first, second


def _as_declared(part: Any, like: Tensor) -> Tensor:
    tensor = torch.as_tensor(part)
    if tensor.shape != like.shape[1:] or tensor.is_floating_point() != like.is_floating_point():
        raise Unreadable
    return tensor.detach().to(like.device, like.dtype)


def _where(present: Tensor, rows: Tensor, nobody: Tensor) -> Tensor:
    chosen = present.to(rows.device).reshape(-1, *[1] * (rows.dim() - 1))
    return torch.where(chosen, rows, nobody)
