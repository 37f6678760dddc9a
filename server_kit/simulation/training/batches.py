"""Which records a device visits in which step.

The order follows from the draw of (seed, device, round) and the device's own records, so that it is the same
alone and in company. An epoch is one shuffle, cut into batches. With `halves`, batch 0, 2, 4, … of an epoch
belong to the first half and 1, 3, 5, … to the second; later epochs reshuffle within each half, so that no
record ever serves both. A single epoch is thereby the same with and without `halves`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from server_kit.local_task import LocalTask
from server_kit.simulation.training.devices import DeviceData
from server_kit.simulation.training.streams import Draw

Table = NDArray[np.int64]


def device_batches(records: int, task: LocalTask, draw: Draw) -> Table:
    """[steps, widest batch]: numbers of the records of each batch, -1 where a batch is shorter."""
    own: Table = equal_batches(records, task, [draw])[0]
    return own


def equal_batches(records: int, task: LocalTask, draws: Sequence[Draw]) -> Table:
    """The same for devices that have equally many records, [n, steps, widest batch]; faster than one by one."""
    steps = task.steps_for(records)
    if steps == 0:
        return np.empty((len(draws), 0, 1), dtype=np.int64)
    if task.sampling == "poisson":
        return _poisson(records, steps, task.batch_size, draws)
    return _shuffled(records, steps, task, draws)


def _shuffled(records: int, steps: int, task: LocalTask, draws: Sequence[Draw]) -> Table:
    width = min(task.batch_size, records)
    per_epoch = math.ceil(records / width)
    epochs = math.ceil(steps / per_epoch)
    words = np.concatenate([draw.words("batches", epochs * records) for draw in draws])
    orders = words.reshape(len(draws), epochs, records).argsort(axis=2, kind="stable")
    if task.halves:
        orders = np.stack([_within_halves(own, width) for own in orders])
    table = np.full((len(draws), epochs, per_epoch * width), -1, dtype=np.int64)
    table[:, :, :records] = orders
    return table.reshape(len(draws), -1, width)[:, :steps]


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


def _poisson(records: int, steps: int, batch_size: int, draws: Sequence[Draw]) -> Table:
    joins = np.ones((len(draws), steps, records), dtype=bool)
    if batch_size < records:
        bound = np.uint64(2**64 * batch_size // records)
        words = np.concatenate([draw.words("poisson", steps * records) for draw in draws])
        joins = words.reshape(joins.shape) < bound
    sizes = joins.sum(axis=2)
    width = max(1, int(sizes.max()))
    table = np.full((len(draws), steps, width), -1, dtype=np.int64)
    # Both sides in the same order: step by step, the records of a batch from the first to the last.
    table[np.arange(width) < sizes[:, :, None]] = np.nonzero(joins)[2]
    return table


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


def stack(devices: Sequence[str], draws: Sequence[Draw], data: DeviceData, task: LocalTask) -> Batches:
    """The batches of devices, which must come in order of falling numbers of steps."""
    counts = np.array([data.count(device) for device in devices])
    table = _side_by_side(counts, task, draws)
    present = table >= 0
    # The first record of a batch stands in for missing ones; the device's first one if a batch is empty.
    places = np.where(present, table, np.maximum(table[:, :, :1], 0))
    own_steps = np.array([task.steps_for(count) for count in counts.tolist()])
    batch = np.minimum(task.batch_size, counts)
    where = data.x.device
    return Batches(
        places=_time_first(places).to(where),
        rows=_time_first(data.rows_of(devices, places)).to(where),
        weights=_weights(_time_first(present).to(where), task),
        active=tuple((own_steps > np.arange(table.shape[1])[:, None]).sum(axis=1).tolist()),
        first_half=torch.from_numpy(_first_half(table.shape[1], counts, task)).to(where),
        single_pass=task.sampling == "shuffled" and bool((own_steps * batch <= counts + batch - (batch > 0)).all()),
    )


def _side_by_side(counts: Table, task: LocalTask, draws: Sequence[Draw]) -> Table:
    """[n, most steps, widest batch], -1 where a device has no record."""
    tables = []
    start = 0
    for count, members in groupby(counts.tolist()):
        stop = start + len(list(members))
        tables.append(equal_batches(count, task, draws[start:stop]))
        start = stop
    if len(tables) == 1:
        return tables[0]
    steps, width = (max(table.shape[side] for table in tables) for side in (1, 2))
    whole = np.full((start, steps, width), -1, dtype=np.int64)
    start = 0
    for table in tables:
        whole[start : start + len(table), : table.shape[1], : table.shape[2]] = table
        start += len(table)
    return whole


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
