"""The records that devices visit at all: of a Poisson sample of one epoch every third one is never met."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from server_kit.simulation.training.batches import Batches


@dataclass(frozen=True)
class Visited:
    """What is left of a chunk's records without those that no step visits."""

    numbers: Tensor
    """[n, most] int64: numbers of the device's own records, in their order; then the first of them again."""
    counts: tuple[int, ...]
    """How many there are of each device; the rest is padding."""
    batches: Batches
    """The same batches, with places among `numbers`."""


def visited(batches: Batches) -> Visited:
    """Leave out what is never visited. What remains of a device does not depend on its company."""
    steps, n, width = batches.places.shape
    places = batches.places.transpose(0, 1).flatten(1)
    present = batches.weights.transpose(0, 1).flatten(1) > 0
    met = torch.zeros(n, int(places.max()) + 1 if places.numel() else 1, dtype=torch.int32, device=places.device)
    met.scatter_add_(1, places, present.int())
    found = met > 0
    counts = found.sum(dim=1)
    order = torch.sort(~found, dim=1, stable=True).indices[:, : max(1, int(counts.max()))]
    numbers = torch.where(torch.arange(order.shape[1], device=order.device) < counts.unsqueeze(1), order, order[:, :1])
    # A place without a record repeats one of its batch, or stands for none; then it becomes the first that is visited.
    among = (found.cumsum(dim=1) - 1).clamp_min_(0)
    renumbered = among.gather(1, places).view(n, steps, width).transpose(0, 1).contiguous()
    return Visited(numbers, tuple(counts.tolist()), replace(batches, places=renumbered))
