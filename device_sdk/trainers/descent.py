"""What is done with a gradient once it is there: mask, proximal term, momentum, step. One rule for all trainers.

It works on one flat vector, NumPy's or torch's: both know `+=`, and a rule written once cannot differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from device_sdk.trainers.protocol import TrainingSettings

Vector = Any  # a NumPy array or a torch tensor, floating point, one dimension


class Descent:
    """Moves `weights` in place, away from a copy of them that the proximal term pulls back to."""

    def __init__(self, settings: TrainingSettings, weights: Vector, start: Vector, mask: Vector | None) -> None:
        self._settings, self._start, self._mask = settings, start, mask
        self._weights = weights
        self._whole = _Path(settings, weights, start)
        # The rule is linear: fed with the gradients of one half alone, it tells what that half contributed.
        self._half = _Path(settings, weights - weights, start - start) if settings.halves else None

    def step(self, gradient: Vector, *, first_half: bool) -> None:
        """One step; `gradient` is overwritten."""
        if self._mask is not None:
            gradient *= self._mask
        if self._half is not None:
            self._half.move(gradient * float(first_half))
        self._whole.move(gradient)

    @property
    def update(self) -> Vector:
        """Trained minus initial weights."""
        return self._weights - self._start

    @property
    def halves(self) -> tuple[Vector, Vector] | None:
        """What either half contributed."""
        return None if self._half is None else (self._half.place, self.update - self._half.place)


class _Path:
    """Where gradients lead from `origin`."""

    def __init__(self, settings: TrainingSettings, place: Vector, origin: Vector) -> None:
        self._settings = settings
        self.place, self._origin = place, origin
        self._velocity: Vector | None = None

    def move(self, gradient: Vector) -> None:
        if self._settings.proximal:
            gradient += (self.place - self._origin) * self._settings.proximal
        if self._settings.momentum:
            if self._velocity is not None:
                gradient += self._velocity * self._settings.momentum
            self._velocity = gradient * 1.0  # a copy: the caller uses its vector again
        self.place -= gradient * self._settings.learning_rate
