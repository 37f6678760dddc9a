"""Which devices train side by side, and which of two ways is faster for them.

Devices are grouped by the model they start from and sorted by their number of steps, so that a chunk pads
little and those that finish early are always its last. None of this changes a result beyond rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise

from server_kit.local_task import LocalTask
from server_kit.simulation.training.cuts import Alike, cheapest_parts
from server_kit.simulation.training.devices import DeviceData
from server_kit.simulation.training.module_spec import ModuleSpec
from server_kit.simulation.training.specs import Cnn, StackedSpec

# Multiplications per second differ: writing a layer's weights in every step waits for memory. Measured.
_DIRECT_HANDICAP = 1.6
_NOISE_COST = 30  # multiplications in the time of one draw
_MOST_RECORDS = 512  # of one device in row space: their products with each other must stay small


@dataclass(frozen=True)
class Group:
    """Devices, by their position in what was asked for, that form one chunk."""

    positions: tuple[int, ...]
    row_space: bool


def prefers_row_space(spec: StackedSpec | ModuleSpec, records: int, task: LocalTask) -> bool:
    """Whether a device of so many records trains faster in row space, by counting multiplications."""
    if isinstance(spec, Cnn | ModuleSpec) or task.mask is not None or not 0 < records <= _MOST_RECORDS:
        return False
    inputs, outputs = spec.widths[:2]
    steps = task.steps_for(records)
    direct = _DIRECT_HANDICAP * 2 * steps * min(task.batch_size, records) * inputs * outputs
    if task.noise_multiplier:
        direct += steps * inputs * outputs * _NOISE_COST
    once, each_step = _row_space_cost(spec, records, task)
    return once + steps * each_step < direct


def _row_space_cost(spec: StackedSpec, records: int, task: LocalTask) -> tuple[float, float]:
    """Multiplications in the first layer for a device of so many records: once, and in each step."""
    inputs, outputs = spec.widths[:2]
    batch = min(task.batch_size, records)
    visits = task.steps_for(records) * batch
    own = min(visits, records)
    once: float = 2 * own * inputs * outputs + own**2 * inputs
    if task.noise_multiplier:
        once += inputs * outputs * (own + _NOISE_COST)
        if visits < own + batch:  # a single pass: see `row_space_remainder` for the two ways
            once += visits**2 * (visits / 3 + outputs)
        else:
            steps = task.steps_for(records)
            once += own**3 / 3 + steps * own * outputs * (steps + _NOISE_COST) + visits * own * outputs
    return once, batch * own * outputs


def plan(
    spec: StackedSpec | ModuleSpec,
    data: DeviceData,
    devices: Sequence[str],
    starts: Sequence[int],
    task: LocalTask,
    *,
    workers: int,
    largest: int | None,
) -> list[Group]:
    """The chunks of a round; `starts` tells for each device which model it starts from."""
    counts = [data.count(device) for device in devices]
    steps = {count: task.steps_for(count) for count in set(counts)}
    row_space = {count: prefers_row_space(spec, count, task) for count in steps}
    orders = [(start, row_space[n], -steps[n], -n) for start, n in zip(starts, counts, strict=True)]
    groups = []
    by_order = sorted(range(len(devices)), key=orders.__getitem__)
    for (_, in_rows), members in groupby(by_order, key=lambda position: orders[position][:2]):
        positions = list(members)
        parts = [positions]
        if in_rows and not isinstance(spec, ModuleSpec):
            parts = _parts(spec, task, positions, counts)
        for part in parts:
            limit = largest or devices_per_chunk(spec, counts[part[0]], row_space=in_rows)
            groups += [Group(tuple(chunk), in_rows) for chunk in _evenly(part, limit, workers)]
    return groups


def _parts(spec: StackedSpec, task: LocalTask, positions: list[int], counts: Sequence[int]) -> list[list[int]]:
    """Devices in row space, sorted by falling steps, cut where padding to the first would cost more than it saves."""
    kinds, members = [], []
    for count, alike in groupby(positions, key=lambda position: counts[position]):
        members.append(list(alike))
        kinds.append(Alike(len(members[-1]), task.steps_for(count), *_row_space_cost(spec, count, task)))
    return [list(chain.from_iterable(members[part])) for part in cheapest_parts(kinds)]


def devices_per_chunk(spec: StackedSpec | ModuleSpec, records: int, *, row_space: bool) -> int:
    """As many as keep what a step touches in the cache, but enough to make calls worth their while. Measured."""
    if row_space:
        return max(8, min(64, (6 << 20) // spec.layout.size, (1 << 13) // records))
    if isinstance(spec, ModuleSpec):
        return 16
    if isinstance(spec, Cnn):
        return 25
    return max(8, min(64, (1 << 20) // spec.layout.size))


def rows_at_once(spec: StackedSpec | ModuleSpec) -> int:
    """How many records to evaluate together: enough for large products, little enough for the cache."""
    return 128 if isinstance(spec, Cnn | ModuleSpec) else 1024


def _evenly(positions: list[int], limit: int, workers: int) -> list[list[int]]:
    """Chunks of nearly equal size, at most `limit`, and a number of them that keeps all workers busy."""
    chunks = math.ceil(len(positions) / limit)
    if len(positions) >= 2 * workers:
        chunks = workers * math.ceil(chunks / workers)
    bounds = [round(i * len(positions) / chunks) for i in range(chunks + 1)]
    return [positions[low:high] for low, high in pairwise(bounds)]
