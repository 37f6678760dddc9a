"""Which records a device visits in which step: the order of the simulator, from a source nobody can predict.

An epoch is one shuffle, cut into batches. With halves, batch 0, 2, 4, … of an epoch belong to the first half
and 1, 3, 5, … to the second; later epochs reshuffle within each half, so that no record ever serves both.
The order is no release and needs no budget. It is secret all the same, unless a test asks for a seed.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from privacy.key_stream import KeyStream
from privacy.randomness import SeededSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from device_sdk.trainers.protocol import TrainingSettings


class Words(Protocol):
    """Where shuffles come from."""

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` uniform 64-bit words."""


class StreamOfWords:
    """Words of a key stream; without a seed under a key of the operating system's making."""

    def __init__(self, seed: int | None = None) -> None:
        key = secrets.token_bytes(32) if seed is None else SeededSource(f"batch-order:{seed}").key()
        self._stream = KeyStream(key)

    def words(self, count: int) -> NDArray[np.uint64]:
        drawn = np.empty(2 * count, dtype=np.uint32)
        self._stream.fill(drawn, np.zeros_like(drawn))
        return drawn.view(np.uint64)


@dataclass(frozen=True)
class Step:
    """The records of one batch, and the half that it belongs to."""

    records: NDArray[np.int64]
    first_half: bool


def steps(num_records: int, settings: TrainingSettings, source: Words) -> Iterator[Step]:
    """All steps of a training; one epoch's order is in memory at a time."""
    left = settings.steps_for(num_records)
    first: NDArray[np.int64] | None = None
    while left:
        order = np.argsort(source.words(num_records), kind="stable")
        if first is None:
            first = order
        elif settings.halves:
            order = _within_halves(first, order, settings.batch_size)
        for number, start in enumerate(range(0, num_records, settings.batch_size)[:left]):
            yield Step(order[start : start + settings.batch_size], first_half=number % 2 == 0)
            left -= 1


def _within_halves(first: NDArray[np.int64], order: NDArray[np.int64], batch_size: int) -> NDArray[np.int64]:
    """`first`, reshuffled by `order` so that each record stays in the half where it began."""
    half = np.arange(len(first)) // batch_size % 2
    mixed = np.empty_like(first)
    for member in (0, 1):
        places = np.flatnonzero(half == member)
        mixed[places] = first[places[np.argsort(order[places], kind="stable")]]
    return mixed
