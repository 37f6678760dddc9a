"""Torch's global generators, as the app left them: training must not change what the app draws next.

Dropout layers draw from secret streams instead (`privacy.training.secret_dropout`); this is for models and
datasets that draw by themselves. Generators are global: an app that draws from them in another thread while it
trains with such a model should use a generator of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class GeneratorsAside:
    """Sets the app's generators aside; what draws meanwhile goes on where it stopped the last time."""

    def __init__(self) -> None:
        self._own: list[Tensor] | None = None

    @contextmanager
    def while_training_on(self, device: torch.device) -> Iterator[None]:
        """Within, torch's generators are the trainer's; afterwards they are the app's again."""
        apps = _states(device)
        before = apps if self._own is None or len(self._own) != len(apps) else self._own
        if before is not apps:
            _set(before, device)
        try:
            yield
        finally:
            after = _states(device)
            drawn = not all(torch.equal(then, now) for then, now in zip(before, after, strict=True))
            if drawn:
                self._own = after
            if drawn or before is not apps:
                _set(apps, device)


def _states(device: torch.device) -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _set(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
