"""The records of a simulated fleet: one big tensor that all devices point into.

A hundred thousand devices may exist; each costs an entry in a dictionary. Records are copied only for the
devices that take part, a chunk at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from server_kit.errors import InvalidSetting
from server_kit.simulation.training.record_products import RecordProducts

Rows = NDArray[np.int64]


class DeviceData:
    """Which rows of `x` [N, ...] and `y` [N] belong to which device.

    `rows` maps a device to a `range` or to a list of row numbers; devices may share rows. Floats are used as
    they are; stored integers (bytes of an image) become float32 times `scale` when a device takes part. Records must
    not change afterwards: what follows from them is kept.
    """

    def __init__(
        self, x: Tensor, y: Tensor, rows: Mapping[str, range | Sequence[int] | Rows], *, scale: float = 1.0
    ) -> None:
        if len(x) != len(y):
            raise InvalidSetting(f"{len(x)} inputs cannot have {len(y)} targets; nothing was kept")
        self.x, self.y, self.scale = x, y, scale
        self._elsewhere: dict[torch.device, DeviceData] = {}
        self._rows: dict[str, range | Rows] = {
            name: _row_numbers(name, chosen, len(x)) for name, chosen in rows.items()
        }

    @classmethod
    def equal_parts(cls, x: Tensor, y: Tensor, devices: int) -> DeviceData:
        """The rows dealt out in order, the same number to each device: "0", "1", …; a remainder is left over."""
        each = len(x) // devices
        return cls(x, y, {str(i): range(i * each, (i + 1) * each) for i in range(devices)})

    def on(self, where: torch.device) -> DeviceData:
        """The same records in the memory of another device, copied there once."""
        if self.x.device.type == where.type:
            return self
        if where not in self._elsewhere:
            self._elsewhere[where] = moved = copy.copy(self)
            moved.x, moved.y = self.x.to(where), self.y.to(where)
            moved.__dict__.pop("_products", None)  # these lie where the records lie
        return self._elsewhere[where]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __contains__(self, device: object) -> bool:
        return device in self._rows

    def count(self, device: str) -> int:
        """How many records the device has."""
        return len(self._of(device))

    def rows(self, device: str, local: Rows) -> Rows:
        """Row numbers in `x` of the device's records number `local`."""
        own = self._of(device)
        return local + own.start if isinstance(own, range) else own[local]

    def rows_of(self, devices: Sequence[str], local: Rows) -> Rows:
        """The same for many devices at once, [n, ...]; 0 for a device without records."""
        own = [self._of(device) for device in devices]
        if all(isinstance(rows, range) for rows in own):
            starts = [rows[0] if len(rows) else 0 for rows in own]
            return np.add(local, _beside(starts, local), dtype=np.int64)
        sizes = [len(rows) for rows in own]
        listed = np.concatenate([np.zeros(1, dtype=np.int64), *own])
        starts = [1 + before if size else 0 for size, before in zip(sizes, accumulate(sizes, initial=0), strict=False)]
        found: Rows = listed[local + _beside(starts, local)]
        return found

    def products(self, devices: Sequence[str], rows: Tensor, columns: Tensor, out: Tensor) -> Tensor | None:
        """Products of records, see `RecordProducts.read`; None where the fleet is too large to keep them."""
        if self._products is None:
            return None
        self._products.learn(devices, self._all_records)
        return self._products.read(devices, rows, columns, out)

    @cached_property
    def _products(self) -> RecordProducts | None:
        counts = {device: len(rows) for device, rows in self._rows.items()}
        return RecordProducts(counts, self.x.device) if RecordProducts.fit(counts) else None

    def _all_records(self, devices: Sequence[str]) -> Tensor:
        """Every record of devices that have equally many, [n, count, features]."""
        count = self.count(devices[0])
        local = np.broadcast_to(np.arange(count), (len(devices), count))
        rows = torch.from_numpy(self.rows_of(devices, local)).to(self.x.device).flatten()
        out = torch.empty(len(rows), self.x[0].numel(), device=self.x.device)
        return self.inputs(rows, out).view(len(devices), count, -1)

    def inputs(self, rows: Tensor, out: Tensor) -> Tensor:
        """The inputs in `rows` as float32, written into `out` [len(rows), features]."""
        if self.x.dtype == torch.float32 and self.scale == 1.0:
            return torch.index_select(self.x.view(len(self.x), -1), 0, rows, out=out)
        out.copy_(self.x.index_select(0, rows).view(len(rows), -1))
        return out.mul_(self.scale)

    def labels(self, rows: Tensor) -> Tensor:
        """The class of each of `rows`, in the shape of `rows`."""
        return torch.take(self.y, rows).to(torch.int64)

    def _of(self, device: str) -> range | Rows:
        try:
            return self._rows[device]
        except KeyError:
            raise InvalidSetting(f"device {device!r} has no data here; nothing was trained") from None


def _beside(numbers: Sequence[int], local: Rows) -> Rows:
    """One number for each device, in a shape that can be added to `local`."""
    return np.array(numbers, dtype=np.int64).reshape(-1, *[1] * (local.ndim - 1))


def _row_numbers(device: str, chosen: range | Sequence[int] | Rows, available: int) -> range | Rows:
    rows = chosen if isinstance(chosen, range) and chosen.step == 1 else np.asarray(chosen, dtype=np.int64)
    if len(rows):
        low, high = (rows[0], rows[-1]) if isinstance(rows, range) else (int(rows.min()), int(rows.max()))
        if low < 0 or high >= available:
            raise InvalidSetting(f"device {device!r} points outside the {available} rows there are; nothing was kept")
    return rows
