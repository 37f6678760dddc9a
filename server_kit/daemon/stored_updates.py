"""Updates as the store keeps them, read one at a time into float32: a round takes the memory of a few models."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from device_sdk.wire.codec import decode
from device_sdk.wire.errors import PayloadMismatch
from device_sdk.wire.messages import Task
from device_sdk.wire.task_terms import mechanism_of, read_mask, shapes_of
from device_sdk.wire.tensors import read_model
from privacy.packing import unpack_array
from server_kit.errors import CorruptRecord, ServerError
from server_kit.interfaces import Update, Updates
from server_kit.round import Ticket

if TYPE_CHECKING:
    from server_kit.daemon.model_shelf import ModelShelf
    from server_kit.interfaces import DeviceId
    from server_kit.layout import Layout
    from server_kit.store.protocol import Payload, Rounds, Store, TaskRecord

log = logging.getLogger("covey.server")


@dataclass(frozen=True)
class StoredUpdates:
    """The shelf of one cohort's worker (`round.Shelf`): the tasks whose updates lie in the store."""

    store: Rounds
    models: ModelShelf
    layout: Layout
    device: str
    tasks: Mapping[Ticket, TaskRecord]
    """Where there are no rounds a device may have answered twice since the last model: a ticket says when it began."""
    needs_base: bool = False
    """Whether the aggregator mixes whole models, so that a late update needs the one it started from."""
    losses: Mapping[DeviceId, float] | None = None

    def read(self, tickets: Sequence[Ticket]) -> Updates:
        return _Reading(self, tickets)

    def update(self, ticket: Ticket) -> Update:
        record = self.tasks[ticket]
        task = decode(Task, record.message)
        return Update(
            ticket.device,
            read_update(self.store, record, task, self.layout).to(self.device),
            base_version=ticket.base_version,
            staleness=ticket.staleness,
            loss=None if self.losses is None else self.losses.get(ticket.device),
            steps=task.objective.steps or 0,
            base=self._base(task) if self.needs_base and ticket.staleness else None,
            mask=self._mask(task),
        )

    def part(self, ticket: Ticket, start: int, stop: int) -> torch.Tensor:
        """Some coordinates of an update; the rest of it is not opened."""
        record = self.tasks[ticket]
        task, payload = decode(Task, record.message), self.store.payload(record.task)
        return decoded_part(task, payload, self.layout, start, stop)

    def _base(self, task: Task) -> torch.Tensor | None:
        content = self.models.find(task.model.blob.sha256)
        if content is None:
            return None
        tensors = read_model(content, task.model.tensors)
        return self.layout.pack({name: torch.from_numpy(each.copy()) for name, each in tensors.items()}).to(self.device)

    def _mask(self, task: Task) -> torch.Tensor | None:
        if task.objective.mask is None or (content := self.models.find(task.objective.mask.sha256)) is None:
            return None
        bits = read_mask(content, shapes_of(task))
        return torch.cat([torch.from_numpy(bits[name].reshape(-1)) for name, _ in self.layout.tensors]).to(self.device)


@dataclass(frozen=True)
class _Reading:
    shelf: StoredUpdates
    tickets: Sequence[Ticket]

    def __len__(self) -> int:
        return len(self.tickets)

    def __iter__(self) -> Iterator[Update]:
        return map(self.shelf.update, self.tickets)

    @property
    def has_parts(self) -> bool:
        return True

    def parts(self, start: int, stop: int) -> Iterator[torch.Tensor]:
        return (self.shelf.part(ticket, start, stop) for ticket in self.tickets)


class UnreadableUpdate(ServerError):
    """The bytes of a stored update are not those of its task; nothing was folded."""

    def __init__(self, record: TaskRecord) -> None:
        super().__init__(f"the stored update of task {record.task} cannot be read; it was left out")
        self.record = record


def read_update(store: Rounds, record: TaskRecord, task: Task, layout: Layout) -> torch.Tensor:
    """A stored update as one float32 vector; `UnreadableUpdate` for bytes that say nothing."""
    try:
        return decoded(task, store.payload(record.task), layout)
    except (CorruptRecord, PayloadMismatch, ValueError, ArithmeticError) as error:
        raise UnreadableUpdate(record) from error


def count_unreadable(store: Store, fault: UnreadableUpdate, now_seconds: float) -> None:
    """The device is to be known by it."""
    log.warning("a stored update was left out: %s", fault, extra={"device": fault.record.device})
    store.count_refusal("unreadable update", fault.record.device, now_seconds)


def decoded(task: Task, payload: Payload, layout: Layout) -> torch.Tensor:
    """An update as one float32 vector in the order of `layout`; the bytes come in pieces, sorted by tensor name."""
    mechanism, flat = mechanism_of(task), np.empty(layout.size, dtype=np.float32)
    if payload.size_bytes != layout.size * mechanism.width_bytes:
        raise PayloadMismatch("an update has not the size of its task; it was not folded")
    step = mechanism.step
    places = [layout.places[name][:2] for name in sorted(layout.places)]
    position = 0
    for values in _integers(payload, layout.size):
        _put(flat, places, position, (values * step).astype(np.float32))
        position += len(values)
    return torch.from_numpy(flat)


def decoded_part(task: Task, payload: Payload, layout: Layout, start: int, stop: int) -> torch.Tensor:
    """The coordinates from `start` to `stop` of what `decoded` gives."""
    step, width = mechanism_of(task).step, payload.size_bytes // max(1, layout.size)
    part, begin = np.empty(stop - start, dtype=np.float32), 0
    for name in sorted(layout.places):
        first, last, _ = layout.places[name]
        low, high = max(first, start), min(last, stop)
        if low < high:
            content = payload.part((begin + low - first) * width, (begin + high - first) * width)
            part[low - start : high - start] = unpack_array(content, high - low, width) * step
        begin += last - first
    return torch.from_numpy(part)


def _integers(payload: Payload, count: int) -> Iterator[np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """The numbers in a payload, some at a time; a number may lie across two pieces."""
    width, rest = payload.size_bytes // max(1, count), b""
    for piece in payload.pieces():
        held = rest + piece
        whole = len(held) // width
        rest = held[whole * width :]
        yield unpack_array(held[: whole * width], whole, width)


def _put(
    flat: np.ndarray[tuple[int], np.dtype[np.float32]],
    places: Sequence[tuple[int, int]],
    position: int,
    values: np.ndarray[tuple[int], np.dtype[np.float32]],
) -> None:
    """Write numbers that follow each other in the order of `places`, beginning at the `position`-th."""
    begin = 0
    for start, stop in places:
        size = stop - start
        low, high = max(position, begin), min(position + len(values), begin + size)
        if low < high:
            flat[start + low - begin : start + high - begin] = values[low - position : high - position]
        begin += size
