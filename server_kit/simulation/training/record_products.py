"""Products of each device's records with each other, kept from round to round: records stay, so these stay too.

Training in row space needs them in every round. They are worked out when a device first takes part, from its
records in its own order, so that they do not depend on who else took part or on when.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

_MOST_BYTES = 1 << 28  # of all devices together; a larger fleet works them out anew in each round
_BYTES = 4  # of a product


class RecordProducts:
    """x_r·x_s + 1 for all records r and s of a device; the one is what a bias sees.

    Workers may ask at the same time: a device that two of them work out gets the same numbers twice.
    """

    def __init__(self, counts: Mapping[str, int], where: torch.device) -> None:
        self._counts = counts
        self._starts: dict[str, int] = {}
        size = 0
        for device, count in counts.items():
            self._starts[device] = size
            size += count**2
        self._values = torch.empty(size, device=where)  # pages that nobody writes to cost nothing
        self._known: set[str] = set()

    @staticmethod
    def fit(counts: Mapping[str, int]) -> bool:
        """Whether the products of a whole fleet are few enough to keep."""
        return sum(count**2 for count in counts.values()) * _BYTES <= _MOST_BYTES

    def learn(self, devices: Sequence[str], records: Callable[[Sequence[str]], Tensor]) -> None:
        """Work out what is not known yet; `records` fetches those of devices that have equally many, [n, count, in]."""
        unknown = sorted((device for device in set(devices) if device not in self._known), key=self._order)
        for count, alike in groupby(unknown, key=self._counts.__getitem__):
            some = list(alike)
            own = records(some)
            products = torch.bmm(own, own.transpose(1, 2)).add_(1).flatten(1)
            for device, values in zip(some, products, strict=True):
                self._values[self._starts[device] :][: count**2] = values
        self._known.update(unknown)

    def _order(self, device: str) -> tuple[int, int]:
        return self._counts[device], self._starts[device]

    def read(self, devices: Sequence[str], rows: Tensor, columns: Tensor, out: Tensor) -> Tensor:
        """Into `out` [n, r, c]: of records number `rows` [n, r] with records number `columns` [n, c] of each device."""
        where = self._values.device
        starts = torch.tensor([self._starts[device] for device in devices], device=where)
        counts = torch.tensor([self._counts[device] for device in devices], device=where)
        # Half as wide as usual, and thereby twice as fast; `_MOST_BYTES` keeps every number small enough.
        firsts = (rows * counts.unsqueeze(1) + starts.unsqueeze(1)).int().unsqueeze(2)
        places = firsts + columns.int().unsqueeze(1)
        torch.index_select(self._values, 0, places.flatten(), out=out.flatten())
        return out
