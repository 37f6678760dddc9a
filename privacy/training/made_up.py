"""Records that nobody has: the shape and type of the device's own, the contents of none.

Models are tried and timed on these, so that neither a refusal nor a choice of method can tell anything
about real records.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privacy.training.per_sample_clipping import Batch

_GOLDEN = 0.6180339887498949  # its multiples fill the unit interval evenly and never repeat


def made_up_batch(like: Batch, size: int, start: int = 0) -> Batch:
    """`size` records of the form of `like`, values from 0 to 1; batches with another `start` hold other records."""
    return Batch(_made_up(like.inputs, size, start), _made_up(like.targets, size, start))


def _made_up(like: Tensor, size: int, start: int) -> Tensor:
    count = math.prod(like.shape[1:])
    values = spread(size * count, 1 + start * count).reshape(size, *like.shape[1:])
    if like.is_floating_point():
        return values.to(like.dtype)
    # Labels and indices: 0 and 1 exist wherever there is something to tell apart.
    return (values > 0.5).to(like.dtype)


def spread(count: int, first: int) -> Tensor:
    """`count` numbers from 0 to 1, all of them different."""
    return (torch.arange(first, first + count, dtype=torch.float64) * _GOLDEN).frac()
