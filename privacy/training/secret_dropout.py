"""Dropout whose masks nobody can know.

Torch draws masks from a generator that scripts like to seed, and row by row: one record more in a batch
hands all records after it the masks of others. To someone who knows the seed, one record then changes
the gradients of all, and clipping bounds nothing. With masks from the device's own random source each
record has a fresh one whoever else is in its batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from privacy.key_stream import KeyStream

_WORD = 32
# Dropout of single values, and of whole channels.
_KINDS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class SecretDropout(nn.Module):
    """Stands in for one of torch's dropout layers; lets everything pass until it is given a key stream."""

    def __init__(self, p: float, *, channels: bool) -> None:
        super().__init__()
        self.p = p
        self.channels = channels
        self.stream: KeyStream | None = None

    def forward(self, values: Tensor) -> Tensor:
        if self.stream is None or not self.training:
            return values
        shape = (*values.shape[:2], *[1] * (values.dim() - 2)) if self.channels else values.shape
        words = np.empty(shape, dtype=np.uint32)
        self.stream.fill(words.reshape(-1), np.zeros(words.size, dtype=np.uint32))
        kept = torch.from_numpy(words >= int(self.p * 2**_WORD)).to(values.device)
        return values * kept / max(1 - self.p, 2.0**-_WORD)


def replace_dropout(model: nn.Module) -> list[SecretDropout]:
    """Put a `SecretDropout` in the place of every dropout layer of `model`; returns them all."""
    replaced = []
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, _KINDS) and type(child) in _KINDS:  # what a subclass changes is unknown
                secret = SecretDropout(child.p, channels=type(child) is not nn.Dropout)
                setattr(parent, name, secret)
                replaced.append(secret)
    return replaced
