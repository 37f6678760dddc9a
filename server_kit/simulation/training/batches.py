"""Which records a device visits in which step.

The order follows from the draw of (seed, device, round) and the device's own records, so that it is the same
alone and in company. An epoch is one shuffle, cut into batches. With `halves`, batch 0, 2, 4, … of an epoch
belong to the first half and 1, 3, 5, … to the second; later epochs reshuffle within each half, so that no
record ever serves both. A single epoch is thereby the same with and without `halves`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from server_kit.simulation.training.devices import DeviceData
from server_kit.simulation.training.streams import Draw
from server_kit.simulation.training.task import LocalTask

Table = NDArray[np.int64]


def device_batches(records: int, task: LocalTask, draw: Draw) -> Table:
    """[steps, widest batch]: numbers of the records of each batch, -1 where a batch is shorter."""
    steps = task.steps_for(records)
    if steps == 0:
        return np.empty((0, 1), dtype=np.int64)
    if task.sampling == "poisson":
        return _poisson(records, steps, task.batch_size, draw)
    return _shuffled(records, steps, task, draw)


def _shuffled(records: int, steps: int, task: LocalTask, draw: Draw) -> Table:
    width = min(task.batch_size, records)
    per_epoch = math.ceil(records / width)
    epochs = math.ceil(steps / per_epoch)
    orders = draw.words("batches", epochs * records).reshape(epochs, records).argsort(axis=1, kind="stable")
    if task.halves:
        orders = _within_halves(orders, width)
    table = np.full((epochs, per_epoch * width), -1, dtype=np.int64)
    table[:, :records] = orders
    return table.reshape(-1, width)[:steps]


def _within_halves(orders: Table, width: int) -> Table:
    """Later epochs as reshuffles of the first that keep each record in the half where it began."""
    half = np.arange(orders.shape[1]) // width % 2
    kept = [orders[0]]
    for order in orders[1:]:
        mixed = np.empty_like(order)
        for member in (0, 1):
            places = np.flatnonzero(half == member)
            # Sorting by where a fresh shuffle put each place shuffles these places among themselves.
            mixed[places] = orders[0][places[np.argsort(order[places], kind="stable")]]
        kept.append(mixed)
    return np.stack(kept)


def _poisson(records: int, steps: int, batch_size: int, draw: Draw) -> Table:
    joins = np.ones((steps, records), dtype=bool)
    if batch_size < records:
        bound = np.uint64(2**64 * batch_size // records)
        joins = draw.words("poisson", steps * records).reshape(steps, records) < bound
    width = max(1, int(joins.sum(axis=1).max()))
    # A stable sort of "absent" brings those who joined to the front, in order.
    order = np.argsort(~joins, axis=1, kind="stable")[:, :width]
    return np.where(np.take_along_axis(joins, order, axis=1), order, -1)


@dataclass(frozen=True)
class Batches:
    """The batches of a chunk of n devices, side by side; devices with more steps come first.

    A place that a device does not fill repeats a record of the same batch with weight 0: what is not a
    number there is not a number for that device anyway, and nobody else sees it.
    """

    places: Tensor
    """[steps, n, width] int64: numbers of the device's own records."""
    rows: Tensor
    """[steps, n, width] int64: the same records as rows of all data."""
    weights: Tensor
    """[steps, n, width] float32: what a record's gradient counts for; 0 where there is no record."""
    active: tuple[int, ...]
    """How many devices, from the first, take each step."""
    first_half: Tensor
    """[steps, n] float32: 1 where the step belongs to the first half."""
    single_pass: bool
    """Whether no record is visited twice and batches follow each other in the order of `rows`."""


def stack(tables: list[Table], devices: list[str], data: DeviceData, task: LocalTask) -> Batches:
    """The batches of devices, which must come in order of falling numbers of steps."""
    steps, width = len(tables[0]), max(table.shape[1] for table in tables)
    table = np.full((len(tables), steps, width), -1, dtype=np.int64)
    for whole, own in zip(table, tables, strict=True):
        whole[: len(own), : own.shape[1]] = own
    present = table >= 0
    # The first record of a batch stands in for missing ones; the device's first one if a batch is empty.
    places = np.where(present, table, np.maximum(table[:, :, :1], 0))
    counts = np.array([data.count(device) for device in devices])
    rows = np.zeros_like(places)
    for whole, own, device, count in zip(rows, places, devices, counts, strict=True):
        if count:
            whole[:] = data.rows(device, own)
    own_steps = np.array([len(own) for own in tables])
    batch = np.minimum(task.batch_size, counts)
    return Batches(
        places=_time_first(places),
        rows=_time_first(rows),
        weights=_weights(_time_first(present), task),
        active=tuple((own_steps > np.arange(steps)[:, None]).sum(axis=1).tolist()),
        first_half=torch.from_numpy(_first_half(steps, counts, task)),
        single_pass=task.sampling == "shuffled" and bool((own_steps * batch <= counts + batch - (batch > 0)).all()),
    )


def _time_first(values: NDArray[np.int64] | NDArray[np.bool_]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values.transpose(1, 0, 2)))


def _weights(present: Tensor, task: LocalTask) -> Tensor:
    if task.is_private:
        return present.to(torch.float32).div_(task.batch_size)
    return present.to(torch.float32).div_(present.sum(dim=2, keepdim=True).clamp_min(1))


def _first_half(steps: int, counts: Table, task: LocalTask) -> NDArray[np.float32]:
    per_epoch = np.maximum(1, -(-counts // task.batch_size))
    first: NDArray[np.float32] = (np.arange(steps)[:, None] % per_epoch % 2 == 0).astype(np.float32)
    return first
