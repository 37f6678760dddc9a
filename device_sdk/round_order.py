"""The order of a training round, read: the task as it came over the wire."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from device_sdk.wire.codec import decode
from device_sdk.wire.messages import Task

if TYPE_CHECKING:
    from device_sdk.round_record import Round

_MOST_READ = 128


def task_of(entry: Round) -> Task:
    """The task that a round of training does."""
    return _read(entry.order)


@lru_cache(maxsize=_MOST_READ)  # asked for at every step of a round, and for all that wait for feedback
def _read(order: bytes) -> Task:
    return decode(Task, order)
