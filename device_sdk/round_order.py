"""The order of a training round, written and read: the task as it came over the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from device_sdk.wire.codec import decode, encode
from device_sdk.wire.messages import Task

if TYPE_CHECKING:
    from device_sdk.round_record import Round

_MOST_KNOWN = 128
_known: dict[bytes, Task] = {}
"""Asked for at every step of a round, and for all that wait for feedback. The same bytes always mean the same task."""


def order_of(task: Task) -> bytes:
    """What the journal keeps of a task."""
    order = encode(task)
    _remember(order, task)
    return order


def task_of(entry: Round) -> Task:
    """The task that a round of training does."""
    known = _known.get(entry.order)
    if known is None:
        known = decode(Task, entry.order)
        _remember(entry.order, known)
    return known


def _remember(order: bytes, task: Task) -> None:
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[order] = task
