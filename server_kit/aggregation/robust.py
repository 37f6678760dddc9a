"""Aggregation that a few dishonest devices cannot steer: medians, trimmed means, bounded norms.

A median or a trimmed mean looks at one coordinate of all updates at a time. The updates are read in blocks of
coordinates, so a round of any number of devices takes the memory of a few models (`InParts`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch

from server_kit.aggregation.streaming import blocks_of, moved
from server_kit.errors import InvalidSetting
from server_kit.interfaces import Aggregator, Update, has_parts, in_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from server_kit.interfaces import Memory, Updates

    Block = NDArray[np.float32]
    """[coordinates, devices], the values of a coordinate in ascending order."""
    Combine = Callable[[Block], torch.Tensor]

_MOST_VALUES = 1 << 24  # of one block where every block is another pass over whole updates (64 MiB of float32)
_FEWEST_VALUES = 1 << 21  # of one block where parts can be read; half a model if that is more
_AT_ONCE = 1 << 18  # values that are held in float64 beside their block
_FEWEST = 3
"""With fewer updates there is no telling which of them is false."""


@dataclass(frozen=True)
class CoordinateMedian:
    """Each coordinate moves by the median of what the devices say (Yin et al. 2018).

    Reads the updates once for each block of coordinates, so that memory stays bounded.
    """

    reads_again: ClassVar[bool] = True

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        del memory
        return _moved_by_block(model, updates, _median)


@dataclass(frozen=True)
class TrimmedMean:
    """Each coordinate moves by the mean without the `share` largest and smallest values (Yin et al. 2018)."""

    reads_again: ClassVar[bool] = True
    share: float = 0.1

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        del memory
        return _moved_by_block(model, updates, self._trimmed)

    def _trimmed(self, block: Block) -> torch.Tensor:
        devices = block.shape[1]
        return _middle_mean(block, min(int(self.share * devices), (devices - 1) // 2))


@dataclass(frozen=True)
class Guarded:
    """The rule inside gets one update, in which few devices count for little: a robust centre of all of them.

    In each coordinate `trimmed_mean` leaves out the `trim` largest and smallest values, one of three at the least, and
    `coordinate_median` all but the middle. For rules that want a mean of their updates and nothing else: FedAvg,
    FedYogi, FedBuff (whose discount for staleness comes first). Weights are what devices claim: none is believed.
    """

    inner: Aggregator
    centre: Literal["trimmed_mean", "coordinate_median"] = "trimmed_mean"
    trim: float = 0.25
    reads_again: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.trim < 0.5:
            raise InvalidSetting(f"trim must be at least 0 and below 0.5, got {self.trim}; nothing was started")
        if not wants_a_mean(self.inner):
            raise InvalidSetting(
                f"{type(self.inner).__name__} wants more than a mean of its updates, so that no centre can stand for "
                "them; use a norm bound instead; nothing was started"
            )

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        return self.inner.aggregate(model, _Centre(self, updates, model), memory)

    def cut(self, devices: int) -> int:
        """How many values are left out at either end."""
        if devices < _FEWEST:
            return 0
        if self.centre == "coordinate_median":
            return (devices - 1) // 2
        return min(max(1, int(self.trim * devices)), (devices - 1) // 2)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the rule inside can do."""
        return _of_inner(self, name)


def wants_a_mean(aggregator: Aggregator) -> bool:
    """Whether a rule needs nothing of a round but some mean of its updates."""
    return bool(getattr(aggregator, "of_a_mean", False)) and not isinstance(aggregator, Guarded)


@dataclass(frozen=True)
class NormBound:
    """No update longer than `bound` reaches the aggregator inside (Sun et al. 2019).

    Longer ones are shortened. Without a bound, to the median length of the round's updates.
    """

    inner: Aggregator
    bound: float | None = None

    @property
    def reads_again(self) -> bool:
        return self.bound is None or bool(getattr(self.inner, "reads_again", False))

    def aggregate(self, model: torch.Tensor, updates: Updates, memory: Memory) -> torch.Tensor:
        return self.inner.aggregate(model, _Bounded(updates, self.bound), memory)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the rule inside can do (CASA tells how far an arrival moves the model)."""
        return _of_inner(self, name)


def _of_inner(outer: Any, name: str) -> Any:
    if name.startswith("__") or name == "inner":
        raise AttributeError(name)
    return getattr(outer.inner, name)


class _Bounded:
    """Updates of which none is too long."""

    def __init__(self, updates: Updates, bound: float | None) -> None:
        self._updates, self._bound = updates, bound
        self._factors: Sequence[float] | None = None

    def __len__(self) -> int:
        return len(self._updates)

    def __iter__(self) -> Iterator[Update]:
        if self._bound is None:
            self._bound = _median_length(self._updates)
        factors = []
        for update in self._updates:
            factor = self._factor(update)
            factors.append(factor)
            shortened = update if factor == 1 else replace(update, delta=update.delta * factor)
            # Not kept while the next is read.
            del update
            yield shortened
            del shortened
        # Whoever reads parts next need not read all of them for it.
        self._factors = factors

    @property
    def has_parts(self) -> bool:
        return has_parts(self._updates)

    def parts(self, start: int, stop: int) -> Iterator[torch.Tensor]:
        if self._bound is None:
            self._bound = _median_length(self._updates)
        if self._factors is None:
            self._factors = [self._factor(update) for update in self._updates]
        found = zip(in_parts(self._updates, start, stop), self._factors, strict=True)
        return (part if factor == 1 else part * factor for part, factor in found)

    def _factor(self, update: Update) -> float:
        length = _length(update.delta)
        return 1.0 if self._bound is None or length <= self._bound else self._bound / length


def _length(delta: torch.Tensor) -> float:
    """Block by block: another vector of double precision would be two models more."""
    return math.hypot(*(float(part.double().norm()) for part in blocks_of(delta)))


def _median_length(updates: Updates) -> float:
    lengths = sorted(_length(update.delta) for update in updates)
    return lengths[len(lengths) // 2] if lengths else 0.0


@dataclass(frozen=True)
class _Centre:
    """All updates as one. It is worked out when it is read, and not kept."""

    guard: Guarded
    updates: Updates
    model: torch.Tensor

    def __len__(self) -> int:
        return 1 if len(self.updates) else 0

    def __iter__(self) -> Iterator[Update]:
        discount = getattr(self.guard.inner, "discount", None)
        factors = [1.0 if discount is None else discount(update.staleness) for update in self.updates]
        if factors:
            yield Update("", self._centre(factors))

    def _centre(self, factors: Sequence[float]) -> torch.Tensor:
        centre, cut = torch.empty_like(self.model), self.guard.cut(len(factors))
        _fill(centre, self.updates, len(factors), lambda block: _middle_mean(block, cut), factors)
        return centre


def _moved_by_block(model: torch.Tensor, updates: Updates, combine: Combine) -> torch.Tensor:
    devices = len(updates)
    if not devices:
        return model.clone()
    step = torch.empty(len(model), dtype=torch.float64, device=model.device)
    _fill(step, updates, devices, combine)
    return moved(model, step)


def _fill(
    result: torch.Tensor, updates: Updates, devices: int, combine: Combine, factors: Sequence[float] | None = None
) -> None:
    """Combine the values of each coordinate, block by block."""
    size = len(result)
    values = max(_FEWEST_VALUES, size // 2) if has_parts(updates) else _MOST_VALUES
    width = max(1, min(size, values // devices))
    room = np.empty((width, devices), dtype=np.float32)
    for start in range(0, size, width):
        stop = min(start + width, size)
        block = room[: stop - start]
        for device, part in enumerate(in_parts(updates, start, stop)):
            # A copy: a view would keep the whole update, and a stream may write over it.
            block[:, device] = part.numpy(force=True)
            if factors is not None and factors[device] != 1:
                block[:, device] *= factors[device]
        block.sort(axis=1)
        few = max(1, _AT_ONCE // devices)
        for first in range(0, len(block), few):
            some = block[first : first + few]
            result[start + first : start + first + len(some)] = combine(some)


def _middle_mean(block: Block, cut: int) -> torch.Tensor:
    """Without the first and the last `cut` of each row."""
    kept = block[:, cut : block.shape[1] - cut]
    return torch.from_numpy(np.ascontiguousarray(kept.T, dtype=np.float64)).mean(dim=0)


def _median(block: Block) -> torch.Tensor:
    return _middle_mean(block, (block.shape[1] - 1) // 2)
